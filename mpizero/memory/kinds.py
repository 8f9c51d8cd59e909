"""The kinds of memory that a ledger counts and a plan foretells. Pure."""

from __future__ import annotations

PARAM = "param"  # what a rank keeps of the parameters between steps
GRAD = "grad"  # reduced gradients: whole or this rank's shard
OPTIM = "optim"  # float32 master weights and the optimizer's states: K bytes per element, ZeRO sec. 3.1
UNSHARDED_PARAM = "unsharded_param"  # whole parameters of a unit, gathered for its use
UNSHARDED_GRAD = "unsharded_grad"  # whole gradient of a unit, of this rank's samples, before reduction
GRAD_FP32 = "grad_fp32"  # the float32 gradient of the block being updated
KEPT_INPUT = "kept_input"  # inputs of segments that are computed again in backward (activation checkpoints)
ACTIVATION = "activation"  # inputs, outputs and what forward saves for backward
WORKSPACE = "workspace"  # temporaries of operators and rings

MODEL_STATE = (PARAM, OPTIM, GRAD, UNSHARDED_PARAM, UNSHARDED_GRAD, GRAD_FP32)  # as they are stacked in pictures
ACTIVATIONS = (KEPT_INPUT, ACTIVATION)
KINDS = (*MODEL_STATE, *ACTIVATIONS, WORKSPACE)
