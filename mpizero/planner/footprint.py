"""Bytes on a rank at every action, by walking the list that the executor runs.

Each action is a few values that come and go, in the order in which the executor makes and frees them; so a plan equals
the ledger, by kind. There are no arrays: the plan of a 1T model is as cheap as ours.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import final

from mpizero.layout import OWNED, REPLICATED, SHARDED, ActivationBytes, Geometry, Keep, update_block_numel
from mpizero.memory.kinds import (
    ACTIVATION, ACTIVATIONS, GRAD, GRAD_FP32, KEPT_INPUT, MODEL_STATE, OPTIM, PARAM, UNSHARDED_GRAD, UNSHARDED_PARAM,
)
from mpizero.planner.activations import Storage, storage_bytes, storages
from mpizero.schedule.actions import Action, Phase
from mpizero.schedule.effects import Became, Change, Effect, Freed, Made, flow, resting
from mpizero.schedule.values import Name, Value

Delta = tuple[str, int]  # kind, bytes


@dataclass(frozen=True)
class Point:
    """The device after one action, by kind; activations only where the plan knows them. peak_bytes: of model states,
    during it."""

    action: Action
    live: dict[str, int]
    peak_bytes: int


@dataclass
class MemoryPlan:
    """Bytes on one rank over the actions of a step. Sums and peaks are of model states."""

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
        return sum(self.after_backward.get(kind, 0) for kind in MODEL_STATE)


def plan_memory(actions: Iterable[Action], geometry: Geometry,
                activations: ActivationBytes | None = None) -> MemoryPlan:
    """Walk `actions` (whole steps, from rest to rest). activations: of a microbatch; None leaves them out."""
    live = dict.fromkeys(MODEL_STATE, 0) | at_rest(geometry)
    plan = MemoryPlan(at_rest=dict(live), peak_by_kind=dict(live), peak_bytes=sum(live.values()))
    if activations is not None:
        live |= dict.fromkeys(ACTIVATIONS, 0)
    for action, _, deltas in walk(actions, geometry, activations):
        most = sum(live[kind] for kind in MODEL_STATE)
        for kind, change in deltas:
            live[kind] += change
            if kind in MODEL_STATE:
                plan.peak_by_kind[kind] = max(plan.peak_by_kind[kind], live[kind])
                most = max(most, sum(live[kind] for kind in MODEL_STATE))
        if most > plan.peak_bytes:
            plan.peak_bytes, plan.peak_action = most, action
        if isinstance(action, Phase) and action.name == "reduce":
            plan.after_backward = dict(live)
        plan.points.append(Point(action, dict(live), most))
    return plan


def walk(actions: Iterable[Action], geometry: Geometry,
         activations: ActivationBytes | None = None) -> Iterator[tuple[Action, Effect, list[Delta]]]:
    """Each action with its effect, and the bytes that it takes and gives back, in order."""
    books = _Books(geometry, activations)
    for action, effect, changes in flow(actions, geometry):
        yield action, effect, [delta for change in changes for delta in books.note(change, effect)]


def at_rest(geometry: Geometry) -> dict[str, int]:
    """What a rank keeps between steps: gradients are freed."""
    books = _Books(geometry, None)
    live = dict.fromkeys((PARAM, OPTIM), 0)
    for kind, nbytes in map(books.size, resting(geometry)):
        live[kind] += nbytes
    return live


def fullest_and_emptiest(geometry: Geometry) -> tuple[Geometry, Geometry]:
    """Of the ranks that keep most and least between steps; they differ where units have owners."""
    ranks = sorted(map(geometry.at, geometry.representatives), key=lambda each: -sum(at_rest(each).values()))
    return ranks[0], ranks[-1]


@final
class _Books:
    """The storages that values hold."""

    def __init__(self, geometry: Geometry, activations: ActivationBytes | None):
        self.geometry, self.activations = geometry, activations
        self.held: dict[Storage, Delta] = {value: self.size(value) for value in resting(geometry)}
        self.holders: dict[Storage, int] = dict.fromkeys(self.held, 1)

    def note(self, change: Change, effect: Effect) -> Iterator[Delta]:
        """Bytes taken or given back."""
        match change:
            case Made(value):
                for storage in self._storages(value):
                    if self._hold(storage, _extent(value, effect)):
                        yield self.held[storage]
                yield from self._rename(value, KEPT_INPUT)
            case Freed(value):
                for storage in self._storages(value):
                    yield from self._release(storage)
                yield from self._rename(value, ACTIVATION)
            case Became(value, new):
                kind, nbytes = self.held.pop(value)
                self.holders[new] = self.holders.pop(value)
                self.held[new] = self.size(new)[0], nbytes
                if self.held[new][0] != kind:
                    yield kind, -nbytes
                    yield self.held[new]

    def _hold(self, storage: Storage, extent: Keep) -> bool:
        """Whether it was not there before."""
        self.holders[storage] = self.holders.get(storage, 0) + 1
        if self.holders[storage] > 1:
            return False
        self.held[storage] = self.size(storage, extent)
        return True

    def _release(self, storage: Storage) -> Iterator[Delta]:
        self.holders[storage] -= 1
        if not self.holders[storage]:
            del self.holders[storage]
            kind, nbytes = self.held.pop(storage)
            yield kind, -nbytes

    def _rename(self, value: Value, kind: str) -> Iterator[Delta]:
        """What holds a kept input is of its kind, whoever else holds it too."""
        for storage in self._storages(value) if value.name is Name.KEPT else ():
            if storage in self.held:
                before, nbytes = self.held[storage]
                self.held[storage] = kind, nbytes
                yield before, -nbytes
                yield kind, nbytes

    def _storages(self, value: Value) -> tuple[Storage, ...]:
        if value.mb is None:
            return (value,)
        return () if self.activations is None else storages(value, self.activations)

    def size(self, storage: Storage, extent: Keep = SHARDED) -> Delta:
        """Its kind and bytes. extent: of a reduced gradient."""
        geometry, unit = self.geometry, storage.index
        placement, itemsize = geometry.placement, geometry.itemsize
        match storage.name:
            case Name.NEW:
                return PARAM, itemsize * geometry.kept(unit, placement.optim)
            case Name.OFFLOADED:
                return GRAD, geometry.sum_itemsize * geometry.kept(unit, placement.optim)
            case Name.WHOLE | Name.PART:
                kind = PARAM if placement.params is REPLICATED else UNSHARDED_PARAM
                return kind, itemsize * geometry.kept(unit, REPLICATED)
            case Name.SHARD:
                return PARAM, itemsize * geometry.kept(unit, SHARDED)
            case Name.OWN:
                return PARAM, itemsize * geometry.kept(unit, OWNED)
            case Name.STATES:
                return OPTIM, geometry.optimizer_bytes * geometry.kept(unit, placement.optim)
            case Name.GRAD:
                return UNSHARDED_GRAD, itemsize * geometry.kept(unit, REPLICATED)
            case Name.REDUCED:
                return GRAD, geometry.sum_itemsize * geometry.kept(unit, extent)
            case Name.GRAD_FP32:
                return GRAD_FP32, 4 * update_block_numel(geometry.kept(unit, placement.optim))
            case _:
                assert self.activations is not None
                return ACTIVATION, storage_bytes(storage, self.activations)


def _extent(value: Value, effect: Effect) -> Keep:
    """Of the unit, what a reduction makes."""
    return effect.sums.extent if effect.sums is not None and effect.sums.target == value else SHARDED
