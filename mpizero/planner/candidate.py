"""A stage with an offload and a shard size: its bytes, what it sends, how long it takes.

[Note: Lists are shared] Which actions a step has depends on which axes of the mesh are divided, not on how far, nor on
how large units are; and where an axis is not divided, on a mesh with no collective along it. So the list of a stage is
made and validated once, and weighed on every mesh.
"""

from __future__ import annotations

import functools
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from mpizero.layout import Axis, Geometry, MeshShape, ModelSpec, Wrapping, wrap
from mpizero.memory.kinds import ACTIVATION
from mpizero.planner.footprint import plan_memory
from mpizero.planner.question import Question
from mpizero.planner.seconds import Estimate, Load, estimate, loads, sends_of
from mpizero.planner.tiers import TIERS, Offload, TierPlan, plan_tiers
from mpizero.planner.traffic import Sent
from mpizero.schedule import STRATEGIES, Action, Setup, StepSettings, set_up
from mpizero.schedule.passes import without_lone_collectives


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
        return Geometry(_wrapping(question.model.spec, question.ranks), STRATEGIES[self.stage].placement,
                        question.mesh(self.stage, self.size), question.dtype, question.optimizer)

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
        return _sends(question.model.spec, self.stage, question.accumulation, self.geometry.mesh, question.dtype)

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
        """Bytes of activations, None if unknown, and the most on the device of states and activations together."""
        question, states = self.question, self.tiers.peak["device"]
        kept = question.activations
        if kept is None and question.recompute:
            kept = question.model.recomputed(question.batch_size, question.dtype)
        if kept is not None or question.model.spec.activations is None:
            return kept, states + (kept or 0)
        live = _activations(question.model.spec, self.stage, question.accumulation, self.geometry.mesh.divided,
                            question.model.shape(question.batch_size), question.dtype)
        pairs = zip(self.tiers.device_points, live, [0, *live[:-1]], strict=True)
        return max(live), max(most + max(after, before) for most, after, before in pairs)

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


@functools.lru_cache(maxsize=256)
def _sends(spec: ModelSpec, stage: str, accumulation: int, mesh: MeshShape, dtype: str) -> list[list[Sent]]:
    geometry = Geometry(_wrapping(spec, mesh.ranks), STRATEGIES[stage].placement, mesh, dtype)
    return [sends_of(load, geometry) for load in _step(spec, stage, accumulation, mesh.divided)[1]]


@functools.lru_cache(maxsize=64)
def _step(spec: ModelSpec, stage: str, accumulation: int,
          divided: frozenset[Axis]) -> tuple[list[Action], list[Load]]:
    """The actions of a step, and its phases. See [Note: Lists are shared]."""
    setup, mesh = _divided(spec, stage, accumulation), _smallest(divided)
    actions = list(without_lone_collectives(setup.lists.step(), mesh))
    return actions, loads(actions, replace(setup.geometry, mesh=mesh))


@functools.lru_cache(maxsize=64)
def _activations(spec: ModelSpec, stage: str, accumulation: int, divided: frozenset[Axis], shape: tuple[int, ...],
                 dtype: str) -> Sequence[int]:
    """Bytes of activations after each action. See [Note: Lists are shared]."""
    assert spec.activations is not None
    actions, _ = _step(spec, stage, accumulation, divided)
    geometry = replace(_divided(spec, stage, accumulation).geometry, mesh=_smallest(divided))
    return [point.live[ACTIVATION]
            for point in plan_memory(actions, geometry, spec.activations(shape, dtype)).points]


@functools.lru_cache(maxsize=64)
def _divided(spec: ModelSpec, stage: str, accumulation: int) -> Setup:
    """A mesh of which every axis is divided that the stage can divide: its list has all collectives."""
    shards = None if stage == "0" else 2
    return set_up(spec, 4, StepSettings(stage, shards, accumulation))


def _smallest(divided: frozenset[Axis]) -> MeshShape:
    return MeshShape(*(2 if axis in divided else 1 for axis in Axis))
