"""Wrapping: which parameters are gathered together (units), and which units each segment of computation needs.

The choice is the caller's, as with PyTorch's `fully_shard`: a function from parameter name to unit name, or lists of
names.
"""

from __future__ import annotations

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
    # units whose gradient is complete after this segment's backward: no earlier segment uses them
    completes: tuple[int, ...]


@dataclass(frozen=True)
class Wrapping:
    """The units of a model on `ranks` ranks, and the segments that use them."""

    units: tuple[FlatLayout, ...]
    segments: tuple[SegmentUse, ...]

    @property
    def numel(self) -> int:
        """psi: elements without padding."""
        return sum(unit.numel for unit in self.units)

    @property
    def padded_numel(self) -> int:
        return sum(unit.padded_numel for unit in self.units)


def wrap(spec: ModelSpec, ranks: int, policy: Policy | None = None) -> Wrapping:
    """Group the parameters of `spec` into units.

    policy: None for a unit per segment (a tied parameter belongs to the first segment that reads it); a function from
    parameter name to unit name; or lists of parameter names. Every parameter must fall into exactly one unit.
    """
    _check_names(spec)
    unit_of = _assignment(spec, policy)
    members: dict[str, list] = {}
    for param in spec.params:
        members.setdefault(unit_of[param.name], []).append(param)
    index = {name: i for i, name in enumerate(members)}
    used = [tuple(dict.fromkeys(index[unit_of[name]] for name in segment.params)) for segment in spec.segments]
    idle = [name for name in members if not any(index[name] in units for units in used)]
    if idle:
        unread = ", ".join(param.name for name in idle for param in members[name])
        raise ConfigError(f"no segment of the model reads {unread}: let one read it, or leave it out of the model")
    segments = tuple(SegmentUse(i, segment.name, used[i],
                                tuple(u for u in used[i] if not any(u in earlier for earlier in used[:i])))
                     for i, segment in enumerate(spec.segments))
    return Wrapping(tuple(flatten(name, params, ranks) for name, params in members.items()), segments)


def _assignment(spec: ModelSpec, policy: Policy | None) -> dict[str, str]:
    """Parameter name -> unit name."""
    names = [param.name for param in spec.params]
    if policy is None:
        first: dict[str, str] = {}
        for segment in spec.segments:
            for name in segment.params:
                first.setdefault(name, segment.name)
        return {name: first.get(name, name) for name in names}
    if callable(policy):
        return {name: policy(name) for name in names}
    listed = [(name, f"unit{i}") for i, group in enumerate(policy) for name in group]
    unit_of = dict(listed)
    wrong = (sorted(set(names) ^ set(unit_of))
             or sorted(name for name in names if sum(name == other for other, _ in listed) > 1))
    if wrong:
        raise ConfigError(f"wrapping lists must name every parameter exactly once; look at: {', '.join(wrong)}")
    return unit_of


def _check_names(spec: ModelSpec) -> None:
    """ConfigError unless every parameter has its own name, and segments read only these."""
    names = Counter(param.name for param in spec.params)
    if twice := [name for name, times in names.items() if times > 1]:
        raise ConfigError(f"the model has more than one parameter {', '.join(twice)}: give each its own name")
    for segment in spec.segments:
        if strangers := [name for name in segment.params if name not in names]:
            raise ConfigError(f"segment {segment.name} reads {', '.join(strangers)}, which the model does not have: "
                              "add a ParamSpec of that name")
