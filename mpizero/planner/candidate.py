"""A stage with an offload and a shard size: its bytes, what it sends, how long it takes.

[Note: Lists are shared] Which actions a step has depends on which axes of the mesh are divided, not on how far, nor on
how large units are; and where an axis is not divided, on a mesh with no collective along it. So the list of a stage is
made and validated once, and weighed on every mesh. Nor do activations depend on the mesh, or states change within a
computation but for gradients that it makes: so the two are planned apart, and added action by action.

[Note: Bytes are of the schedule that is timed] Seconds assume that gathers and reductions go on beside computing. So
bytes are of lists that gather one segment ahead and overlap (`SETTINGS`): where activations are this project's own,
those of a run with the same settings, all kinds together and to the byte. Of another program's they leave out what our
rings and operators take.
"""

from __future__ import annotations

import functools
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from mpizero.layout import (
    ADAM, DEVICE, ActivationBytes, Axis, Geometry, MeshShape, ModelSpec, OptimizerSpec, Wrapping, wrap,
)
from mpizero.memory.kinds import ACTIVATIONS
from mpizero.planner.footprint import plan_memory
from mpizero.planner.need import digest_peak
from mpizero.planner.question import Question
from mpizero.planner.seconds import Estimate, Load, estimate, loads, sends_of
from mpizero.planner.tiers import TIERS, Offload, TierPlan, plan_tiers
from mpizero.planner.traffic import Sent
from mpizero.schedule import Action, Setup, StepSettings, set_up
from mpizero.schedule.passes import offloaded, overlapped, without_lone_collectives

AHEAD = 1  # segments gathered before they are needed
# of every list here, beside stage, shard size and accumulation
SETTINGS: dict[str, Any] = {"overlap": True, "backward_prefetch": AHEAD, "forward_prefetch": AHEAD}


class List(NamedTuple):
    """What tells one list of actions from another. interval: of recompute; None: without. offload: a setting."""

    spec: ModelSpec
    stage: str
    accumulation: int
    interval: int | None
    offload: str | None


