"""Is a list of actions legal? Reads the list alone, so it finds what no run would show: a stale replica does not
crash."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from mpizero.layout.geometry import Geometry
from mpizero.layout.mesh import Axis
from mpizero.layout.placement import OWNED, REPLICATED, SHARDED, Keep
from mpizero.schedule import values as v
from mpizero.schedule.actions import Action, show
from mpizero.schedule.effect import Effect, Send, Sum
from mpizero.schedule.effects import effect_of
from mpizero.schedule.flow import Became, Change, Freed, Made, changes
from mpizero.schedule.places import kept_params, resting
from mpizero.schedule.values import Name, Value


class IllegalSchedule(AssertionError):
    """An action at a moment when it must not come. Names the action, its place in the list, and the rule."""


def validate(actions: Iterable[Action], geometry: Geometry, limit: int | None = None, lag: int = 0) -> None:
    """Raise `IllegalSchedule` unless every action is legal where it stands and what rests is reached again, all of it
    current.

    actions: of one step or of several in a row. limit: units that may be gathered at once, unless a segment needs more.
    lag: updates that parameters may lack while they are used; what rests in the end lacks none.
    """
    checker = _Checker(geometry, limit, lag)
    for number, action in enumerate(actions):
        try:
            checker.act(effect_of(action, checker.geometry))
        except IllegalSchedule as error:
            raise IllegalSchedule(f"action {number}, {show(action)}: {error}") from None
    try:
        checker.finish()
    except IllegalSchedule as error:
        raise IllegalSchedule(f"at the end of the step: {error}") from None


@dataclass
class _Gradient:
    """What is known of one. parts: the (segment, microbatch) whose backward is in it. unsummed: the axes along which
    ranks hold different ones. extent: whether all of it holds, or this rank's shard alone."""

    parts: set[tuple[int, int]]
    unsummed: frozenset[Axis]
    extent: Keep = REPLICATED


