"""What an optimizer is: states that it declares, and an update of flat slices."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

import numpy as np

from mpizero.layout.states import OptimizerSpec
from mpizero.memory.ledger import Allocator


class Optimizer(ABC):
    """Updates float32 master weights element by element.

    So any split of a flat range into shards or blocks gives the same bits.
    """

    @property
    @abstractmethod
    def spec(self) -> OptimizerSpec:
        """What it keeps: memory, plans, checksums and checkpoints read it."""

    @abstractmethod
    def update(self, master: np.ndarray, states: Mapping[str, np.ndarray], grad: np.ndarray, *, lr: float, step: int,
               factor: float, mem: Allocator, out: np.ndarray | None = None) -> None:
        """One step in place on flat arrays of equal size (n,): master and each state that `spec` names.

        grad: any float type, not changed; the gradient used is float32(grad) * factor (clipping coefficient over loss
        scale). step: this update's number, from 1; skipped steps do not count. out: receives the new weights, rounded
        to its type.
        Memory: one float32 block of the gradient (`GRAD_FP32`) of `update_block_numel(n)` elements, and `WORKSPACE`.
        """
