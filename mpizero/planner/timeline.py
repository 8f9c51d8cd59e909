"""When each action of a list would run: computation on one stream, the collectives of each axis on another.

The list says what overlaps. A collective that stands in it as it is has the device to itself; between Begin and End it
goes on beside what is computed; so does an update that is begun, on the host. Each stream does its work in the list's
order: it starts at max(issued, stream free, what it reads made), and End makes computation wait.

[Note: Who issues] The ranks of this project compute themselves: what is issued is done before the next action, or at
its End. The CPU of a GPU runs ahead of its device (FSDP, arXiv:2304.11277, sec. 3.3 and 3.4.2): it issues one action
after the other, and waits for AwaitFree and Agree alone. Then a gathered unit takes its memory when its gather is
issued, which may be long before it starts, and gives it back when the last computation on it is done.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from mpizero.errors import ConfigError
from mpizero.layout import DEVICE, Axis, Geometry
from mpizero.planner.costs import Costs
from mpizero.schedule.actions import Action, Begin, show
from mpizero.schedule.effect import Effect, Work
from mpizero.schedule.flow import Change, Freed, Made, flow
from mpizero.schedule.places import kept_params
from mpizero.schedule.values import Name, Value

# streams; replicas: where state is sharded; tensor: of ranks that compute a batch together; down, up: of the links
# between tiers; host: of updates that are begun
COMPUTE, COMMUNICATION, REPLICAS, DOWN, UP, ON_HOST = "compute", "communication", "replicas", "down", "up", "host"
TENSOR = "tensor"
NAMES = {COMPUTE: "compute", COMMUNICATION: "comm", REPLICAS: "replica", TENSOR: "tensor", DOWN: "down",  # in charts
         UP: "up", ON_HOST: "host"}
LETTER = {"forward": "F", "recompute": "C", "backward": "B", "all_gather": "A", "reduce_scatter": "R",
          "all_reduce": "S", "all_reduce_shard": "S", "all_reduce_copied": "S", "optim_step": "U", "broadcast": "A",
          "reduce": "R", "download": "v", "upload": "^",
          "download_kept": "v", "upload_kept": "^", "all_reduce_activation": "S", "all_reduce_input_grad": "S",
          "gather_kept": "A", "all_gather_loss": "A"}  # by kind of work
# a broadcast is an A too, and a reduction to the owner an R
LEGEND = ("F forward, C computed again, B backward, A all-gather, R reduce-scatter, S all-reduce, U update, v to the "
          "host, ^ from it; the number is the segment's or the unit's")


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
    """events: in the order of issue. peak_gathered: most units holding memory at once."""

    events: list[Event]
    finish: float
    peak_gathered: int

    @property
    def streams(self) -> list[str]:
        """Compute, and those that something is sent on."""
        found = {event.stream for event in self.events}
        others = (REPLICAS, TENSOR, DOWN, UP, ON_HOST)
        return [COMPUTE, COMMUNICATION, *(stream for stream in others if stream in found)]

    def busy(self, *streams: str) -> float:
        """Seconds of all work on these streams."""
        return math.fsum(event.end - event.start for event in self.events if event.stream in streams)

    @property
    def compute(self) -> float:
        return self.busy(COMPUTE)

    @property
    def communication(self) -> float:
        return self.busy(COMMUNICATION, REPLICAS, TENSOR)

    def data(self) -> dict[str, Any]:
        """As JSON has it."""
        events = [{"action": show(event.action), "stream": event.stream, "issue": event.issue, "start": event.start,
                   "end": event.end}
                  for event in self.events]
        return {"finish": self.finish, "compute": self.compute, "peak_gathered": self.peak_gathered, "events": events}


def simulate(actions: Iterable[Action], geometry: Geometry, costs: Costs, *, ahead: bool = True,
             issue_seconds: float = 0.0, after: Sequence[Action] = ()) -> Timeline:
    """Play `actions`. ahead: whether the CPU runs ahead of its device, see [Note: Who issues]. issue_seconds: that it
    spends on each action with work. after: what was done before, from rest on: what of it goes on meanwhile is told
    too, and may have begun before 0. An update that is left under way is told whole, but not waited for."""
    if not (math.isfinite(issue_seconds) and issue_seconds >= 0):
        raise ConfigError(f"issuing cannot take {issue_seconds} seconds: give a number of at least 0")
    player = _Player(geometry, costs, ahead, issue_seconds)
    begin = 0.0
    for place, (action, effect, changes) in enumerate(flow([*after, *actions], geometry)):
        if place == len(after):
            begin, player.peak_gathered = player.done, player.gathered
        player.take_memory(changes)
        player.play(action, effect)
        player.give_back(changes)
    events = [replace(event, issue=event.issue - begin, start=event.start - begin, end=event.end - begin)
              for event in player.events if event.end > begin or event.issue >= begin]
    return Timeline(events if after else player.events, player.done - begin, player.peak_gathered)


def _since_start() -> defaultdict[Any, float]:
    return defaultdict(float)


@dataclass
class _Player:
    """The CPU and the streams while a list is played."""

    geometry: Geometry
    costs: Costs
    ahead: bool
    issue_seconds: float
    cpu: float = 0.0
    free: defaultdict[str, float] = field(default_factory=_since_start)  # stream -> when
    ready: defaultdict[Value, float] = field(default_factory=_since_start)  # when each value was last made or changed
    used: defaultdict[Value, float] = field(default_factory=_since_start)  # when it was last read
    over: dict[Effect, float] = field(default_factory=dict)  # when each collective that was begun is
    gathered: int = 0  # units that the list has not freed yet
    left: dict[Value, float] = field(default_factory=dict)  # when each that it has freed gives its memory back
    leaving: list[float] = field(default_factory=list)  # the same, of those that still hold it
    peak_gathered: int = 0
    events: list[Event] = field(default_factory=list)

    @property
    def done(self) -> float:
        """When all is over but updates of the host that nobody has waited for."""
        return max((free for stream, free in self.free.items() if stream != ON_HOST), default=0.0)

    def play(self, action: Action, effect: Effect) -> None:
        """Issue `action`, and note when what it makes is ready."""
        if effect.agrees:
            self.cpu = max(self.cpu, self.done)
        if effect.awaits is not None:
            self.cpu = max(self.cpu, self.left.get(effect.awaits, 0.0))
        if effect.ends is not None:
            end = self._wait(self.over.pop(effect.ends))
        elif effect.work is not None:
            end = self._run(action, effect, effect.work)
        else:
            end = self._after(effect)
        self.used.update(dict.fromkeys(effect.reads, end))
        self.ready.update(dict.fromkeys(self._made(effect), end))

    def _after(self, effect: Effect) -> float:
        return max((self.ready[value] for value in effect.reads), default=0.0)

    def _made(self, effect: Effect) -> list[Value]:
        """The values that are new or other afterwards."""
        new = [*effect.makes, *effect.adds, *(new for _, new in effect.becomes)]
        if effect.refreshes is not None:
            new.append(kept_params(effect.refreshes, self.geometry))
        return new

    def _run(self, action: Action, effect: Effect, work: Work) -> float:
        """When it has ended. A collective that is not begun alone has all streams to itself."""
        stream, alone = self._stream(effect), not effect.computes and effect.begins is None
        self.cpu += self.issue_seconds
        before = self.done if alone else self.free[stream]
        start = max(self.cpu, before, self._after(effect))
        end = self.free[stream] = start + self.costs.of(work)
        begun = action.action if isinstance(action, Begin) else action
        self.events.append(Event(begun, work, stream, self.cpu, start, end))
        if effect.begins is not None:
            self.over[effect.begins] = end
        else:
            self._wait(end)
        return end

    def _wait(self, until: float) -> float:
        """Computation goes on then; so does the CPU, unless it runs ahead."""
        self.free[COMPUTE] = max(self.free[COMPUTE], until)
        if not self.ahead:
            self.cpu = max(self.cpu, until)
        return until

    def _stream(self, effect: Effect) -> str:
        if effect.updates is not None and effect.begins is not None:
            return ON_HOST
        if effect.moves:
            return DOWN if effect.carries[0].source is DEVICE else UP
        if effect.shares is not None or effect.sends is not None and effect.sends.axis is Axis.TENSOR:
            return TENSOR
        if effect.sends is None:
            return COMPUTE
        return REPLICAS if effect.sends.axis is Axis.REPLICATE and self.geometry.shards > 1 else COMMUNICATION

    def take_memory(self, changes: Iterable[Change]) -> None:
        """Units that a gather makes hold memory from its issue on."""
        new = sum(isinstance(change, Made) and change.value.name is Name.WHOLE for change in changes)
        if new:
            self.leaving = [end for end in self.leaving if end > self.cpu]
            self.gathered += new
            self.peak_gathered = max(self.peak_gathered, self.gathered + len(self.leaving))

    def give_back(self, changes: Iterable[Change]) -> None:
        """Of units that the list frees: their memory is there again when their last reader is done."""
        for change in changes:
            if isinstance(change, Freed) and change.value.name is Name.WHOLE:
                whole = change.value
                self.gathered -= 1
                self.left[whole] = max(self.used[whole], self.ready[whole])
                self.leaving.append(self.left[whole])


def gantt(timeline: Timeline, width: int = 72, scale: float | None = None) -> str:
    """One row of `width` columns for each stream: `F0FF` is the forward of segment 0, four columns long; see `LEGEND`.

    scale: columns a second, cut off at `width`; None fits the whole step in.
    """
    scale = scale or (width / timeline.finish if timeline.finish else 1.0)
    rows = []
    for stream in timeline.streams:
        row = [" "] * width
        for event in timeline.events:
            if event.stream == stream:
                begin, end = round(event.start * scale), round(event.end * scale)
                row[begin:end] = _label(event.work, end - begin)
        rows.append(f"{NAMES[stream]:<7} |{''.join(row[:width])}|")
    return "\n".join(rows)


def _label(work: Work, columns: int) -> str:
    """`B3` filled up with `B` to so many columns."""
    letter = LETTER[work.kind]
    return f"{letter}{work.index}".ljust(columns, letter)[:columns]