@dataclass(frozen=True)
class Candidate:
    """What `plan fit` weighs. Each property is computed when it is asked for."""

    question: Question
    stage: str
    offload: Offload
    size: int

    @functools.cached_property
    def geometry(self) -> Geometry:
        question = self.question
        return _geometry(question.model.spec, self.stage, question.mesh(self.stage, self.size), question.dtype,
                         question.reduce_dtype, question.optimizer, self.offload.setting)

    @property
    def _step(self) -> tuple[list[Action], list[Load]]:
        return _step(self._list, self.geometry.mesh.divided)

    @property
    def _list(self) -> List:
        question = self.question
        return List(question.model.spec, self.stage, question.accumulation, question.interval, self.offload.setting)

    @functools.cached_property
    def tiers(self) -> TierPlan:
        return plan_tiers(self._step[0], self.geometry, self.question.table if self.question.ours else None)

    @property
    def sends(self) -> list[list[Sent]]:
        """Of each phase."""
        return _sends(self._list, self.geometry.mesh, self.question.dtype, self.question.reduce_dtype)

    @functools.cached_property
    def moved(self) -> list[dict[str, float]]:
        """Bytes that offload moves in each phase, by link."""
        ends = [load.end for load in self._step[1]]
        found: list[dict[str, float]] = [defaultdict(float) for _ in ends]
        for move in self.tiers.moves:
            found[bisect_right(ends, move.place)][move.link] += move.nbytes
        return found

    def estimate(self, like: Candidate) -> Estimate:
        """like: the same with another shard size. All that moves is of shards, so it grows as they do, and memory need
        not be planned to know it; but where replicas sum what several microbatches have left, that moves twice more."""
        if self.question.accumulation > 1 and self.geometry.replicas > 1:
            like = self
        moved = [{link: nbytes * like.size / self.size for link, nbytes in phase.items()} for phase in like.moved]
        return estimate(self.question, self._step[1], self.sends, self.geometry, self.offload, moved)

    @functools.cached_property
    def activations(self) -> tuple[int | None, int]:
        """Bytes of activations, None if unknown, and the most on the device of all that is planned."""
        kept, table, states = self.question.activations, self.question.table, self.tiers.device_points
        if table is None:
            return kept, max(states) + (kept or 0)
        live = _activations(self._list, self.geometry.mesh.divided, table)
        if self.question.ours:
            return max(live), max(self.tiers.full_peak[DEVICE], digest_peak(self.geometry).nbytes)
        return max(live), max(most + more for most, more in zip(states, live, strict=True))

    @functools.cached_property
    def verdict(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Tiers that are too small; and what is not known: tiers that are needed, and "activations"."""
        kept, device = self.activations
        peaks = self.tiers.full_peak if self.question.ours else self.tiers.peak
        needs, capacity = {**peaks, "device": device}, self.question.capacity
        lacks = tuple(tier for tier in TIERS if (limit := capacity[tier]) is not None and needs[tier] > limit)
        unknown = tuple(tier for tier in TIERS if needs[tier] and capacity[tier] is None)
        return lacks, unknown + (("activations",) if kept is None else ())


@functools.lru_cache(maxsize=64)
def _wrapping(spec: ModelSpec, ranks: int) -> Wrapping:
    return wrap(spec, ranks)


def _geometry(spec: ModelSpec, stage: str, mesh: MeshShape, dtype: str, reduce_dtype: str | None,
              optimizer: OptimizerSpec = ADAM, offload: str | None = None) -> Geometry:
    placement = StepSettings(stage, offload=offload).placement
    return Geometry(_wrapping(spec, mesh.ranks), placement, mesh, dtype, optimizer, reduce_dtype)


@functools.lru_cache(maxsize=256)
def _sends(which: List, mesh: MeshShape, dtype: str, reduce_dtype: str | None) -> list[list[Sent]]:
    geometry = _geometry(which.spec, which.stage, mesh, dtype, reduce_dtype, offload=which.offload)
    return [sends_of(load, geometry) for load in _step(which, mesh.divided)[1]]


@functools.lru_cache(maxsize=64)
def _step(which: List, divided: frozenset[Axis]) -> tuple[list[Action], list[Load]]:
    """The actions of a step, and its phases. See [Note: Lists are shared]."""
    lists, geometry = _divided(which).lists, _smallest(which, divided)

    def passed(actions: Sequence[Action]) -> list[Action]:
        actions = offloaded(without_lone_collectives(actions, geometry.mesh), geometry.placement.tiers)
        return overlapped(without_lone_collectives(actions, geometry.mesh), geometry)

    actions = [*passed(lists.accumulate), *passed(lists.update), *lists.zero_grad]
    return actions, loads(actions, geometry)


@functools.lru_cache(maxsize=64)
def _activations(which: List, divided: frozenset[Axis], table: ActivationBytes) -> Sequence[int]:
    """The most bytes of activations during each action, as they are before and after it. See [Note: Lists are
    shared]."""
    plan = plan_memory(_step(which, divided)[0], _smallest(which, divided), table)
    live = [sum(point.live[kind] for kind in ACTIVATIONS) for point in plan.points]
    return [max(pair) for pair in zip([0, *live[:-1]], live, strict=True)]


@functools.lru_cache(maxsize=64)
def _divided(which: List) -> Setup:
    """A mesh of which every axis is divided that the stage can divide: its list has all collectives. `_step` leaves out
    those of other meshes, and then adds moves and overlap."""
    shards = 2 if StepSettings(which.stage).shards else None
    return set_up(which.spec, 4, StepSettings(
        which.stage, shards, which.accumulation, recompute=which.interval is not None,
        recompute_interval=which.interval or 1, **SETTINGS | {"overlap": False}))


def _smallest(which: List, divided: frozenset[Axis]) -> Geometry:
    """On the smallest mesh whose `divided` axes are."""
    return replace(_divided(which).geometry, mesh=MeshShape(*(2 if axis in divided else 1 for axis in Axis)),
                   placement=StepSettings(which.stage, offload=which.offload).placement)
