"""When each action of a list would run on a device with two streams, one that computes and one that communicates.

The model is FSDP's (arXiv:2304.11277, sec. 3.3 and 3.4.2). The CPU issues the actions in the list's order, and each stream does its own
in that order: an action starts at max(issued, stream free, what it depends on done). A gathered unit takes its memory when its gather is
issued, which may be long before it starts, and gives it back when the last computation on it is done. With a limit, the CPU waits for that
before it issues one gather more. An update needs the agreement of all ranks: before it the CPU waits for both streams.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from mpizero.errors import ConfigError
from mpizero.layout.units import StageUse
from mpizero.planner.costs import Costs
from mpizero.schedule.actions import (
    Action,
    AllGatherParam,
    AllReduceGrad,
    AllReduceShard,
    Backward,
    Forward,
    OptimStep,
    Phase,
    ReduceScatterGrad,
    Reshard,
    Unshard,
    show,
)

COMPUTE, COMMUNICATION = "compute", "communication"
LETTER = {Forward: "F", Backward: "B", Unshard: "A", AllGatherParam: "A", ReduceScatterGrad: "R", AllReduceGrad: "S", AllReduceShard: "S",
          OptimStep: "U"}
LEGEND = "F forward, B backward, A all-gather, R reduce-scatter, S all-reduce, U update; the number is the stage's or the unit's"


@dataclass(frozen=True)
class Event:
    """An action on its stream; seconds since the step began."""

    action: Action
    stream: str
    issue: float
    start: float
    end: float


@dataclass(frozen=True)
class Timeline:
    """events: in the order of issue. compute: seconds that the compute stream is busy. peak_gathered: most units holding memory at once."""

    events: list[Event]
    finish: float
    compute: float
    peak_gathered: int

    def data(self) -> dict[str, Any]:
        """As JSON has it."""
        events = [{"action": show(event.action), "stream": event.stream, "issue": event.issue, "start": event.start, "end": event.end}
                  for event in self.events]
        return {"finish": self.finish, "compute": self.compute, "peak_gathered": self.peak_gathered, "events": events}


def simulate(actions: Iterable[Action], costs: Costs, *, stages: Sequence[StageUse] | None = None, limit: int | None = None,
             overlap: bool = True, issue_seconds: float = 0.0) -> Timeline:
    """Play `actions`.

    stages: of the wrapping, for the units that each stage reads; None: stage i reads unit i alone. limit: gathered units that may hold
    memory at once; more do if the list itself gathers more before it frees one. overlap: False puts both kinds of action on one stream.
    issue_seconds: that the CPU spends on each action.
    """
    if limit is not None and limit < 1:
        raise ConfigError(f"a limit of {limit} gathered units lets no stage run: give at least 1, or 2 to overlap")
    if not (math.isfinite(issue_seconds) and issue_seconds >= 0):
        raise ConfigError(f"issuing cannot take {issue_seconds} seconds: give a number of at least 0")
    player = _Player(costs, stages, limit, overlap, issue_seconds)
    for action in actions:
        player.play(action)
    compute = sum(event.end - event.start for event in player.events if event.stream == COMPUTE)
    return Timeline(player.events, max((event.end for event in player.events), default=0.0), compute, player.peak_gathered)


def _since_start() -> defaultdict[int, float]:
    return defaultdict(float)


@dataclass
class _Player:
    """The CPU and the streams while a list is played. All dicts: unit -> when it is done."""

    costs: Costs
    stages: Sequence[StageUse] | None
    limit: int | None
    overlap: bool
    issue_seconds: float
    cpu: float = 0.0
    free: dict[str, float] = field(default_factory=lambda: {COMPUTE: 0.0, COMMUNICATION: 0.0})  # stream -> when
    params: defaultdict[int, float] = field(default_factory=_since_start)  # gathered, or updated
    used: defaultdict[int, float] = field(default_factory=_since_start)  # by the last computation; so its gradient is there
    grads: defaultdict[int, float] = field(default_factory=_since_start)  # reduced
    gathered: set[int] = field(default_factory=set)  # units that the list has not freed yet
    leaving: list[float] = field(default_factory=list)  # when each of those that it has freed gives its memory back
    peak_gathered: int = 0
    events: list[Event] = field(default_factory=list)

    def play(self, action: Action) -> None:
        match action:
            case Phase("update"):
                self.cpu = max(self.cpu, *self.free.values())
            case Unshard(unit):
                self._take_memory(unit)
                self.params[unit] = self._run(action, COMMUNICATION, self.params[unit])
            case Reshard(unit):
                self.gathered.remove(unit)
                self.leaving.append(max(self.used[unit], self.params[unit]))
            case Forward(stage, _) | Backward(stage, _):
                units = (stage,) if self.stages is None else self.stages[stage].units
                end = self._run(action, COMPUTE, max((self.params[unit] for unit in units), default=0.0))
                self.used.update(dict.fromkeys(units, end))
            case ReduceScatterGrad(unit) | AllReduceGrad(unit, _) | AllReduceShard(unit):
                self.grads[unit] = self._run(action, COMMUNICATION, self.used[unit])
            case OptimStep(unit):
                self.params[unit] = self._run(action, COMPUTE, self.grads[unit])
            case AllGatherParam(unit):
                self.params[unit] = self._run(action, COMMUNICATION, self.params[unit])

    def _run(self, action: Action, stream: str, after: float) -> float:
        self.cpu += self.issue_seconds
        before = self.free[stream] if self.overlap else max(self.free.values())
        start = max(self.cpu, before, after)
        self.free[stream] = start + self.costs.of(action)
        self.events.append(Event(action, stream, self.cpu, start, self.free[stream]))
        return self.free[stream]

    def _take_memory(self, unit: int) -> None:
        """Wait until fewer units than the limit hold memory, as far as some are about to give it back."""
        self.leaving = sorted(end for end in self.leaving if end > self.cpu)
        excess = 0 if self.limit is None else len(self.gathered) + len(self.leaving) + 1 - self.limit
        if excess > 0 and self.leaving:
            self.cpu = self.leaving[min(excess, len(self.leaving)) - 1]
            self.leaving = [end for end in self.leaving if end > self.cpu]
        self.gathered.add(unit)
        self.peak_gathered = max(self.peak_gathered, len(self.gathered) + len(self.leaving))


def gantt(timeline: Timeline, width: int = 72, scale: float | None = None) -> str:
    """One row of `width` columns for each stream: `F0FF` is the forward of stage 0, four columns long; see `LEGEND`.

    scale: columns a second, cut off at `width`; None fits the whole step in.
    """
    scale = scale or (width / timeline.finish if timeline.finish else 1.0)
    rows = []
    for stream, name in ((COMPUTE, "compute"), (COMMUNICATION, "comm")):
        row = [" "] * width
        for event in timeline.events:
            if event.stream == stream:
                begin, end = round(event.start * scale), round(event.end * scale)
                row[begin:end] = _label(event.action, end - begin)
        rows.append(f"{name:<7} |{''.join(row[:width])}|")
    return "\n".join(rows)


def _label(action: Action, columns: int) -> str:
    """`B3` filled up with `B` to so many columns."""
    number = action.stage if isinstance(action, Forward | Backward) else getattr(action, "unit", "")
    letter = LETTER[type(action)]
    return f"{letter}{number}".ljust(columns, letter)[:columns]
