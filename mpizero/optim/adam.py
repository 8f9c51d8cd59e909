"""Adam and AdamW.

Adam: arXiv:1412.6980, algorithm 1. AdamW: arXiv:1711.05101, algorithm 2. The formula is PyTorch's
(`torch.optim.adam._single_tensor_adam`, not capturable, not amsgrad).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, final

import numpy as np

from mpizero.errors import ConfigError
from mpizero.layout.states import ADAM, ADAMW, OptimizerSpec
from mpizero.optim.optimizer import Optimizer, check_parts, check_weight_decay, scalar

Array = np.ndarray


@final
@dataclass(frozen=True)
class Adam(Optimizer):
    """Hyperparameters, with PyTorch's names and defaults. decoupled: AdamW."""

    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    decoupled: bool = True

    def __post_init__(self) -> None:
        check_parts("betas", *self.betas)
        check_weight_decay(self.weight_decay)
        if not (math.isfinite(self.eps) and self.eps > 0):
            raise ConfigError(f"eps {self.eps} cannot be used: it keeps the update finite where gradients are 0, so it "
                              "must be above 0; try 1e-8")

    @property
    def spec(self) -> OptimizerSpec:
        return ADAMW if self.decoupled else ADAM

    def scalars(self, lr: float, step: int) -> _Scalars:
        beta1, beta2 = self.betas
        correction = math.sqrt(1.0 - beta2**step)
        return _Scalars(*map(scalar, (1.0 - beta1, beta2, 1.0 - beta2, self.eps * correction,
                                      lr / (1.0 - beta1**step) * correction)))

    def update_block(self, c: _Scalars, w: Array, states: Sequence[Array], g: Array, t: Array) -> None:
        """PyTorch's line stands above ours where the two differ in form."""
        m, v = states
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
        np.subtract(w, t, out=w)


class _Scalars(NamedTuple):
    one_minus_beta1: Array
    beta2: Array
    one_minus_beta2: Array
    eps: Array  # eps * sqrt(1 - beta2^t)
    step_size: Array  # lr / (1 - beta1^t) * sqrt(1 - beta2^t)
