"""Model-state bytes at every action, by walking the list that the executor runs. No arrays: the plan of a 1T model is as cheap as ours.

Each action is a few allocations and frees in the order in which the executor makes them; so a plan equals the ledger, by kind.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from mpizero.layout import REPLICATED, SHARDED, Keep, update_block_numel
from mpizero.planner.geometry import Geometry
from mpizero.schedule.actions import (
    Action,
    AllReduceGrad,
    Backward,
    FreeGrad,
    OptimStep,
    Phase,
    ReduceScatterGrad,
    Reshard,
    Unshard,
)

KINDS = ("param", "grad", "optim", "unsharded_param", "unsharded_grad", "grad_fp32")
Delta = tuple[str, int]  # kind, bytes


@dataclass(frozen=True)
class Point:
    """The device after one action; peak_bytes is the most that was live during it."""

    action: Action
    live: dict[str, int]
    peak_bytes: int


@dataclass
class MemoryPlan:
    """Bytes of model states on one rank over the actions of a step."""

    at_rest: dict[str, int]
    points: list[Point] = field(default_factory=list)
    peak_by_kind: dict[str, int] = field(default_factory=dict)
    peak_bytes: int = 0
    peak_action: Action | None = None
    after_backward: dict[str, int] = field(default_factory=dict)  # after the last microbatch's backward

    @property
    def at_rest_bytes(self) -> int:
        return sum(self.at_rest.values())

    @property
    def after_backward_bytes(self) -> int:
        return sum(self.after_backward.values())


def plan_memory(actions: Iterable[Action], geometry: Geometry) -> MemoryPlan:
    """Walk `actions` (a whole step, from rest to rest)."""
    live = dict.fromkeys(KINDS, 0) | at_rest(geometry)
    plan = MemoryPlan(at_rest=dict(live), peak_by_kind=dict(live), peak_bytes=sum(live.values()))
    for action, deltas in walk(actions, geometry):
        most = sum(live.values())
        for kind, change in deltas:
            live[kind] += change
            plan.peak_by_kind[kind] = max(plan.peak_by_kind[kind], live[kind])
            most = max(most, sum(live.values()))
        if most > plan.peak_bytes:
            plan.peak_bytes, plan.peak_action = most, action
        if isinstance(action, Phase) and action.name == "reduce":
            plan.after_backward = dict(live)
        plan.points.append(Point(action, dict(live), most))
    return plan


def at_rest(geometry: Geometry) -> dict[str, int]:
    """What a rank keeps between steps: gradients are freed."""
    units, keep = range(len(geometry.wrapping.units)), geometry.placement
    return {"param": geometry.itemsize * sum(geometry.kept(unit, keep.params) for unit in units),
            "optim": geometry.optimizer_bytes * sum(geometry.kept(unit, keep.optim) for unit in units)}


def formula_after_backward(geometry: Geometry, psi: int | None = None) -> int | float:
    """The closed form of ZeRO sec. 5 (4 psi + 12 psi/N, 2 psi + 14 psi/N, 16 psi/N), for padded psi unless another is given.

    Holds for one microbatch, or for gradients reduced after each (stage 1 then keeps an accumulated shard beside its whole gradient).
    """
    psi = geometry.wrapping.padded_numel if psi is None else psi

    def share(keep: Keep) -> int | float:
        if keep is REPLICATED:
            return psi
        return psi // geometry.shards if psi % geometry.shards == 0 else psi / geometry.shards

    keep = geometry.placement
    return geometry.itemsize * (share(keep.params) + share(keep.grads)) + geometry.optimizer_bytes * share(keep.optim)


def walk(actions: Iterable[Action], geometry: Geometry) -> Iterator[tuple[Action, list[Delta]]]:
    """Each action with its allocations and frees, in order."""
    units, size = geometry.wrapping.units, geometry.itemsize
    partial: set[int] = set()  # units with an unreduced gradient
    reduced: dict[int, int] = {}  # unit -> bytes of its reduced gradient
    for action in actions:
        deltas: list[Delta] = []
        match action:
            case Unshard(unit):
                deltas = [("unsharded_param", size * units[unit].padded_numel)]
            case Reshard(unit):
                deltas = [("unsharded_param", -size * units[unit].padded_numel)]
            case Backward(stage, _):
                new = [unit for unit in geometry.wrapping.stages[stage].units if unit not in partial]
                partial.update(new)
                deltas = [("unsharded_grad", size * units[unit].padded_numel) for unit in new]
            case ReduceScatterGrad(unit) | AllReduceGrad(unit, _):
                whole = size * units[unit].padded_numel
                kept = whole if isinstance(action, AllReduceGrad) else size * geometry.kept(unit, SHARDED)
                if unit in reduced:
                    deltas = [("unsharded_grad", -whole)]
                elif isinstance(action, AllReduceGrad):
                    deltas = [("unsharded_grad", -whole), ("grad", whole)]  # the same bytes, renamed
                else:
                    deltas = [("grad", kept), ("unsharded_grad", -whole)]
                partial.remove(unit)
                reduced[unit] = kept
            case OptimStep(unit):
                block = 4 * update_block_numel(geometry.kept(unit, geometry.placement.optim))
                deltas = [("grad_fp32", block), ("grad_fp32", -block)]
            case FreeGrad(unit):
                deltas = [("grad", -reduced.pop(unit))]
        yield action, deltas
