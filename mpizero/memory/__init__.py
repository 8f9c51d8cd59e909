"""What a device holds: a ledger of every buffer, exact to the byte."""

from mpizero.memory.ledger import ACTIVATION, GRAD, GRAD_FP32, KINDS, MODEL_STATE, OPTIM, PARAM, UNSHARDED_GRAD
from mpizero.memory.ledger import UNSHARDED_PARAM, WORKSPACE, Allocator, Ledger, Uncounted

__all__ = ["ACTIVATION", "GRAD", "GRAD_FP32", "KINDS", "MODEL_STATE", "OPTIM", "PARAM", "UNSHARDED_GRAD", "UNSHARDED_PARAM", "WORKSPACE",
           "Allocator", "Ledger", "Uncounted"]
