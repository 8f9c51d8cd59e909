"""Adam and AdamW on flat float32 slices.

Adam: arXiv:1412.6980, algorithm 1. AdamW: arXiv:1711.05101, algorithm 2. The formula is PyTorch's
(`torch.optim.adam._single_tensor_adam`, not capturable, not amsgrad).

[Note: blocks] One pass over memory. Slices are taken in blocks so small that a block of master weights, moments,
gradient and one temporary stays in the core's L2 cache while about fifteen elementwise passes run over it. Passes over
the whole array would go to memory each time.

[Note: elementwise] Every operation is elementwise and correctly rounded (+, -, *, /, sqrt, conversions), and scalars
are rounded to float32 once. An element's result therefore depends on its own inputs only: any split of a flat range
into shards or blocks gives the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, final

import numpy as np

from mpizero.errors import ConfigError
from mpizero.half import narrow, widen
from mpizero.layout.flat import UPDATE_BLOCK
from mpizero.layout.states import ADAM, ADAMW, OptimizerSpec
from mpizero.memory.kinds import GRAD_FP32, WORKSPACE
from mpizero.memory.ledger import Allocator
from mpizero.optim.optimizer import Optimizer


@final
@dataclass(frozen=True)
class Adam(Optimizer):
    """Hyperparameters, with PyTorch's names and defaults.

    decoupled: weight decay shrinks the weights directly (AdamW); otherwise it is added to the gradient (L2, Adam).
    """

    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    decoupled: bool = True

    def __post_init__(self) -> None:
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ConfigError(f"betas {self.betas} cannot be used: each is the part of an average that is kept per "
                              "step, from 0 to below 1; try (0.9, 0.999)")
        if not (math.isfinite(self.eps) and self.eps > 0):
            raise ConfigError(f"eps {self.eps} cannot be used: it keeps the update finite where gradients are 0, so it "
                              "must be above 0; try 1e-8")
        if not (math.isfinite(self.weight_decay) and self.weight_decay >= 0):
            raise ConfigError(f"weight_decay {self.weight_decay} cannot be used: it must be finite and at least 0; "
                              "try 0.01, or 0 for none")

    @property
    def spec(self) -> OptimizerSpec:
        return ADAMW if self.decoupled else ADAM

    def update(self, master: np.ndarray, states: Mapping[str, np.ndarray], grad: np.ndarray, *, lr: float, step: int,
               factor: float, mem: Allocator, out: np.ndarray | None = None) -> None:
        adam_update(self, master, states["exp_avg"], states["exp_avg_sq"], grad, lr=lr, step=step, factor=factor,
                    mem=mem, out=out)


class _Scalars(NamedTuple):
    """A step's constants, computed in Python floats (float64) and rounded to float32 once.

    Each is an array (), NumPy's fastest operand.
    """

    factor: np.ndarray
    decay: np.ndarray  # AdamW: 1 - lr * weight_decay; Adam: weight_decay
    one_minus_beta1: np.ndarray
    beta2: np.ndarray
    one_minus_beta2: np.ndarray
    eps: np.ndarray  # eps * sqrt(1 - beta2^t)
    step_size: np.ndarray  # lr / (1 - beta1^t) * sqrt(1 - beta2^t)


def adam_update(hyper: Adam, master: np.ndarray, exp_avg: np.ndarray, exp_avg_sq: np.ndarray, grad: np.ndarray, *,
                lr: float, step: int, factor: float, mem: Allocator, out: np.ndarray | None = None,
                block: int = UPDATE_BLOCK) -> None:
    """One Adam step in place on flat arrays of equal size (n,).

    master, exp_avg, exp_avg_sq: float32. grad: any float type, not changed; the gradient used is float32(grad) *
    factor, where factor is the clipping coefficient over the loss scale. out: receives the new weights, rounded to its
    type. step: this update's number, from 1; skipped steps do not count.
    Memory: one float32 gradient block of min(block, n) elements (`GRAD_FP32`) and one like it (`WORKSPACE`) during the
    call.
    """
    assert step >= 1 and block >= 1, (step, block)
    assert all(array.shape == (master.size,) and array.dtype == np.float32 for array in (master, exp_avg, exp_avg_sq))
    assert grad.shape == master.shape and (out is None or out.shape == master.shape)
    g_block = mem.empty(min(block, master.size), np.float32, GRAD_FP32)
    t_block = mem.empty(min(block, master.size), np.float32, WORKSPACE)
    scalars = _scalars(hyper, lr, step, factor)
    # where a gradient's square overflows, the moment is infinite and the update 0, as in PyTorch
    with np.errstate(over="ignore"):
        for start in range(0, master.size, block):
            part = slice(start, min(start + block, master.size))
            g, t = g_block[: part.stop - start], t_block[: part.stop - start]
            _load(g, grad[part], scalars.factor)
            _update_block(hyper, scalars, master[part], exp_avg[part], exp_avg_sq[part], g, t)
            if out is not None:
                _store(out[part], master[part], g, t)


def _scalars(hyper: Adam, lr: float, step: int, factor: float) -> _Scalars:
    beta1, beta2 = hyper.betas
    correction = math.sqrt(1.0 - beta2**step)
    values = (factor, 1.0 - lr * hyper.weight_decay if hyper.decoupled else hyper.weight_decay, 1.0 - beta1, beta2,
              1.0 - beta2, hyper.eps * correction, lr / (1.0 - beta1**step) * correction)
    return _Scalars(*(np.array(value, np.float32) for value in values))


def _load(g: np.ndarray, grad: np.ndarray, factor: np.ndarray) -> None:
    """g = float32(grad) * factor."""
    if grad.dtype == np.float16:
        widen(grad, g)
        grad = g
    elif grad.dtype != np.float32:
        np.copyto(g, grad, casting="unsafe")  # same_kind does not know bfloat16
        grad = g
    np.multiply(grad, factor, out=g)


def _store(out: np.ndarray, master: np.ndarray, scratch: np.ndarray, more: np.ndarray) -> None:
    """out = master, rounded to nearest even."""
    if out.dtype == np.float16:
        narrow(master, out, scratch, more)
    else:
        np.copyto(out, master, casting="unsafe")


def _update_block(hyper: Adam, c: _Scalars, master: np.ndarray, m: np.ndarray, v: np.ndarray, g: np.ndarray,
                  t: np.ndarray) -> None:
    """All arrays float32 (block,). g and t are destroyed.

    PyTorch's line stands above ours where the two differ in form.
    """
    if hyper.weight_decay and hyper.decoupled:
        np.multiply(master, c.decay, out=master)
    elif hyper.weight_decay:
        np.multiply(master, c.decay, out=t)
        np.add(g, t, out=g)
    # exp_avg.lerp_(grad, 1 - beta1)
    np.subtract(g, m, out=t)
    np.multiply(t, c.one_minus_beta1, out=t)
    np.add(m, t, out=m)
    # exp_avg_sq.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
    np.multiply(v, c.beta2, out=v)
    np.multiply(g, c.one_minus_beta2, out=t)
    np.multiply(t, g, out=t)
    np.add(v, t, out=v)
    # param.addcdiv_(exp_avg, (exp_avg_sq.sqrt() / sqrt(bias_correction2)).add_(eps), value=-lr / bias_correction1)
    # the fraction is expanded by sqrt(bias_correction2), which saves a pass
    np.sqrt(v, out=t)
    np.add(t, c.eps, out=t)
    np.divide(m, t, out=t)
    np.multiply(t, c.step_size, out=t)
    np.subtract(master, t, out=master)
