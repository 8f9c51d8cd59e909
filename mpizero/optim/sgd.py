"""Stochastic gradient descent with momentum: PyTorch's formula (`torch.optim.sgd._single_tensor_sgd`, without dampening
and Nesterov's step)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, final

import numpy as np

from mpizero.layout.states import SGD as SPEC
from mpizero.layout.states import OptimizerSpec, optimizer_spec
from mpizero.optim.optimizer import Optimizer, check_parts, check_weight_decay, scalar

Array = np.ndarray


@final
@dataclass(frozen=True)
class SGD(Optimizer):
    """momentum: 0 for none, which keeps no state."""

    momentum: float = 0.9
    weight_decay: float = 0.0
    decoupled: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        check_parts("momentum", self.momentum)
        check_weight_decay(self.weight_decay)

    @property
    def spec(self) -> OptimizerSpec:
        return optimizer_spec(SPEC.name, self.momentum)

    def scalars(self, lr: float, step: int) -> _Scalars:
        return _Scalars(scalar(self.momentum), scalar(lr))

    def update_block(self, c: _Scalars, w: Array, states: Sequence[Array], g: Array, t: Array) -> None:
        """From a momentum of 0 the first step gives the gradient itself, as PyTorch has it."""
        for momentum in states:
            # momentum_buffer.mul_(momentum).add_(grad)
            np.multiply(momentum, c.momentum, out=momentum)
            np.add(momentum, g, out=momentum)
            g = momentum
        # param.add_(grad, alpha=-lr)
        np.multiply(g, c.lr, out=t)
        np.subtract(w, t, out=w)


class _Scalars(NamedTuple):
    momentum: Array
    lr: Array
