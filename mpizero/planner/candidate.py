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
from typing import Any

from mpizero.layout import (
    ADAM, ActivationBytes, Axis, Geometry, MeshShape, ModelSpec, OptimizerSpec, Wrapping, wrap,
)
from mpizero.memory.kinds import ACTIVATION
from mpizero.planner.activations import again, checkpointed
from mpizero.planner.footprint import plan_memory
from mpizero.planner.need import digest_peak
from mpizero.planner.question import Question
from mpizero.planner.seconds import Estimate, Load, estimate, loads, sends_of
from mpizero.planner.tiers import NONE, TIERS, Offload, TierPlan, plan_tiers
from mpizero.planner.traffic import Sent
from mpizero.schedule import STRATEGIES, Action, Setup, StepSettings, set_up
from mpizero.schedule.passes import overlapped, without_lone_collectives

AHEAD = 1  # segments gathered before they are needed
# of every list here, beside stage, shard size and accumulation
SETTINGS: dict[str, Any] = {"overlap": True, "backward_prefetch": AHEAD, "forward_prefetch": AHEAD}


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
                         question.reduce_dtype, question.optimizer)

    @property
    def _step(self) -> tuple[list[Action], list[Load]]:
        return _step(self.question.model.spec, self.stage, self.question.accumulation, self.geometry.mesh.divided)

    @functools.cached_property
    def tiers(self) -> TierPlan:
        return plan_tiers(self._step[0], self.geometry, self.offload)

    @property
    def sends(self) -> list[list[Sent]]:
        """Of each phase; whatever the offload."""
        question = self.question
        return _sends(question.model.spec, self.stage, question.accumulation, self.geometry.mesh, question.dtype,
                      question.reduce_dtype)

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
        not be planned to know it."""
        moved = [{link: nbytes * like.size / self.size for link, nbytes in phase.items()} for phase in like.moved]
        return estimate(self.question, self._step[1], self.sends, self.geometry, self.offload, moved)

    @functools.cached_property
    def activations(self) -> tuple[int | None, int]:
        """Bytes of activations, None if unknown, and the most on the device of all that is planned."""
        question, kept, table = self.question, self.question.activations, self.question.table
        states = self.tiers.full_points if question.ours else self.tiers.device_points
        if table is None:
            return kept, max(states) + (kept or 0)
        live, during = _activations(question.model.spec, self.stage, question.accumulation, self.geometry.mesh.divided,
                                    table, question.recompute)
        device = max(most + more for most, more in zip(states, during, strict=True))
        if question.ours and self.offload is NONE:
            device = max(device, digest_peak(self.geometry).nbytes)
        return max(live), device

    @functools.cached_property
    def verdict(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Tiers that are too small; and what is not known: tiers that are needed, and "activations"."""
        kept, device = self.activations
        needs, capacity = {**self.tiers.peak, "device": device}, self.question.capacity
        lacks = tuple(tier for tier in TIERS if (limit := capacity[tier]) is not None and needs[tier] > limit)
        unknown = tuple(tier for tier in TIERS if needs[tier] and capacity[tier] is None)
        return lacks, unknown + (("activations",) if kept is None else ())


@functools.lru_cache(maxsize=64)
def _wrapping(spec: ModelSpec, ranks: int) -> Wrapping:
    return wrap(spec, ranks)


def _geometry(spec: ModelSpec, stage: str, mesh: MeshShape, dtype: str, reduce_dtype: str | None,
              optimizer: OptimizerSpec = ADAM) -> Geometry:
    return Geometry(_wrapping(spec, mesh.ranks), STRATEGIES[stage].placement, mesh, dtype, optimizer, reduce_dtype)


@functools.lru_cache(maxsize=256)
def _sends(spec: ModelSpec, stage: str, accumulation: int, mesh: MeshShape, dtype: str,
           reduce_dtype: str | None) -> list[list[Sent]]:
    geometry = _geometry(spec, stage, mesh, dtype, reduce_dtype)
    return [sends_of(load, geometry) for load in _step(spec, stage, accumulation, mesh.divided)[1]]


@functools.lru_cache(maxsize=64)
def _step(spec: ModelSpec, stage: str, accumulation: int,
          divided: frozenset[Axis]) -> tuple[list[Action], list[Load]]:
    """The actions of a step, and its phases. See [Note: Lists are shared]."""
    setup, mesh = _divided(spec, stage, accumulation), _smallest(divided)
    lists, geometry = setup.lists, replace(setup.geometry, mesh=mesh)
    parts = (without_lone_collectives(part, mesh) for part in (lists.accumulate, lists.update))
    actions = [action for part in parts for action in overlapped(part, geometry)] + lists.zero_grad
    return actions, loads(actions, geometry)


@functools.lru_cache(maxsize=64)
def _activations(spec: ModelSpec, stage: str, accumulation: int, divided: frozenset[Axis], table: ActivationBytes,
                 recompute: bool) -> tuple[Sequence[int], Sequence[int]]:
    """The most bytes of activations during each action: as they are before and after it; and with all that operators
    hold on their way, where that is known. See [Note: Lists are shared]."""
    actions, _ = _step(spec, stage, accumulation, divided)
    geometry = replace(_divided(spec, stage, accumulation).geometry, mesh=_smallest(divided))
    plan = plan_memory(actions, geometry, checkpointed(table) if recompute else table)
    live = [point.live[ACTIVATION] for point in plan.points]
    anew = [again(action, table) if recompute else 0 for action in actions]
    before = [0, *live[:-1]]
    around = [max(pair) + more for *pair, more in zip(before, live, anew, strict=True)]
    inside = [begun + (point.inside or 0) for begun, point in zip(before, plan.points, strict=True)]
    return around, [max(pair) for pair in zip(around, inside, strict=True)]


@functools.lru_cache(maxsize=64)
def _divided(spec: ModelSpec, stage: str, accumulation: int) -> Setup:
    """A mesh of which every axis is divided that the stage can divide: its list has all collectives, which `_step`
    overlaps when it has left out those of other meshes."""
    shards = 2 if StepSettings(stage).shards else None
    return set_up(spec, 4, StepSettings(stage, shards, accumulation, **SETTINGS | {"overlap": False}))


def _smallest(divided: frozenset[Axis]) -> MeshShape:
    return MeshShape(*(2 if axis in divided else 1 for axis in Axis))
