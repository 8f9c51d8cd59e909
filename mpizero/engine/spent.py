"""Where a step's seconds went, on one rank."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from mpizero.comm import Record
from mpizero.memory.links import Moved
from mpizero.schedule.actions import (
    Backward, Begin, Forward, LoadBatch, Loss, LossBackward, LossPart, OptimStep, Recompute,
)

COMPUTE = (LoadBatch, Forward, LossPart, Loss, LossBackward, Recompute, Backward)
PARTS = ("compute", "update", "communication", "waiting", "moving", "rest")


def seconds_by(spent: Mapping[type, float], records: Iterable[Record], moves: Iterable[Moved],
               seconds: float) -> dict[str, float]:
    """Of `seconds`, by `PARTS`. spent: of the actions, by their kind; records: of the collectives, agreement included;
    moves: between tiers.

    communication: in collectives, with nothing else to do, and while one was begun. waiting: of that, until its first
    message was there, so for ranks that came later, and for that message; it counts apart.
    moving: in moves between tiers, with nothing else to do.
    rest: all else: norms, bookkeeping, what lies between actions.
    """
    compute = sum(spent.get(kind, 0.0) for kind in COMPUTE)
    inside = [(record.exposed, record.waited) for record in records]
    waiting = sum(waited for _, waited in inside)
    talking = sum(total for total, _ in inside) - waiting + spent.get(Begin, 0.0)
    moving = sum(move.exposed for move in moves)
    parts = (compute, spent.get(OptimStep, 0.0), talking, waiting, moving)
    return dict(zip(PARTS, (*parts, seconds - sum(parts)), strict=True))


def added(one: Mapping[str, float], other: Mapping[str, float]) -> dict[str, float]:
    """Sums, part by part."""
    return {part: one.get(part, 0.0) + other.get(part, 0.0) for part in PARTS}
