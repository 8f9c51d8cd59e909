"""The few values on which all ranks agree between two lists of actions: the same answer everywhere, so the same branch everywhere."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mpizero.dist import Group, all_gather_values
from mpizero.engine.unit import Unit
from mpizero.memory import Ledger
from mpizero.optim import sum_of_squares


@dataclass(frozen=True)
class Agreed:
    """loss: mean over the targets of the global batch. total_norm: of the unscaled mean gradient, every element counted once."""

    loss: float
    targets: int  # of the global batch
    total_norm: float
    culprit: str  # the first unit with a gradient that is not finite; "" if all are

    @property
    def found_inf(self) -> bool:
        return self.culprit != ""


def finish_grads(world: Group, units: Sequence[Unit], ledger: Ledger, loss: float, targets: int, scale: float) -> Agreed:
    """One small all-gather of float64: loss, number of targets and each unit's sum of squares.

    Every rank sums the squares of its own 1/N of each unit, whatever is kept where, and all add the ranks' values in the same order: so the
    norm is the same bit for bit for every strategy.
    """
    squares = [sum_of_squares(unit.part_of(unit.grad, unit.owned), ledger) for unit in units]
    totals = all_gather_values(world, np.array([loss, targets, *squares]), op="agree", phase="agree").sum(axis=0)
    culprit = next((unit.layout.name for unit, square in zip(units, totals[2:], strict=True) if not math.isfinite(square)), "")
    return Agreed(totals[0] / max(totals[1], 1.0), int(totals[1]), math.sqrt(totals[2:].sum()) / scale if not culprit else math.nan, culprit)


def mean_loss(world: Group, loss: float, targets: int) -> float:
    """Mean over the targets of all ranks."""
    totals = all_gather_values(world, np.array([loss, targets], dtype=np.float64), op="agree", phase="evaluate").sum(axis=0)
    return float(totals[0] / max(totals[1], 1.0))