class _Checker:
    """The values that are there; of gradients, what is in them; of parameters, how many updates are in them."""

    def __init__(self, geometry: Geometry, limit: int | None, lag: int):
        self.geometry, self.limit, self.lag, self.there = geometry, limit, lag, set(resting(geometry))
        # frozen parameters have none: they are never stale
        self.version = {kept_params(unit, geometry): 0 for unit in geometry.wrapping.trained}
        self.updated = dict.fromkeys(geometry.wrapping.trained, 0)  # unit -> updates in its states
        self.newest = 0
        self.gradients: dict[Value, _Gradient] = {}  # of this step
        self.held: dict[Value, _Gradient] = {}  # of earlier ones, on which ranks have agreed
        self.pieces: dict[Value, Sum] = {}  # whole gradient -> how the last piece of it was summed, unless that is all
        self.counted: set[int] = set()  # microbatches whose loss counts in this step
        self.agreed = False  # on the gradients that are there
        self.used: set[Value] = set()  # those of them that an update has read
        self.gathered, self.most = 0, 0  # units now, and at once since the last computation
        self.read: set[Value] = set()  # whole parameters that a computation has read and that stay, for another one
        self.under_way: dict[Effect, None] = {}  # collectives that were begun, in order

    def act(self, effect: Effect) -> None:
        """Apply the rules to an action's effect, then the effect to what is there."""
        self._check_order(effect)
        self._check_values(effect)
        self._check_recompute(effect)
        if effect.sends is not None:
            self._check_axis(effect.sends)
        if effect.computes and any(value.name is Name.WHOLE for value in effect.reads):
            self._check_limit(effect)
        for sums in effect.sums if effect.begins is None else ():
            self._sum_piece(sums)
        if effect.agrees:
            self._agree()
        if effect.updates is not None:
            self._update(effect.updates, effect.reads[0])
        if effect.refreshes is not None:
            self._refresh(effect.refreshes)
        self._note_gradients(effect)
        for change in changes(effect, self.there):
            self._note(change)

    # -- collectives under way ----------------------------------------------------------------------------------------

    def _check_order(self, effect: Effect) -> None:
        """What was begun is ended, and nobody uses what it makes or changes what it reads meanwhile. Every rank has
        this list, so all begin the collectives of a group in one order."""
        if effect.ends is not None:
            _rule(effect.ends in self.under_way, "it ends what was not begun")
            del self.under_way[effect.ends]
        for other in self.under_way:
            _rule(not other.meets(effect), f"it meets the {_name(other)}, which has not ended")
        if effect.begins is not None:
            self.under_way[effect.begins] = None

    # -- values -------------------------------------------------------------------------------------------------------

    def _check_values(self, effect: Effect) -> None:
        for value in effect.reads:
            if value not in self.there:
                raise IllegalSchedule(self._stale(value) or f"it reads {value}, which is not there")
            if self.version.get(value, self.newest) < self.newest - self.lag:
                raise IllegalSchedule(f"{value} is stale: it lacks an update that others have had")
        for value in effect.makes:
            if value in self.there:
                raise IllegalSchedule(f"it makes {value}, which is there already")
            if self.agreed and value.mb is not None:
                raise IllegalSchedule(f"it makes {value} before the gradients of the step are freed")
        for value in (*effect.frees, *(old for old, _ in effect.becomes)):
            if value not in self.there:
                raise IllegalSchedule(f"it frees {value}, which is not there")
            if value.name in (Name.REDUCED, Name.OFFLOADED) and not self.agreed and not effect.sums:
                raise IllegalSchedule(f"it frees {value}, on which ranks have not agreed")

    def _stale(self, value: Value) -> str:
        """Why whole parameters are not there, if that is why."""
        waits = value.name is Name.WHOLE and v.part(value.index) in self.there
        return f"{value} is stale: unit {value.index} must be gathered after its update" if waits else ""

    def _note(self, change: Change) -> None:
        match change:
            case Made(Value(name=Name.WHOLE | Name.PART) as value):
                if (kept := kept_params(value.index, self.geometry)) in self.version:
                    self.version[value] = self.version[kept]
                self.gathered += 1
                self.most = max(self.most, self.gathered)
            case Freed(Value(name=Name.WHOLE) as value):
                self.gathered -= 1
                self.read.discard(value)
            case Freed(Value(name=Name.REDUCED | Name.OFFLOADED) as value) if value in self.gradients:
                self._forget(value)
            case Became(Value(name=Name.OFFLOADED) as value, new):
                self.held[new] = self.gradients[value]
                self._forget(value)
            case Freed(Value(name=Name.HELD) as value):
                del self.held[value]
                self.used.discard(value)
            case Became(value, new) if value in self.version:
                self.version[new] = self.version.pop(value)
            case Made() | Freed() | Became():
                pass

    # -- gradients ----------------------------------------------------------------------------------------------------

    def _note_gradients(self, effect: Effect) -> None:
        """A loss counts once a step; a gradient holds what its backward has consumed, once."""
        for value in effect.frees:
            if value.name is Name.TARGETS and value.mb is not None:
                _rule(value.mb not in self.counted, f"the loss of microbatch {value.mb} has been counted in this step")
                self.counted.add(value.mb)
        parts = {(value.index, value.mb) for value in effect.frees if value.name is Name.SAVED and value.mb is not None}
        for value in effect.adds:
            if value.name is Name.GRAD:
                _rule(value not in self.pieces, f"it adds to {value}, of which a piece is summed already")
                new = _Gradient(set(), self.geometry.unsummed(value.index))
                self.gradients.setdefault(value, new).parts.update(parts)

    def _sum_piece(self, sums: Sum) -> None:
        """Pieces of a gradient are summed one after the other, alike, each once; with the last it is summed."""
        source, target, piece = sums.source, sums.target, sums.piece
        before = [other.target for other in self.pieces.values() if other.source != source]
        _rule(source not in before and target not in before, f"{source} lacks pieces that are not summed yet")
        if (done := self.pieces.pop(source, None)) is not None:
            _rule(piece is not None and done.piece is not None and sums._replace(piece=done.piece) == done,
                  f"a piece of {source} is summed already, in another way")
        if piece is not None:
            begin = done.piece.end if done is not None and done.piece is not None else 0
            _rule(piece.begin == begin, f"of {source} the piece at {begin} comes next, not that at {piece.begin}")
            _rule(piece.begin < piece.end <= piece.width == self._chunk(sums),
                  f"{source} has chunks of {self._chunk(sums)} elements, and no piece {piece}")
            if not piece.last:
                self.pieces[source] = sums
                return
        self._sum(sums)

    def _chunk(self, sums: Sum) -> int:
        """Elements of each chunk of the whole gradient, as the ring along its axis cuts it."""
        assert sums.axis is not None
        return self.geometry.kept(sums.source.index, REPLICATED) // self.geometry.mesh.size(sums.axis)

    def _sum(self, sums: Sum) -> None:
        """A gradient is summed once along each axis, and added to others that are summed along the same ones."""
        source, target, axis, extent, _ = sums
        found, before = self.gradients[source], self.gradients.get(target)
        _rule(not self.agreed, "ranks have agreed on the gradients already")
        _rule(axis is None or axis in found.unsummed or self.geometry.mesh.size(axis) == 1,
              f"{source} is summed along {axis} already")
        summed = _Gradient(set(found.parts), found.unsummed - {axis},
                           extent if extent is not REPLICATED and self.geometry.shards > 1 else found.extent)
        if source != target:
            del self.gradients[source]
            if before is not None:
                _rule(before.unsummed == summed.unsummed,
                      f"{target}, to which it adds, is summed along other axes: a part would count twice")
                _rule(before.extent == summed.extent, f"{target}, to which it adds, holds another extent of the unit")
                _rule(not before.parts & summed.parts, f"{target}, to which it adds, holds a part of it already")
                summed.parts |= before.parts
        self.gradients[target] = summed

    def _agree(self) -> None:
        """Every microbatch whose loss counts is in every gradient, summed over all ranks; nothing is under way."""
        under_way = sorted(value for value in self.there if value.mb is not None or value.name is Name.GRAD)
        _rule(not under_way, f"{', '.join(map(str, under_way[:5]))} is still there")
        _rule(self.counted == set(range(len(self.counted))) and bool(self.counted),
              f"the losses of microbatches {sorted(self.counted)} count, which are not 0 to n - 1")
        expected: dict[int, set[tuple[int, int]]] = defaultdict(set)
        for segment in self.geometry.wrapping.segments:
            for unit in segment.units:
                expected[unit].update((segment.index, mb) for mb in self.counted)
        for value, gradient in self.gradients.items():
            missing = sorted(expected[value.index] - gradient.parts)
            _rule(not missing, f"{value} lacks the backward of segment and microbatch {missing[:1]}")
            left = ", ".join(sorted(gradient.unsummed))
            _rule(not left, f"{value} is not summed along {left}")
        self.agreed = bool(self.gradients)
        if not self.agreed:  # a model without parameters
            self.counted.clear()

    def _forget(self, reduced: Value) -> None:
        del self.gradients[reduced]
        self.used.discard(reduced)
        if not self.gradients:
            self.agreed = False
            self.counted.clear()

    # -- parameters ---------------------------------------------------------------------------------------------------

    def _update(self, unit: int, reduced: Value) -> None:
        """An update reads a gradient on which all agree, once; from then on older parameters are stale, unless they may
        lag."""
        placement, held = self.geometry.placement, self.held.get(reduced)
        _rule(self.agreed or held is not None, "ranks have not agreed on the gradients")
        _rule(reduced not in self.used, f"{reduced} has been used for an update")
        extent = (held or self.gradients[reduced]).extent
        _rule(extent in (REPLICATED, placement.optim),
              f"{reduced} holds {_EXTENT[extent]} alone, and its optimizer updates {_EXTENT[placement.optim]}")
        self.used.add(reduced)
        self.updated[unit] += 1
        self.newest = max(self.newest, self.updated[unit])

    def _refresh(self, unit: int) -> None:
        """Kept parameters get what their states have."""
        _rule(self.geometry.placement.params is REPLICATED or v.whole(unit) not in self.there,
              f"unit {unit} is gathered: the whole parameters would be old ones")
        self.version[kept_params(unit, self.geometry)] = self.updated[unit]

    # -- recompute ----------------------------------------------------------------------------------------------------

    def _check_recompute(self, effect: Effect) -> None:
        """A segment is computed again once those behind it are through: earlier, nothing would be won."""
        for kept in (value for value in effect.frees if value.name is Name.KEPT and effect.computes):
            later = sorted(value for value in self.there if value.mb == kept.mb and value.index > kept.index
                           and value.name in (Name.X, Name.SAVED, Name.KEPT))
            _rule(not later, f"it comes too early: {later[:1] and later[0]} is still there")

    # -- gathers ------------------------------------------------------------------------------------------------------

    def _check_axis(self, send: Send) -> None:
        """A unit is divided along the shard axis alone: its parts are gathered and scattered along that, and summed
        along others."""
        if send.op != "all_reduce":
            _rule(send.axis is Axis.SHARD, f"units are divided along {Axis.SHARD}, not along {send.axis}")
        elif send.extent is not REPLICATED:
            _rule(send.axis is not Axis.SHARD, f"along {Axis.SHARD} ranks hold different parts, which have no sum")

    def _check_limit(self, effect: Effect) -> None:
        """Beside what a computation reads, what others have read may be there for those to come: segments that are
        computed again together are so before the first of their backwards."""
        self.read.update(value for value in effect.reads if value.name is Name.WHOLE)
        most = max(self.most, self.gathered)
        _rule(self.limit is None or most <= max(self.limit, len(self.read)),
              f"{most} units were gathered at once: above the limit")
        self.most = 0

    def finish(self) -> None:
        """What rests is there, current, and nothing else."""
        for other in self.under_way:
            raise IllegalSchedule(f"the {_name(other)} has not ended")
        rests = resting(self.geometry)
        left, gone = sorted(self.there - rests), sorted(rests - self.there)
        for value in gone:
            _rule(not self._stale(value), self._stale(value))
        _rule(not left, f"{', '.join(map(str, left[:5]))} is still there")
        _rule(not gone, f"{', '.join(map(str, gone[:5]))} is gone")
        for value in sorted(self.version.keys() & rests):
            _rule(self.version[value] == self.newest, f"{value} is stale: it lacks an update that others have had")
        _rule(self.limit is None or self.most <= self.limit,
              f"{self.most} units were gathered at once: above the limit")


_EXTENT = {REPLICATED: "the whole unit", SHARDED: "this rank's shard", OWNED: "the units that it owns"}


def _name(going: Effect) -> str:
    if going.updates is not None:
        return f"update of unit {going.updates}"
    for value, source, target in going.carries:
        return f"move of {value} from {source} to {target}"
    assert going.sends is not None
    if going.sends.chunk is not None:
        return f"{going.sends.op} of a bucket"
    return f"{going.sends.op} of unit {going.sends.unit}"


def _rule(holds: bool, otherwise: str) -> None:
    if not holds:
        raise IllegalSchedule(otherwise)
