"""A stage with an offload and a shard size: its bytes, what it sends, how long it takes.

[Note: Lists are shared] Which actions a step has depends on which axes of the mesh are divided, not on how far, nor on
how large units are; and where an axis is not divided, on a mesh with no collective along it. So the list of a stage is
made and validated once, and weighed on every mesh.

[Note: Bytes are of the schedule that is timed] Seconds assume that gathers and reductions go on beside computing. So
bytes are of lists that gather one segment ahead, and a gradient that is being reduced is held until the next backward
is done.
"""

from __future__ import annotations

import functools
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from mpizero.layout import (
    ADAM, REPLICATED, ActivationBytes, Axis, Geometry, MeshShape, ModelSpec, OptimizerSpec, Wrapping, wrap,
)
from mpizero.memory.kinds import ACTIVATIONS
from mpizero.planner.footprint import plan_memory
from mpizero.planner.question import Question
from mpizero.planner.seconds import Estimate, Load, estimate, loads, sends_of
from mpizero.planner.tiers import TIERS, Offload, TierPlan, plan_tiers
from mpizero.planner.traffic import Sent
from mpizero.schedule import Action, Setup, StepSettings, set_up
from mpizero.schedule.actions import Backward, Phase, ReduceScatterGrad
from mpizero.schedule.passes import offloaded, without_lone_collectives

AHEAD = 1  # segments gathered before they are needed; see [Note: Bytes are of the schedule that is timed]


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
        question = self.question
        return _step(question.model.spec, self.stage, question.accumulation, question.interval,
                     self.geometry.mesh.divided, self.offload.setting)

    @functools.cached_property
    def tiers(self) -> TierPlan:
        return plan_tiers(self._step[0], self.geometry)

    @property
    def sends(self) -> list[list[Sent]]:
        """Of each phase; whatever the offload."""
        question = self.question
        return _sends(question.model.spec, self.stage, question.accumulation, question.interval, self.geometry.mesh,
                      question.dtype, question.reduce_dtype)

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
        """Bytes of activations, None if unknown, and the most on the device of states and activations together."""
        question, kept, table = self.question, self.question.activations, self.question.table
        held = in_flight(self._step[0], self.geometry)
        states = [most + more for most, more in zip(self.tiers.device_points, held, strict=True)]
        if table is None:
            return kept, max(states) + (kept or 0)
        live = _activations(question.model.spec, self.stage, question.accumulation, question.interval,
                            self.geometry.mesh.divided, table, self.offload.setting)
        return max(live), max(most + during for most, during in zip(states, live, strict=True))

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
              optimizer: OptimizerSpec = ADAM, offload: str | None = None) -> Geometry:
    placement = StepSettings(stage, offload=offload).placement
    return Geometry(_wrapping(spec, mesh.ranks), placement, mesh, dtype, optimizer, reduce_dtype)


@functools.lru_cache(maxsize=256)
def _sends(spec: ModelSpec, stage: str, accumulation: int, interval: int | None, mesh: MeshShape, dtype: str,
           reduce_dtype: str | None) -> list[list[Sent]]:
    geometry = _geometry(spec, stage, mesh, dtype, reduce_dtype)
    return [sends_of(load, geometry) for load in _step(spec, stage, accumulation, interval, mesh.divided)[1]]


@functools.lru_cache(maxsize=64)
def _step(spec: ModelSpec, stage: str, accumulation: int, interval: int | None, divided: frozenset[Axis],
          offload: str | None = None) -> tuple[list[Action], list[Load]]:
    """The actions of a step, and its phases. See [Note: Lists are shared]."""
    setup, mesh = _divided(spec, stage, accumulation, interval), _smallest(divided)
    placement = StepSettings(stage, offload=offload).placement
    actions = offloaded(without_lone_collectives(setup.lists.step(), mesh), placement.tiers)
    actions = without_lone_collectives(actions, mesh)
    return actions, loads(actions, replace(setup.geometry, mesh=mesh, placement=placement))


@functools.lru_cache(maxsize=64)
def _activations(spec: ModelSpec, stage: str, accumulation: int, interval: int | None, divided: frozenset[Axis],
                 table: ActivationBytes, offload: str | None) -> Sequence[int]:
    """The most bytes of activations during each action. See [Note: Lists are shared]."""
    actions, _ = _step(spec, stage, accumulation, interval, divided, offload)
    geometry = replace(_divided(spec, stage, accumulation, interval).geometry, mesh=_smallest(divided),
                       placement=StepSettings(stage, offload=offload).placement)
    live = [sum(point.live[kind] for kind in ACTIVATIONS) for point in plan_memory(actions, geometry, table).points]
    return [max(after, before) for after, before in zip(live, [0, *live[:-1]], strict=True)]


def in_flight(actions: Iterable[Action], geometry: Geometry) -> list[int]:
    """Bytes of whole gradients that live longer than the list says, at each action: those that are reduced while the
    next backward computes, which is what `planner.seconds` assumes."""
    found: list[int] = []
    held, backward = 0, False
    for action in actions:
        if isinstance(action, Phase):
            held, backward = 0, action.name == "backward"
        found.append(held)
        if isinstance(action, Backward):
            held = 0
        elif backward and isinstance(action, ReduceScatterGrad):
            held += geometry.itemsize * geometry.kept(action.unit, REPLICATED)
    return found


@functools.lru_cache(maxsize=64)
def _divided(spec: ModelSpec, stage: str, accumulation: int, interval: int | None) -> Setup:
    """A mesh of which every axis is divided that the stage can divide: its list has all collectives. interval: of
    recompute; None: without."""
    shards = 2 if StepSettings(stage).shards else None
    return set_up(spec, 4, StepSettings(stage, shards, accumulation, backward_prefetch=AHEAD, forward_prefetch=AHEAD,
                                        recompute=interval is not None, recompute_interval=interval or 1))


def _smallest(divided: frozenset[Axis]) -> MeshShape:
    return MeshShape(*(2 if axis in divided else 1 for axis in Axis))
