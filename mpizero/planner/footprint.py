"""Bytes on a rank at every action, by walking the list that the executor runs.

Each action is a few values that come and go, and the workspace that it takes meanwhile (`planner.books`); so a plan
equals the ledger, by kind.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from mpizero.layout import DEVICE, ActivationBytes, Geometry, Tier
from mpizero.memory.kinds import ACTIVATIONS, MODEL_STATE, WORKSPACE
from mpizero.planner.books import Doing, gradients_made, walk
from mpizero.planner.stored import at_rest, buffers
from mpizero.schedule.actions import Action, Backward, Forward, Loss, LossBackward, LossPart, Phase, Recompute

Computation = Forward | Recompute | LossPart | Loss | LossBackward | Backward


@dataclass(frozen=True)
class Point:
    """A tier after one action, by kind; activations only where the plan knows them. peak_bytes: of model states, during
    it. device_bytes: of all kinds, during it. inside: as of `Doing`."""

    action: Action
    live: dict[str, int]
    peak_bytes: int
    device_bytes: int
    inside: int | None


@dataclass
class MemoryPlan:
    """Bytes on one rank over the actions of a step. Sums and peaks are of model states, but for those of the device:
    all kinds together. exact: whether these know the activations and the inside of every computation."""

    at_rest: dict[str, int]
    points: list[Point] = field(default_factory=list)
    peak_by_kind: dict[str, int] = field(default_factory=dict)
    peak_bytes: int = 0
    peak_action: Action | None = None
    after_backward: dict[str, int] = field(default_factory=dict)  # after the last microbatch's backward
    device_peak_bytes: int = 0
    device_peak_action: Action | None = None
    exact: bool = False

    @property
    def at_rest_bytes(self) -> int:
        return sum(self.at_rest.values())

    @property
    def after_backward_bytes(self) -> int:
        return sum(self.after_backward.get(kind, 0) for kind in MODEL_STATE)


def plan_memory(actions: Iterable[Action], geometry: Geometry, activations: ActivationBytes | None = None,
                tier: Tier = DEVICE) -> MemoryPlan:
    """Walk `actions` (whole steps, from rest to rest). activations: of a microbatch; None leaves them out. tier: whose
    bytes."""
    live = dict.fromkeys(MODEL_STATE, 0) | at_rest(geometry, tier)
    rest = sum(live.values())
    plan = MemoryPlan(at_rest=dict(live), peak_by_kind=dict(live), peak_bytes=rest, device_peak_bytes=rest,
                      exact=activations is not None)
    live |= dict.fromkeys((*ACTIVATIONS, WORKSPACE) if activations is not None else (WORKSPACE,), 0)
    live[WORKSPACE] = buffers(geometry, activations, tier)
    plan.device_peak_bytes += live[WORKSPACE]
    for doing in (each.on(tier) for each in walk(actions, geometry, activations)):
        point = _play(doing, live, plan.peak_by_kind)
        if point.peak_bytes > plan.peak_bytes:
            plan.peak_bytes, plan.peak_action = point.peak_bytes, doing.action
        if point.device_bytes > plan.device_peak_bytes:
            plan.device_peak_bytes, plan.device_peak_action = point.device_bytes, doing.action
        if isinstance(doing.action, Phase) and doing.action.name == "reduce":
            plan.after_backward = dict(live)
        plan.exact &= doing.inside is not None or tier is not DEVICE or not isinstance(doing.action, Computation)
        plan.points.append(point)
    return plan


def _play(doing: Doing, live: dict[str, int], peak_by_kind: dict[str, int]) -> Point:
    """The action's point; `live` and the peaks of model states are brought up to date."""
    before = everything = sum(live.values())
    states = most_states = sum(live[kind] for kind in MODEL_STATE)
    device = before if doing.inside is None else before + gradients_made(doing.deltas) + doing.inside
    for kind, change, _ in doing.deltas:
        live[kind] += change
        everything += change
        if kind in MODEL_STATE:
            states += change
            most_states = max(most_states, states)
            peak_by_kind[kind] = max(peak_by_kind[kind], live[kind])
        if doing.inside is None:
            device = max(device, everything)
    return Point(doing.action, dict(live), most_states, max(device, everything), doing.inside)


def fullest_and_emptiest(geometry: Geometry) -> tuple[Geometry, Geometry]:
    """Of the ranks that keep most and least between steps; they differ where units have owners."""
    ranks = sorted(map(geometry.at, geometry.representatives), key=lambda each: -sum(at_rest(each).values()))
    return ranks[0], ranks[-1]
