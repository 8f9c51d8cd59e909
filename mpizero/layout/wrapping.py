"""Wrapping: which parameters are gathered together (units), and which units each segment of computation needs.

The choice is the caller's, as with PyTorch's `fully_shard`: a function from parameter name to unit name, or lists of
names.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from mpizero.errors import ConfigError
from mpizero.layout.flat import FlatLayout, flatten
from mpizero.layout.spec import ModelSpec

Policy = Callable[[str], str] | Sequence[Iterable[str]]


@dataclass(frozen=True)
class SegmentUse:
    """A segment as the schedule sees it."""

    index: int
    name: str
    units: tuple[int, ...]  # gathered for this segment; a tied unit stands in several segments
    meets: tuple[int, ...]  # units that no earlier segment uses
    trains: tuple[int, ...]  # units that are not frozen: its backward adds to their gradients
    backward: bool  # whether it has one: it or an earlier segment trains
    tiles: tuple[int, ...] = ()  # of its units, those that are a tile of a parameter
    continues: bool = False  # whether it is a part of what the segment before it is a part of
    sums: bool = False  # whether its output is a summand, of which each tensor parallel rank has another
    sums_back: bool = False  # the same of the gradient of its input

    @property
    def completes(self) -> tuple[int, ...]:
        """Units whose gradient is complete after this segment's backward."""
        return tuple(unit for unit in self.meets if unit in self.trains)


@dataclass(frozen=True)
class Wrapping:
    """The units of a model on `ranks` ranks, and the segments that use them."""

    units: tuple[FlatLayout, ...]
    segments: tuple[SegmentUse, ...]
    divided: bool = False  # whether tensor parallel ranks have a part each of what the loss reads

    @property
    def numel(self) -> int:
        """psi: elements without padding."""
        return sum(unit.numel for unit in self.units)

    @property
    def padded_numel(self) -> int:
        return sum(unit.padded_numel for unit in self.units)

    @property
    def frozen_numel(self) -> int:
        """Of psi, what does not train."""
        return sum(unit.numel for unit in self.units if unit.frozen)

    @functools.cached_property
    def trained(self) -> tuple[int, ...]:
        """The units that are not frozen."""
        return tuple(index for index, unit in enumerate(self.units) if not unit.frozen)


def wrap(spec: ModelSpec, ranks: int, policy: Policy | None = None) -> Wrapping:
    """Group the parameters of `spec` into units.

    policy: None for a unit per segment (a tied parameter belongs to the first segment that reads it); a function from
    parameter name to unit name; or lists of parameter names. Every parameter must fall into exactly one unit. Of those
    that fall into one, the frozen ones make a unit of their own, and so do those that tensor parallel ranks hold alike:
    so what is kept and sent of them is exact. Each tile of a parameter is a unit, whatever the policy.
    """
    _check_names(spec)
    unit_of = _apart(spec, _copied_apart(spec, _assignment(spec, policy)))
    members: dict[str, list] = {}
    for param in spec.pieces:
        members.setdefault(unit_of[param.name], []).append(param)
    index = {name: i for i, name in enumerate(members)}
    used = [tuple(dict.fromkeys(index[unit_of[name]] for name in segment.params)) for segment in spec.segments]
    read = {unit for units in used for unit in units}
    idle = [name for name in members if index[name] not in read]
    if idle:
        unread = ", ".join(param.name for name in idle for param in members[name])
        raise ConfigError(f"no segment of the model reads {unread}: let one read it, or leave it out of the model")
    units = tuple(flatten(name, params, ranks) for name, params in members.items())
    trains = [tuple(u for u in each if not units[u].frozen) for each in used]
    first = {u: i for i, each in reversed(list(enumerate(used))) for u in each}
    segments = tuple(SegmentUse(i, segment.name, used[i],
                                tuple(u for u in used[i] if first[u] == i),
                                trains[i], any(trains[:i + 1]) or not units,
                                tuple(u for u in used[i] if units[u].tile),
                                i > 0 and segment.of is not None and segment.of == spec.segments[i - 1].of,
                                segment.sums, segment.sums_back)
                     for i, segment in enumerate(spec.segments))
    return Wrapping(units, segments, spec.divided)


def _apart(spec: ModelSpec, unit_of: dict[str, str]) -> dict[str, str]:
    """The same with another unit for the frozen parameters of a unit that has others too. ConfigError where all are."""
    trained = {unit_of[param.name] for param in spec.pieces if not param.frozen}
    if spec.params and not trained:
        raise ConfigError(f"all {len(spec.params)} parameters are frozen, so there is nothing to train: `freeze` fewer "
                          "of them")
    return {param.name: f"{unit_of[param.name]} frozen" if param.frozen and unit_of[param.name] in trained
            else unit_of[param.name] for param in spec.pieces}


def _copied_apart(spec: ModelSpec, unit_of: dict[str, str]) -> dict[str, str]:
    """The same with another unit for the copied parameters of a unit that has others too."""
    divided = {unit_of[param.name] for param in spec.pieces if not param.copied}
    return {param.name: f"{unit_of[param.name]} copied" if param.copied and unit_of[param.name] in divided
            else unit_of[param.name] for param in spec.pieces}


def _assignment(spec: ModelSpec, policy: Policy | None) -> dict[str, str]:
    """Name of a parameter or tile -> unit name."""
    tiles = {piece.name: piece.name for piece in spec.pieces if piece.tile}
    names = [param.name for param in spec.params if param.tiles == 1]
    return tiles | _by_policy(spec, policy, names)


def _by_policy(spec: ModelSpec, policy: Policy | None, names: list[str]) -> dict[str, str]:
    if policy is None:
        first: dict[str, str] = {}
        for segment in spec.segments:
            for name in segment.params:
                first.setdefault(name, segment.of or segment.name)
        return {name: first.get(name, name) for name in names}
    if callable(policy):
        return {name: policy(name) for name in names}
    listed = [(name, f"unit{i}") for i, group in enumerate(policy) for name in group]
    unit_of, times = dict(listed), Counter(name for name, _ in listed)
    wrong = sorted(set(names) ^ set(unit_of)) or sorted(name for name in names if times[name] > 1)
    if wrong:
        raise ConfigError(f"wrapping lists must name every parameter exactly once; look at: {', '.join(wrong)}")
    return unit_of


def _check_names(spec: ModelSpec) -> None:
    """ConfigError unless every parameter has its own name, and segments read only these."""
    names = Counter(param.name for param in spec.pieces)
    if twice := [name for name, times in names.items() if times > 1]:
        raise ConfigError(f"the model has more than one parameter {', '.join(twice)}: give each its own name")
    for segment in spec.segments:
        if strangers := [name for name in segment.params if name not in names]:
            raise ConfigError(f"segment {segment.name} reads {', '.join(strangers)}, which the model does not have: "
                              "add a ParamSpec of that name")
