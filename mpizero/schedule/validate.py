"""Is a list of actions legal? Reads the list alone, so it finds what no run would show: a stale replica does not crash."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from mpizero.layout.placement import SHARDED, Placement
from mpizero.layout.units import Wrapping
from mpizero.schedule.actions import (
    Action,
    AllGatherParam,
    AllReduceGrad,
    AllReduceShard,
    Axis,
    Backward,
    Forward,
    FreeGrad,
    OptimStep,
    Phase,
    ReduceScatterGrad,
    Reshard,
    Unshard,
    show,
)


class IllegalSchedule(AssertionError):
    """An action at a moment when it must not come. Names the action, its place in the list, and the rule."""


@dataclass
class _UnitState:
    gathered: bool = False  # whole parameters are there for a moment
    current: bool = True  # what is kept is what the optimizer holds
    partial: bool = False  # an unreduced gradient of this rank's samples
    reduced: bool = False  # a gradient summed over the shard group
    summed: bool = False  # and across the replicas
    stepped: bool = False


@dataclass
class _Checker:
    wrapping: Wrapping
    placement: Placement
    replicas: int
    shards: int
    limit: int | None = None
    most: int = 0  # units gathered at once since the last computation
    units: list[_UnitState] = field(init=False)
    forwards: set[tuple[int, int]] = field(default_factory=set)  # (stage, mb) whose backward is due

    def __post_init__(self) -> None:
        self.units = [_UnitState() for _ in self.wrapping.units]

    def act(self, action: Action) -> None:
        match action:
            case Phase():
                pass
            case Forward(stage, mb, save):
                self._reads(stage)
                if save:
                    _rule((stage, mb) not in self.forwards, "its backward must come first")
                    self.forwards.add((stage, mb))
            case Backward(stage, mb):
                self._reads(stage)
                _rule((stage, mb) in self.forwards, "its forward must come first")
                self.forwards.remove((stage, mb))
                for unit in self.wrapping.stages[stage].units:
                    self.units[unit].partial = True
            case _:
                self._on_unit(action, self.units[action.unit])

    def _on_unit(self, action: Action, unit: _UnitState) -> None:
        match action:
            case Unshard():
                _rule(self.placement.params is SHARDED, "its parameters are kept whole")
                _rule(not unit.gathered, "it is gathered already")
                unit.gathered = True
                self.most = max(self.most, sum(other.gathered for other in self.units))
            case Reshard():
                _rule(unit.gathered, "it is not gathered")
                unit.gathered = False
            case ReduceScatterGrad() | AllReduceGrad():
                _rule(unit.partial, "it has no unreduced gradient: a gradient is reduced once")
                _rule(not self._due(action.unit), "its gradient is not complete: a stage that uses it is still to come")
                unit.partial, unit.reduced = False, True
                unit.summed = self.replicas == 1 or (isinstance(action, AllReduceGrad) and action.axis is Axis.REPLICATE)
            case AllReduceShard():
                _rule(unit.reduced and not unit.summed, "its shard is not there, or is summed across the replicas already")
                unit.summed = True
            case OptimStep():
                _rule(unit.reduced and not unit.partial, "its gradient is not reduced")
                _rule(unit.summed, "its gradient is not summed across the replicas")
                _rule(not unit.stepped and not unit.gathered, "it is updated already, or gathered")
                unit.stepped = True
                unit.current = self.placement.params is self.placement.optim or self.shards == 1
            case AllGatherParam():
                _rule(unit.stepped, "nothing new to gather")
                unit.current = True
            case FreeGrad():
                _rule(unit.reduced, "it has no reduced gradient")
                unit.reduced = False

    def _reads(self, stage: int) -> None:
        units = self.wrapping.stages[stage].units
        _rule(self.limit is None or self.most <= max(self.limit, len(units)), f"{self.most} units were gathered at once: above the limit")
        self.most = 0
        for unit in units:
            state = self.units[unit]
            _rule(state.gathered or self.placement.params is not SHARDED, f"unit {unit} is not gathered")
            _rule(state.current, f"unit {unit} is stale: gather it after the update")

    def _due(self, unit: int) -> bool:
        return any(unit in self.wrapping.stages[stage].units for stage, _ in self.forwards)

    def finish(self) -> None:
        _rule(not self.forwards, f"no backward for (stage, mb) {sorted(self.forwards)}")
        for index, unit in enumerate(self.units):
            _rule(not unit.gathered, f"unit {index} is still gathered")
            _rule(unit.current, f"unit {index} is stale: gather it after the update")
            _rule(not unit.partial and not unit.reduced, f"unit {index} still has a gradient")


def validate(actions: Iterable[Action], wrapping: Wrapping, placement: Placement, replicas: int = 1, shards: int = 1,
             limit: int | None = None) -> None:
    """Raise `IllegalSchedule` unless every action is legal where it stands and the resting placement is reached again.

    limit: units that may be gathered at once, unless a stage needs more.
    """
    checker = _Checker(wrapping, placement, replicas, shards, limit)
    for place, action in enumerate(actions):
        try:
            checker.act(action)
        except IllegalSchedule as error:
            raise IllegalSchedule(f"action {place}, {show(action)}: {error}") from None
    try:
        checker.finish()
    except IllegalSchedule as error:
        raise IllegalSchedule(f"at the end of the step: {error}") from None


def _rule(holds: bool, otherwise: str) -> None:
    if not holds:
        raise IllegalSchedule(otherwise)
