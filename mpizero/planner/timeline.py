"""When each action of a list would run on a device with two streams, one that computes and one that communicates.

The model is FSDP's (arXiv:2304.11277, sec. 3.3 and 3.4.2). The CPU issues the actions in the list's order, and each
stream does its own in that order: an action starts at max(issued, stream free, what it depends on done). A gathered
unit takes its memory when its gather is issued, which may be long before it starts, and gives it back when the last
computation on it is done. With a limit, the CPU waits for that before it issues one gather more. An update needs the
agreement of all ranks: where they agree, the CPU waits for both streams.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from mpizero.errors import ConfigError
from mpizero.layout import Geometry
from mpizero.planner.costs import Costs
from mpizero.schedule.actions import Action, show
from mpizero.schedule.effects import Effect, Freed, Made, Work, flow, kept_params
from mpizero.schedule.values import Name, Value

COMPUTE, COMMUNICATION = "compute", "communication"
LETTER = {"forward": "F", "backward": "B", "all_gather": "A", "reduce_scatter": "R", "all_reduce": "S",
          "all_reduce_shard": "S", "optim_step": "U"}  # by kind of work
LEGEND = ("F forward, B backward, A all-gather, R reduce-scatter, S all-reduce, U update; the number is the segment's "
          "or the unit's")


@dataclass(frozen=True)
class Event:
    """An action on its stream; seconds since the step began."""

    action: Action
    work: Work
    stream: str
    issue: float
    start: float
    end: float


@dataclass(frozen=True)
class Timeline:
    """events: in the order of issue. compute: seconds that the compute stream is busy. peak_gathered: most units
    holding memory at once."""

    events: list[Event]
    finish: float
    compute: float
    peak_gathered: int

    def data(self) -> dict[str, Any]:
        """As JSON has it."""
        events = [{"action": show(event.action), "stream": event.stream, "issue": event.issue, "start": event.start,
                   "end": event.end}
                  for event in self.events]
        return {"finish": self.finish, "compute": self.compute, "peak_gathered": self.peak_gathered, "events": events}


def simulate(actions: Iterable[Action], geometry: Geometry, costs: Costs, *, limit: int | None = None,
             overlap: bool = True, issue_seconds: float = 0.0) -> Timeline:
    """Play `actions`.

    limit: gathered units that may hold memory at once; more do if the list itself gathers more before it frees one.
    overlap: False puts both kinds of work on one stream. issue_seconds: that the CPU spends on each action with work.
    """
    if limit is not None and limit < 1:
        raise ConfigError(f"a limit of {limit} gathered units lets no segment run: give at least 1, or 2 to overlap")
    if not (math.isfinite(issue_seconds) and issue_seconds >= 0):
        raise ConfigError(f"issuing cannot take {issue_seconds} seconds: give a number of at least 0")
    player = _Player(geometry, costs, limit, overlap, issue_seconds)
    for action, effect, changes in flow(actions, geometry):
        gathers = any(isinstance(change, Made) and change.value.name is Name.WHOLE for change in changes)
        player.play(action, effect, gathers)
        for change in changes:
            if isinstance(change, Freed) and change.value.name is Name.WHOLE:
                player.give_back(change.value)
    compute = sum(event.end - event.start for event in player.events if event.stream == COMPUTE)
    return Timeline(player.events, max((event.end for event in player.events), default=0.0), compute,
                    player.peak_gathered)


def _since_start() -> defaultdict[Value, float]:
    return defaultdict(float)


@dataclass
class _Player:
    """The CPU and the streams while a list is played."""

    geometry: Geometry
    costs: Costs
    limit: int | None
    overlap: bool
    issue_seconds: float
    cpu: float = 0.0
    free: dict[str, float] = field(default_factory=lambda: {COMPUTE: 0.0, COMMUNICATION: 0.0})  # stream -> when
    ready: defaultdict[Value, float] = field(default_factory=_since_start)  # when each value was last made or changed
    used: defaultdict[Value, float] = field(default_factory=_since_start)  # when it was last read
    gathered: int = 0  # units that the list has not freed yet
    leaving: list[float] = field(default_factory=list)  # when each of those that it has freed gives its memory back
    peak_gathered: int = 0
    events: list[Event] = field(default_factory=list)

    def play(self, action: Action, effect: Effect, gathers: bool) -> None:
        """Issue `action`, and note when what it makes is ready."""
        if effect.agrees:
            self.cpu = max(self.cpu, *self.free.values())
        if gathers:
            self._take_memory()
        new = self._made(effect)
        after = max((self.ready[value] for value in effect.reads), default=0.0)
        end = after if effect.work is None else self._run(action, effect, effect.work, after)
        self.used.update(dict.fromkeys(effect.reads, end))
        self.ready.update(dict.fromkeys(new, end))

    def _made(self, effect: Effect) -> list[Value]:
        """The values that are new or other afterwards."""
        new = [*effect.makes, *effect.adds, *(effect.becomes or ())[1:]]
        if effect.sums is not None:
            new.append(effect.sums.target)
        if effect.updates is not None:
            new.append(kept_params(effect.updates, self.geometry))
        return new

    def _run(self, action: Action, effect: Effect, work: Work, after: float) -> float:
        stream = COMPUTE if effect.computes else COMMUNICATION
        self.cpu += self.issue_seconds
        before = self.free[stream] if self.overlap else max(self.free.values())
        start = max(self.cpu, before, after)
        self.free[stream] = start + self.costs.of(work)
        self.events.append(Event(action, work, stream, self.cpu, start, self.free[stream]))
        return self.free[stream]

    def _take_memory(self) -> None:
        """Wait until fewer units than the limit hold memory, as far as some are about to give it back."""
        self.leaving = sorted(end for end in self.leaving if end > self.cpu)
        excess = 0 if self.limit is None else self.gathered + len(self.leaving) + 1 - self.limit
        if excess > 0 and self.leaving:
            self.cpu = self.leaving[min(excess, len(self.leaving)) - 1]
            self.leaving = [end for end in self.leaving if end > self.cpu]
        self.gathered += 1
        self.peak_gathered = max(self.peak_gathered, self.gathered + len(self.leaving))

    def give_back(self, whole: Value) -> None:
        """The list frees a gathered unit: its memory is there again when its last reader is done."""
        self.gathered -= 1
        self.leaving.append(max(self.used[whole], self.ready[whole]))


def gantt(timeline: Timeline, width: int = 72, scale: float | None = None) -> str:
    """One row of `width` columns for each stream: `F0FF` is the forward of segment 0, four columns long; see `LEGEND`.

    scale: columns a second, cut off at `width`; None fits the whole step in.
    """
    scale = scale or (width / timeline.finish if timeline.finish else 1.0)
    rows = []
    for stream, name in ((COMPUTE, "compute"), (COMMUNICATION, "comm")):
        row = [" "] * width
        for event in timeline.events:
            if event.stream == stream:
                begin, end = round(event.start * scale), round(event.end * scale)
                row[begin:end] = _label(event.work, end - begin)
        rows.append(f"{name:<7} |{''.join(row[:width])}|")
    return "\n".join(rows)


def _label(work: Work, columns: int) -> str:
    """`B3` filled up with `B` to so many columns."""
    letter = LETTER[work.kind]
    return f"{letter}{work.index}".ljust(columns, letter)[:columns]
