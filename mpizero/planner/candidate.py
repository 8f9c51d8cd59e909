"""A stage with an offload, a tensor size and a shard size: its bytes, what it sends, how long it takes.

[Note: Lists are shared] Which actions a step has depends on which axes of the mesh are divided, not on how far, nor on
how large units are, unless gradients go through buckets. So a list is made once, on the smallest mesh of its kind and
of the smallest part of the model, and weighed on every mesh. It is the one that a run with the same settings composes
(`schedule.compose.composed`), and was proven legal by a run or a test; what is recommended is proven again.

[Note: Bytes are of the schedule that is timed] Seconds assume that gathers and reductions go on beside computing. So
bytes are of lists that gather one segment ahead and overlap (`question.SETTINGS`): where activations are this project's
own, those of a run with the same settings, all kinds together and to the byte. Of another program's they leave out what
our rings and operators take.
"""

from __future__ import annotations

import functools
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from mpizero.layout import (
    DEVICE, HOST, NVME, REPLICATED, ActivationBytes, Axis, Geometry, MeshShape, ModelSpec, OptimizerSpec, Tier,
    Tiers, Wrapping, wrap,
)
from mpizero.layout.files import file_bytes, spaces
from mpizero.planner.books import Step, activation_points
from mpizero.planner.need import digest_peak
from mpizero.planner.question import Question
from mpizero.planner.seconds import Estimate, Load, estimate, loads, sends_of
from mpizero.planner.stored import at_rest
from mpizero.planner.tiers import TIERS, Offload, TierPlan, tiers_of
from mpizero.planner.traffic import Sent
from mpizero.schedule import STRATEGIES, Action, StepSettings, flow
from mpizero.schedule.compose import composed, shelved


class List(NamedTuple):
    """What tells one list of actions from another. settings: but for the size of shards."""

    spec: ModelSpec
    settings: StepSettings
    mesh: MeshShape
    dtype: str
    reduce_dtype: str | None
    optimizer: OptimizerSpec

    def on(self, mesh: MeshShape) -> Geometry:
        """What the list is about on another mesh of its kind."""
        return Geometry(_wrapping(self.spec, mesh.ranks), self.settings.placement, mesh, self.dtype, self.optimizer,
                        self.reduce_dtype)


