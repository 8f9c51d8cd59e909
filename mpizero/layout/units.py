"""Wrapping: which parameters are gathered together (units), and which units each stage of computation needs.

The choice is the caller's, as with PyTorch's `fully_shard`: a function from parameter name to unit name, or lists of names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from mpizero.errors import ConfigError
from mpizero.layout.flat import FlatLayout, flatten
from mpizero.layout.spec import ModelSpec

Policy = Callable[[str], str] | Sequence[Iterable[str]]


@dataclass(frozen=True)
class StageUse:
    """A stage as the schedule sees it."""

    index: int
    name: str
    units: tuple[int, ...]  # gathered for this stage; a tied unit stands in several stages
    completes: tuple[int, ...]  # units whose gradient is complete after this stage's backward: no earlier stage uses them


@dataclass(frozen=True)
class Wrapping:
    """The units of a model on `ranks` ranks, and the stages that use them."""

    units: tuple[FlatLayout, ...]
    stages: tuple[StageUse, ...]

    @property
    def numel(self) -> int:
        """psi: elements without padding."""
        return sum(unit.numel for unit in self.units)

    @property
    def padded_numel(self) -> int:
        return sum(unit.padded_numel for unit in self.units)


def wrap(spec: ModelSpec, ranks: int, policy: Policy | None = None) -> Wrapping:
    """Group the parameters of `spec` into units.

    policy: None for a unit per stage (a tied parameter belongs to the first stage that reads it); a function from parameter
    name to unit name; or lists of parameter names. Every parameter must fall into exactly one unit.
    """
    unit_of = _assignment(spec, policy)
    members: dict[str, list] = {}
    for param in spec.params:
        members.setdefault(unit_of[param.name], []).append(param)
    index = {name: i for i, name in enumerate(members)}
    used = [tuple(dict.fromkeys(index[unit_of[name]] for name in stage.params)) for stage in spec.stages]
    stages = tuple(StageUse(i, stage.name, used[i], tuple(u for u in used[i] if not any(u in earlier for earlier in used[:i])))
                   for i, stage in enumerate(spec.stages))
    return Wrapping(tuple(flatten(name, params, ranks) for name, params in members.items()), stages)


def _assignment(spec: ModelSpec, policy: Policy | None) -> dict[str, str]:
    """Parameter name -> unit name."""
    names = [param.name for param in spec.params]
    if policy is None:
        first: dict[str, str] = {}
        for stage in spec.stages:
            for name in stage.params:
                first.setdefault(name, stage.name)
        return {name: first[name] for name in names}
    if callable(policy):
        return {name: policy(name) for name in names}
    listed = [(name, f"unit{i}") for i, group in enumerate(policy) for name in group]
    unit_of = dict(listed)
    wrong = sorted(set(names) ^ set(unit_of)) or sorted(name for name in names if sum(name == other for other, _ in listed) > 1)
    if wrong:
        raise ConfigError(f"wrapping lists must name every parameter exactly once; look at: {', '.join(wrong)}")
    return unit_of
