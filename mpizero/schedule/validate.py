"""Is a list of actions legal? Reads the list alone, so it finds what no run would show: a stale replica does not
crash."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from mpizero.layout.geometry import Geometry
from mpizero.layout.mesh import Axis, MeshShape
from mpizero.layout.placement import REPLICATED, SHARDED, Placement
from mpizero.layout.wrapping import Wrapping
from mpizero.schedule import values as v
from mpizero.schedule.actions import Action, show
from mpizero.schedule.effects import Became, Effect, Freed, Made, Send, Sum, changes, effect_of, kept_params, resting
from mpizero.schedule.values import Name, Value


class IllegalSchedule(AssertionError):
    """An action at a moment when it must not come. Names the action, its place in the list, and the rule."""


def validate(actions: Iterable[Action], wrapping: Wrapping, placement: Placement, mesh: MeshShape = MeshShape(),
             limit: int | None = None) -> None:
    """Raise `IllegalSchedule` unless every action is legal where it stands and what rests is reached again, all of it
    current.

    actions: of one step or of several in a row. limit: units that may be gathered at once, unless a segment needs more.
    """
    checker = _Checker(Geometry(wrapping, placement, mesh), limit)
    for place, action in enumerate(actions):
        try:
            checker.act(effect_of(action, checker.geometry))
        except IllegalSchedule as error:
            raise IllegalSchedule(f"action {place}, {show(action)}: {error}") from None
    try:
        checker.finish()
    except IllegalSchedule as error:
        raise IllegalSchedule(f"at the end of the step: {error}") from None


@dataclass
class _Checker:
    """The values that are there, and of parameters and gradients which ones: how often updated, summed along which
    axes."""

    geometry: Geometry
    limit: int | None = None
    there: set[Value] = field(init=False)
    version: dict[Value, int] = field(init=False)  # of parameters: how many updates are in them
    readers: dict[int, list[int]] = field(init=False)  # unit -> segments that read it
    newest: int = 0
    partial: set[Value] = field(default_factory=set)  # parameters of which other ranks have newer parts
    # of gradients: axes along which ranks hold different ones
    unsummed: dict[Value, frozenset[Axis]] = field(default_factory=dict)
    used: set[Value] = field(default_factory=set)  # gradients that an update has read
    loaded: set[int] = field(default_factory=set)  # microbatches, since there were no gradients
    gathered: int = 0  # units
    most: int = 0  # of them at once since the last computation

    def __post_init__(self) -> None:
        self.there = set(resting(self.geometry))
        self.version = {value: 0 for value in self.there if value.name is not Name.STATES}
        self.readers = defaultdict(list)
        for segment in self.geometry.wrapping.segments:
            for unit in segment.units:
                self.readers[unit].append(segment.index)

    def act(self, effect: Effect) -> None:
        """Apply the rules to an action's effect, then the effect to what is there."""
        self._check_values(effect)
        if effect.sends is not None:
            self._check_axis(effect.sends)
        if effect.work is not None and effect.work.kind in ("forward", "backward"):
            self._check_limit(effect)
        if effect.sums is not None:
            self._sum(effect.sums)
        if effect.updates is not None:
            self._update(effect.updates)
        if effect.completes is not None:
            self._complete(effect.completes)
        for change in changes(effect, self.there):
            match change:
                case Made(value):
                    self._enter(value)
                case Freed(value):
                    self._leave(value)
                case Became():  # a whole gradient: `_sum` has noted what is known of it
                    pass

    def _check_values(self, effect: Effect) -> None:
        for value in effect.reads:
            if value not in self.there:
                raise IllegalSchedule(f"it reads {value}, which is not there")
            self._check_current(value)
        for value in effect.makes:
            if value in self.there:
                raise IllegalSchedule(f"it makes {value}, which is there already")
            if value.name is Name.TARGETS and value.mb in self.loaded and self._has_gradients:
                raise IllegalSchedule(f"{value} was loaded before in this step: its samples would count twice")
        for value in effect.frees:
            if value not in self.there:
                raise IllegalSchedule(f"it frees {value}, which is not there")
        for value in effect.adds:
            if value.name is Name.GRAD:  # of this rank's own samples
                self.unsummed[value] = self.geometry.mesh.divided

    @property
    def _has_gradients(self) -> bool:
        return any(value.name in (Name.GRAD, Name.REDUCED) for value in self.there)

    def _check_axis(self, send: Send) -> None:
        """A unit is divided along the shard axis alone: its parts are gathered and scattered along that, and summed
        along others."""
        if send.op != "all_reduce":
            _rule(send.axis is Axis.SHARD, f"units are divided along {Axis.SHARD}, not along {send.axis}")
        elif send.extent is SHARDED:
            _rule(send.axis is not Axis.SHARD, f"along {Axis.SHARD} ranks hold different parts, which have no sum")

    def _enter(self, value: Value) -> None:
        if value.name is Name.TARGETS and value.mb is not None:
            self.loaded.add(value.mb)
        elif value.name is Name.WHOLE:
            self.version[value] = self.version[v.shard(value.index)]
            self.gathered += 1
            self.most = max(self.most, self.gathered)

    def _leave(self, value: Value) -> None:
        if value.name is Name.WHOLE:
            self.gathered -= 1
        elif value.name is Name.REDUCED:
            self.used.discard(value)
            if not self._has_gradients:
                self.loaded.clear()

    @property
    def _rests_whole(self) -> bool:
        return self.geometry.placement.params is REPLICATED

    def _check_current(self, value: Value) -> None:
        """Parameters must hold every update that any parameter holds."""
        if value in self.partial:
            raise IllegalSchedule(f"{value} is stale: unit {value.index} must be gathered after its update")
        if self.version.get(value, self.newest) != self.newest:
            raise IllegalSchedule(f"{value} is stale: it lacks an update that others have had")

    def _sum(self, sums: Sum) -> None:
        """A gradient is summed when it is complete, once along each axis, and added to one summed along the same."""
        source, target, axis = sums
        saved = [v.saved(segment, mb) for segment in self.readers[source.index] for mb in self.loaded]
        due = ", ".join(str(value) for value in saved if value in self.there)
        _rule(source == target or not due, f"{source} is not complete: {due} waits for its backward")
        left = self.unsummed[source]
        _rule(axis in left or self.geometry.mesh.size(axis) == 1, f"{source} is summed along {axis} already")
        left -= {axis}
        if target in self.there and target != source:
            _rule(target not in self.used, f"{target} has been used for an update")
            _rule(self.unsummed[target] == left,
                  f"{target}, to which it adds, is summed along other axes: a part would count twice")
        self.unsummed[target] = left

    def _update(self, unit: int) -> None:
        """An update reads the sum over all ranks, once; from then on older parameters are stale."""
        reduced, kept, keep = v.reduced(unit), kept_params(unit, self.geometry), self.geometry.placement
        left = ", ".join(sorted(self.unsummed[reduced]))
        _rule(not left, f"{reduced} is not summed along {left}")
        _rule(reduced not in self.used, f"{reduced} has been used for an update")
        _rule(self._rests_whole or v.whole(unit) not in self.there,
              f"unit {unit} is gathered: the whole parameters would be old ones")
        self.used.add(reduced)
        self.version[kept] += 1
        self.newest = max(self.newest, self.version[kept])
        if keep.params is not keep.optim and self.geometry.shards > 1:
            self.partial.add(kept)

    def _complete(self, unit: int) -> None:
        kept = kept_params(unit, self.geometry)
        _rule(kept in self.partial, "there is nothing new to gather")
        self.partial.remove(kept)

    def _check_limit(self, effect: Effect) -> None:
        needs = sum(value.name is Name.WHOLE for value in effect.reads)
        _rule(self.limit is None or self.most <= max(self.limit, needs),
              f"{self.most} units were gathered at once: above the limit")
        self.most = 0

    def finish(self) -> None:
        """What rests is there, current, and nothing else."""
        rests = resting(self.geometry)
        left, gone = sorted(self.there - rests), sorted(rests - self.there)
        _rule(not left, f"{', '.join(map(str, left[:5]))} is still there")
        _rule(not gone, f"{', '.join(map(str, gone[:5]))} is gone")
        for value in sorted(self.version.keys() & rests):
            self._check_current(value)


def _rule(holds: bool, otherwise: str) -> None:
    if not holds:
        raise IllegalSchedule(otherwise)