@dataclass(frozen=True)
class Candidate:
    """What `plan fit` weighs. Each property is computed when it is asked for. question: of one tensor size."""

    question: Question
    stage: str
    offload: Offload
    size: int

    @functools.cached_property
    def settings(self) -> StepSettings:
        return self.question.settings(self.stage, self.offload, self.size)

    @functools.cached_property
    def geometry(self) -> Geometry:
        return self._list.on(self.mesh)

    @property
    def mesh(self) -> MeshShape:
        return self.settings.mesh(self.question.ranks)

    @functools.cached_property
    def _list(self) -> List:
        question, mesh = self.question, self.mesh
        if question.bucket_size is None:
            mesh = MeshShape(*(min(mesh.size(axis), 2) for axis in Axis))
        return List(question.model.spec, replace(self.settings, shard_size=None), mesh, question.dtype,
                    question.reduce_dtype, question.optimizer)

    @functools.cached_property
    def _like(self) -> List:
        """The same list of actions, of fewer tensor parallel ranks."""
        if self.question.bucket_size is not None:
            return self._list
        spec = self.question.listed
        return self._list._replace(spec=spec, settings=replace(self._list.settings, tensor_size=spec.tensor_size))

    @property
    def actions(self) -> list[Action]:
        """Those of a run."""
        return _actions(self._like)[0]

    @functools.cached_property
    def _loads(self) -> list[Load]:
        return _loads(self._like)

    @functools.cached_property
    def tiers(self) -> TierPlan:
        return tiers_of(_steps(self._like), self.geometry, self.question.table if self.question.ours else None)

    @functools.cached_property
    def sends(self) -> list[list[Sent]]:
        """Of each phase."""
        return _sends(self._list, self._like, self.mesh, self.question.shared)

    @functools.cached_property
    def moved(self) -> list[dict[str, float]]:
        """Bytes that offload moves in each phase, by link."""
        ends = [load.end for load in self._loads]
        found: list[dict[str, float]] = [defaultdict(float) for _ in ends]
        for move in self.tiers.moves if self.offload.tiers != Tiers() else ():
            found[bisect_right(ends, move.place)][move.link] += move.nbytes
        return found

    def estimate(self, like: Candidate) -> Estimate:
        """like: the same with another shard size. All that moves is of shards, so it grows as they do, and memory need
        not be planned to know it; but where replicas sum what several microbatches have left, that moves twice more,
        and kept inputs are no shards."""
        if (self.question.accumulation > 1 and self.geometry.replicas > 1
                or self.offload.tiers.checkpoints is not DEVICE):
            like = self
        moved = [{link: nbytes * like.size / self.size for link, nbytes in phase.items()} for phase in like.moved]
        return estimate(self.question, self._loads, self.sends, self.geometry, self.offload, moved)

    @functools.cached_property
    def activations(self) -> tuple[int | None, int]:
        """Bytes of activations, None if unknown, and the most on the device of all that is planned."""
        kept, table, states = self.question.activations, self.question.table, self.tiers.device_points
        if table is None:
            return kept, max(states) + (kept or 0)
        live = _activations(self._like, table)
        if self.question.ours:
            return max(live), max(self.tiers.full_peak[DEVICE], digest_peak(self.geometry).nbytes)
        return max(live), max(most + more for most, more in zip(states, live, strict=True))

    @functools.cached_property
    def needs(self) -> dict[str, int]:
        """Bytes of a rank on each tier: with activations of our own all that a run takes, and the whole file."""
        if not self.question.ours:
            return {**self.tiers.peak, DEVICE: self.activations[1]}
        file = file_bytes(spaces(self.geometry, self.question.table, shelved(self.actions)))
        return {DEVICE: self.activations[1], HOST: self.tiers.full_peak[HOST], NVME: file}

    @functools.cached_property
    def verdict(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Tiers that are too small; and what is not known: tiers that are needed, and "activations"."""
        needs, capacity, (kept, _) = self.needs, self.question.capacity, self.activations
        lacks = tuple(tier for tier in TIERS if (limit := capacity[tier]) is not None and needs[tier] > limit)
        unknown = tuple(tier for tier in TIERS if needs[tier] and capacity[tier] is None)
        return lacks, unknown + (("activations",) if kept is None else ())

    @property
    def has_room(self) -> bool:
        """Whether no tier is too small, as far as is known. Where what rests or a single unit takes more than there
        is, no list is walked."""
        capacity = self.question.capacity
        return (all(limit is None or self._least(tier) <= limit for tier, limit in capacity.items())
                and not self.verdict[0])

    def _least(self, tier: str) -> int:
        """Bytes that are there in any case: what rests, and on the device a unit's whole gradient, with whole
        parameters where only shards rest; or all activations, between forward and backward."""
        geometry, question = self.geometry, self.question
        rest = sum(at_rest(geometry, Tier(tier)).values())
        if tier != DEVICE:
            return rest
        whole = 1 if geometry.placement.params is REPLICATED else 2
        largest = max((unit.padded_numel for unit in geometry.wrapping.units if not unit.frozen), default=0)
        kept, table = question.activations or 0, question.table
        after = 0 if table is None or question.recompute else table.after_forward
        return rest + max(whole * geometry.itemsize * largest + kept, after)


@functools.lru_cache(maxsize=64)
def _wrapping(spec: ModelSpec, ranks: int) -> Wrapping:
    return wrap(spec, ranks)


@functools.lru_cache(maxsize=256)
def _sends(which: List, like: List, mesh: MeshShape, table: ActivationBytes | None) -> list[list[Sent]]:
    geometry = which.on(mesh)
    return [sends_of(load, geometry, table) for load in _loads(like)]


@functools.lru_cache(maxsize=64)
def _actions(which: List) -> tuple[list[Action], Geometry]:
    """A step, and what it is about. See [Note: Lists are shared]."""
    geometry = which.on(which.mesh)
    return composed(STRATEGIES[which.settings.stage], geometry, which.settings).step(), geometry


@functools.lru_cache(maxsize=64)
def _steps(which: List) -> list[Step]:
    """What comes and goes in each of its actions."""
    return list(flow(*_actions(which)))


@functools.lru_cache(maxsize=64)
def _loads(which: List) -> list[Load]:
    """Its phases."""
    return loads(*_actions(which))


@functools.lru_cache(maxsize=64)
def _activations(which: List, table: ActivationBytes) -> Sequence[int]:
    """See [Note: Lists are shared]."""
    return activation_points(_steps(which), _actions(which)[1], table)
