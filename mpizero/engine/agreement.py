"""The few values on which all ranks agree before an update: the same answer everywhere, so the same branch
everywhere."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mpizero.comm import Group, all_gather_values
from mpizero.engine.unit import Unit
from mpizero.layout import OWNED, MeshShape, norm_block_numel
from mpizero.memory.kinds import WORKSPACE
from mpizero.memory.ledger import Ledger
from mpizero.optim import sums_of_squares


@dataclass(frozen=True)
class Agreed:
    """loss: mean over the targets of the global batch. total_norm: of the unscaled mean gradient, every element counted
    once; NaN where one is not finite."""

    loss: float
    targets: int  # of the global batch
    total_norm: float
    culprit: str  # the first unit with a gradient that is not finite; "" if all are
    stop: int = 0  # the highest `stop` of all ranks

    @property
    def found_inf(self) -> bool:
        return self.culprit != ""


def finish_grads(world: Group, units: Sequence[Unit], ledger: Ledger, loss: float, targets: int,
                 scale: float, stop: int = 0, tensor: int = 1) -> Agreed:
    """One small all-gather of float64: loss, number of targets, `stop` and each unit's sum of squares.

    loss: the sum over this rank's `targets`. scale: the loss scale that is in the gradients. stop: not 0 where this
    rank was asked to stop. tensor: so many ranks, neighbours, have had the same samples; the first of them counts.

    Every rank sums the squares of its own 1/N of each unit, whatever is kept where, and all add the ranks' values in
    the same order: so the norm is the same bit for bit for every strategy. Workspace: a block of float64, of one size
    on all ranks.
    """
    units = [unit for unit in units if not unit.layout.frozen]
    wide = ledger.empty(norm_block_numel([unit.layout for unit in units], world.size), np.float64, WORKSPACE)
    squares = [square for unit in units for square in sums_of_squares(unit.counted, unit.blocks("grad"), wide)]
    del wide
    table = _all_values(world, [loss, targets, stop, *squares], "agree")
    if units and units[0].placement.grads is OWNED:
        table = np.hstack([table[:, :3], _of_ranks(table[:, 3:], units[0].mesh.shape)])
    (total_loss, total_targets), squares = table[::tensor, :2].sum(axis=0).tolist(), table[:, 3:].sum(axis=0).tolist()
    culprit = next((unit.layout.name for unit, square in zip(units, squares, strict=True) if not math.isfinite(square)),
                   "")
    norm = math.nan if culprit else math.sqrt(np.sum(squares)) / scale
    return Agreed(total_loss / max(total_targets, 1.0), int(total_targets), norm, culprit, int(table[:, 2].max()))


def _of_ranks(squares: np.ndarray, shape: MeshShape) -> np.ndarray:
    """(ranks, units x ranks of a shard group), where only owners have counted -> (ranks, units), as if each rank had
    counted its own shard."""
    counted = squares.reshape(shape.replicate, shape.shard, shape.tensor, -1, shape.shard)
    return counted.sum(axis=1).transpose(0, 3, 1, 2).reshape(shape.ranks, -1)


def mean_loss(world: Group, loss: float, targets: int, tensor: int = 1) -> float:
    """Mean over the targets of all ranks. loss: the sum over this rank's `targets`. tensor: as of `finish_grads`."""
    total_loss, total_targets = _all_values(world, [loss, targets], "evaluate")[::tensor].sum(axis=0).tolist()
    return total_loss / max(total_targets, 1.0)


def _all_values(world: Group, mine: Sequence[float], phase: str) -> np.ndarray:
    """A row for each rank, in their order: sums over them are the same on every rank."""
    return all_gather_values(world, np.array(mine, np.float64), op="agree", phase=phase)
