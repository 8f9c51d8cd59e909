"""Lion, which keeps one average and takes steps of one length: arXiv:2302.06675, algorithm 2."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, final

import numpy as np

from mpizero.layout.states import LION, OptimizerSpec
from mpizero.optim.optimizer import Optimizer, check_parts, check_weight_decay, scalar

Array = np.ndarray


@final
@dataclass(frozen=True)
class Lion(Optimizer):
    """The paper's defaults. Every step is lr long, so lr is 3 to 10 times smaller than AdamW's, weight decay as much
    larger (sec. 5)."""

    betas: tuple[float, float] = (0.9, 0.99)
    weight_decay: float = 0.0
    decoupled: bool = field(default=True, init=False)

    def __post_init__(self) -> None:
        check_parts("betas", *self.betas)
        check_weight_decay(self.weight_decay)

    @property
    def spec(self) -> OptimizerSpec:
        return LION

    def scalars(self, lr: float, step: int) -> _Scalars:
        beta1, beta2 = self.betas
        return _Scalars(scalar(1.0 - beta1), scalar(1.0 - beta2), scalar(lr))

    def update_block(self, c: _Scalars, w: Array, states: Sequence[Array], g: Array, t: Array) -> None:
        """The paper's line stands above ours. Where an average is 0 the weight stays."""
        (m,) = states
        # update = beta1 m + (1 - beta1) g; theta = theta - lr sign(update)
        np.subtract(g, m, out=g)
        np.multiply(g, c.one_minus_beta1, out=t)
        np.add(t, m, out=t)
        np.sign(t, out=t)
        np.multiply(t, c.lr, out=t)
        np.subtract(w, t, out=w)
        # m = beta2 m + (1 - beta2) g
        np.multiply(g, c.one_minus_beta2, out=g)
        np.add(m, g, out=m)


class _Scalars(NamedTuple):
    one_minus_beta1: Array
    one_minus_beta2: Array
    lr: Array
