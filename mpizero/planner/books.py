"""Values as bytes: what each action of a list takes and gives back, in the order in which the executor makes and frees
it, and the workspace that it takes meanwhile. There are no arrays: the books of a 1T model are as cheap as ours.

[Note: Inside a computation] What a forward or backward holds on its way, its tape says (`layout.tape`). It begins when
the gradients are made to which it adds; so the most on the device is what lived before, these, and what the tape comes
to. Without a tape only what is there before and afterwards is known: an estimate.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple, final

from mpizero.layout import DEVICE, SHARDED, ActivationBytes, Geometry, Keep, ParamSpec, Tier
from mpizero.layout.tape import most
from mpizero.memory.kinds import ACTIVATION, KEPT_INPUT, UNSHARDED_GRAD, WORKSPACE
from mpizero.planner.activations import Storage, storage_bytes, storages
from mpizero.planner.stored import Delta, sized
from mpizero.planner.workspace import tape_of, workspace
from mpizero.schedule import values as v
from mpizero.schedule.actions import Action, Forward, Save
from mpizero.schedule.effect import Carry, Effect, Send
from mpizero.schedule.flow import Became, Change, Freed, Made, flow
from mpizero.schedule.places import resting
from mpizero.schedule.values import Name, Value

Step = tuple[Action, Effect, list[Change]]  # an action as `flow` tells it


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


def gradients_made(deltas: Iterable[Delta]) -> int:
    """Those that a backward makes."""
    return sum(nbytes for kind, nbytes, _ in deltas if kind == UNSHARDED_GRAD)


def walk(actions: Iterable[Action], geometry: Geometry, activations: ActivationBytes | None = None,
         after: Sequence[Action] = ()) -> Iterator[Doing]:
    """Each action, with the bytes that it takes and gives back. after: what has been done before, from rest on."""
    doings = walked(flow([*after, *actions], geometry), geometry, activations)
    return islice(doings, len(after), None)


def walked(steps: Iterable[Step], geometry: Geometry, activations: ActivationBytes | None = None) -> Iterator[Doing]:
    """The same of what `flow` tells of a list, from rest on."""
    books = _Books(geometry, activations, resting(geometry))
    for action, effect, changes in steps:
        room = books.room(effect)
        deltas = [delta for change in changes for delta in books.note(change, effect)]
        yield Doing(action, effect, _with_room(deltas, room), books.inside(action))


def activation_points(steps: Iterable[Step], geometry: Geometry, activations: ActivationBytes) -> list[int]:
    """The most bytes of activations on the device during each action, as they are before and after it."""
    books, live, found = _Books(geometry, activations), 0, []
    for _, effect, changes in steps:
        before = live
        live += sum(delta.nbytes for change in changes if change.value.mb is not None
                    for delta in books.note(change, effect) if delta.tier is DEVICE)
        found.append(max(before, live))
    return found


def _with_room(deltas: list[Delta], room: Room) -> list[Delta]:
    """Workspace comes after what is made, and goes with what is freed."""
    if not (room.taken or room.given):
        return deltas
    made = next((i for i, delta in enumerate(deltas) if delta.nbytes < 0), len(deltas))
    return [*deltas[:made], Delta(WORKSPACE, room.taken, room.tier), *deltas[made:],
            Delta(WORKSPACE, -room.given, room.tier)]


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
        self.held: dict[Storage, Delta] = {value: self._size(value) for value in there}
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
                self.held[new] = before._replace(kind=self._size(new).kind)
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
        self.held[storage] = self._size(storage, extent)
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

    def _size(self, storage: Storage, extent: Keep = SHARDED) -> Delta:
        return sized(storage, self.geometry, self.activations, extent)

    def _storages(self, value: Value) -> tuple[Storage, ...]:
        if value.mb is None:
            return (value,)
        return () if self.activations is None else storages(value, self.activations)


def _key(going: Effect) -> tuple[Send | None, tuple[Carry, ...], int | None]:
    return going.sends, going.carries, going.updates


def _given(delta: Delta) -> Delta:
    return delta._replace(nbytes=-delta.nbytes)


def _extent(value: Value, effect: Effect) -> Keep:
    """Of the unit, what a reduction makes."""
    return next((sums.extent for sums in effect.sums if sums.target == value), SHARDED)
