"""Bytes on a rank at every action, by walking the list that the executor runs.

Each action is a few values that come and go, in the order in which the executor makes and frees them, and the workspace
that it takes meanwhile; so a plan equals the ledger, by kind. There are no arrays: the plan of a 1T model is as cheap
as ours.

[Note: Inside a computation] What a forward or backward holds on its way, its tape says (`layout.tape`). It begins when
the gradients are made to which it adds; so the most on the device is what lived before, these, and what the tape comes
to. Without a tape the plan counts what is there before and afterwards: an estimate.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, final

from mpizero.layout import (
    DEVICE, HOST, OWNED, REPLICATED, SHARDED, ActivationBytes, Geometry, Keep, ParamSpec, Tier, update_block_numel,
)
from mpizero.layout.files import buffer_bytes
from mpizero.layout.tape import most
from mpizero.memory.kinds import (
    ACTIVATION, ACTIVATIONS, GRAD, GRAD_FP32, KEPT_INPUT, MODEL_STATE, OPTIM, PARAM, UNSHARDED_GRAD, UNSHARDED_PARAM,
    WORKSPACE,
)
from mpizero.planner.activations import Storage, storage_bytes, storages
from mpizero.planner.workspace import tape_of, workspace
from mpizero.schedule import values as v
from mpizero.schedule.actions import Action, Backward, Forward, Loss, LossBackward, LossPart, Phase, Recompute, Save
from mpizero.schedule.effect import Carry, Effect, Send
from mpizero.schedule.flow import Became, Change, Freed, Made, flow
from mpizero.schedule.places import resting, tier_of
from mpizero.schedule.values import Name, Value

Computation = Forward | Recompute | LossPart | Loss | LossBackward | Backward


class Delta(NamedTuple):
    """Bytes that are taken, or given back (below 0)."""

    kind: str
    nbytes: int
    tier: Tier = DEVICE


class Room(NamedTuple):
    """Bytes of workspace that an action takes and gives back: of what is begun one of the two."""

    taken: int
    given: int
    tier: Tier = DEVICE


class Doing(NamedTuple):
    """An action with its effect; the bytes that it takes and gives back, in order; and, of a computation whose tape is
    known, the most that it holds on its way beside what lived before and the gradients that it makes."""

    action: Action
    effect: Effect
    deltas: list[Delta]
    inside: int | None

    def on(self, tier: Tier) -> Doing:
        """Of one tier alone."""
        return self._replace(deltas=[delta for delta in self.deltas if delta.tier is tier],
                             inside=self.inside if tier is DEVICE else None)


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


def gradients_made(deltas: Iterable[Delta]) -> int:
    """Those that a backward makes."""
    return sum(nbytes for kind, nbytes, _ in deltas if kind == UNSHARDED_GRAD)


def walk(actions: Iterable[Action], geometry: Geometry, activations: ActivationBytes | None = None,
         after: Sequence[Action] = ()) -> Iterator[Doing]:
    """Each action, with the bytes that it takes and gives back. after: what has been done before, from rest on."""
    books = _Books(geometry, activations, resting(geometry))
    for place, (action, effect, changes) in enumerate(flow([*after, *actions], geometry)):
        room = books.room(effect)
        deltas = [delta for change in changes for delta in books.note(change, effect)]
        if place >= len(after):
            yield Doing(action, effect, _with_room(deltas, room), books.inside(action))


def _with_room(deltas: list[Delta], room: Room) -> list[Delta]:
    """Workspace comes after what is made, and goes with what is freed."""
    if not (room.taken or room.given):
        return deltas
    made = next((i for i, delta in enumerate(deltas) if delta.nbytes < 0), len(deltas))
    return [*deltas[:made], Delta(WORKSPACE, room.taken, room.tier), *deltas[made:],
            Delta(WORKSPACE, -room.given, room.tier)]


def at_rest(geometry: Geometry, tier: Tier = DEVICE) -> dict[str, int]:
    """What a rank keeps between steps: gradients are freed."""
    books = _Books(geometry, None)
    live = dict.fromkeys((PARAM, OPTIM), 0)
    for kind, nbytes, where in map(books.size, resting(geometry)):
        live[kind] += nbytes if where is tier else 0
    return live


def buffers(geometry: Geometry, activations: ActivationBytes | None, tier: Tier) -> int:
    """Those of the host through which what is in files passes, which are there all the time."""
    return buffer_bytes(geometry, activations) if tier is HOST else 0


def value_bytes(value: Value, geometry: Geometry, activations: ActivationBytes | None = None) -> int:
    """Of a value that moves, as a rank holds it. activations: without, those of kept inputs are left out."""
    return _Books(geometry, activations).size(value).nbytes


def fullest_and_emptiest(geometry: Geometry) -> tuple[Geometry, Geometry]:
    """Of the ranks that keep most and least between steps; they differ where units have owners."""
    ranks = sorted(map(geometry.at, geometry.representatives), key=lambda each: -sum(at_rest(each).values()))
    return ranks[0], ranks[-1]


@final
class _Books:
    """The storages that values hold, and what the collectives under way do. written: the parameters whose gradient
    holds something, as the executor knows them."""

    def __init__(self, geometry: Geometry, activations: ActivationBytes | None, there: Iterable[Value] = ()):
        self.geometry, self.activations = geometry, activations
        # what was begun, by what it sends, carries and updates, with its workspace
        self.under_way: dict[tuple[Send | None, tuple[Carry, ...], int | None], tuple[int, Tier]] = {}
        self.written: set[str] = set()
        self.frozen = {param.name for unit in geometry.wrapping.units if unit.frozen for param in unit.params}
        self.held: dict[Storage, Delta] = {value: self.size(value) for value in there}
        self.holders: dict[Storage, int] = dict.fromkeys(self.held, 1)

    def room(self, effect: Effect) -> Room:
        """What an action takes beside its values. To be asked before these are noted."""
        if effect.ends is not None:
            return Room(0, *self.under_way.pop(_key(effect.ends)))
        accumulate = any(sums.target in self.held for sums in effect.sums)
        taken, tier = workspace(effect, self.geometry, accumulate, self.activations)
        if effect.begins is not None:
            self.under_way[_key(effect.begins)] = taken, tier
            return Room(taken, 0, tier)
        return Room(taken, taken, tier)

    def inside(self, action: Action) -> int | None:
        """Of a computation, to be asked when its gradients are noted. See [Note: Inside a computation]."""
        tape = () if self.activations is None else tape_of(action, self.activations)
        return max(most(tape, self.written, self.frozen), self._copied(action)) if tape else None

    def _copied(self, action: Action) -> int:
        """Of an input of which a copy is kept, for a moment beside it."""
        assert self.activations is not None
        if not isinstance(action, Forward) or action.save is not Save.COPY:
            return 0
        return sum(storage_bytes(each, self.activations) for each in self._storages(v.x(action.segment, action.mb)))

    def note(self, change: Change, effect: Effect) -> Iterator[Delta]:
        """Bytes taken or given back."""
        match change:
            case Made(value):
                if value.name is Name.GRAD:
                    self.written.difference_update(param.name for param in self._params(value.index))
                for storage in self._storages(value):
                    if self._hold(storage, _extent(value, effect)):
                        yield self.held[storage]
                yield from self._rename(value, KEPT_INPUT)
            case Freed(value):
                for storage in self._storages(value):
                    yield from self._release(storage)
                yield from self._rename(value, ACTIVATION)
            case Became(value, new) if value.mb is not None:  # in the same storage
                yield from self._rename(new, KEPT_INPUT)
            case Became(value, new):
                before = self.held.pop(value)
                self.holders[new] = self.holders.pop(value)
                self.held[new] = before._replace(kind=self.size(new).kind)
                if self.held[new] != before:
                    yield _given(before)
                    yield self.held[new]

    def _params(self, unit: int) -> tuple[ParamSpec, ...]:
        return self.geometry.wrapping.units[unit].params

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
            yield _given(self.held.pop(storage))

    def _rename(self, value: Value, kind: str) -> Iterator[Delta]:
        """What holds a kept input is of its kind, whoever else holds it too."""
        for storage in self._storages(value) if value.name is Name.KEPT else ():
            if storage in self.held:
                yield _given(self.held[storage])
                self.held[storage] = self.held[storage]._replace(kind=kind)
                yield self.held[storage]

    def _storages(self, value: Value) -> tuple[Storage, ...]:
        if value.mb is None:
            return (value,)
        return () if self.activations is None else storages(value, self.activations)

    def size(self, storage: Storage, extent: Keep = SHARDED) -> Delta:
        """extent: of a reduced gradient."""
        return Delta(*self._size(storage, extent), tier_of(storage, self.geometry.placement))

    def _size(self, storage: Storage, extent: Keep) -> tuple[str, int]:
        """Its kind and bytes."""
        geometry, unit = self.geometry, storage.index
        placement, itemsize = geometry.placement, geometry.itemsize
        match storage.name:
            case Name.NEW:
                return PARAM, itemsize * geometry.kept(unit, placement.optim)
            case Name.OFFLOADED | Name.HELD:
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
            case Name.SHELVED | Name.SHELVED_PART | Name.KEPT_PART:
                return KEPT_INPUT, 0 if self.activations is None else storage_bytes(storage, self.activations)
            case _:
                assert self.activations is not None
                return ACTIVATION, storage_bytes(storage, self.activations)


def _key(going: Effect) -> tuple[Send | None, tuple[Carry, ...], int | None]:
    return going.sends, going.carries, going.updates


def _given(delta: Delta) -> Delta:
    return delta._replace(nbytes=-delta.nbytes)


def _extent(value: Value, effect: Effect) -> Keep:
    """Of the unit, what a reduction makes."""
    return next((sums.extent for sums in effect.sums if sums.target == value), SHARDED)
