"""What drives collectives while a rank computes.

Those of a group go one after the other, in the order in which they were begun; those of different groups side by side.
Which stream drives them changes no bit and no byte.

[Note: Polls or a thread] Polls look for messages where an operator begins. A thread does so while operators compute,
and sleeps where there are none; whoever drives what was begun holds the lock. Measured on two hosts with a core a rank
and 1 Gbit/s between them: of a GPT step's time without overlap, polls leave 0.71 under MPICH and 0.74 under Open MPI, a
thread 0.78 and 0.82. So polls are the default; a thread, which needs MPI_THREAD_MULTIPLE, may be better where cores are
idle: MPIZERO_DRIVE=thread.

[Note: No deadlock] A rank that waits in its list for something else (an agreement, a check of debug mode) drives
nothing meanwhile. It need not: all ranks have the same list, so whoever it waits for is further back, and what that one
must end before it comes here has ended on this rank already.
"""

from __future__ import annotations

import os
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from functools import partial
from typing import final

import numpy as np

from mpizero.comm.collective import Collective
from mpizero.comm.group import Group
from mpizero.errors import ConfigError

SHORTEST_SLEEP, LONGEST_SLEEP = 20e-6, 500e-6  # of the thread, while nothing moves: doubled each time
IDLE = 1.0  # seconds without work after which the thread ends; it is started again when there is some
POLL_EVERY = 100e-6  # seconds between two polls, however often an operator begins
# in vain, before a poll ends: over TCP MPICH moves 64 KiB at a look, and Open MPI looks for bytes at every eighth
LOOKS = 16


@final
class Queues:
    """The collectives under way, by group."""

    def __init__(self) -> None:
        self._by_group: dict[str, deque[Collective]] = {}

    def __bool__(self) -> bool:
        return any(self._by_group.values())

    def add(self, collective: Collective) -> None:
        self._by_group.setdefault(collective.channel.group.name, deque()).append(collective)

    def advance(self) -> bool:
        """Take a step of the first of each queue. Whether one moved."""
        moved = False
        for queue in self._by_group.values():
            if queue:
                moved |= queue[0].advance()
                if queue[0].over:
                    queue.popleft()
        return moved

    def lack(self, collective: Collective) -> str:
        """What `collective` waits for, for people: the first of its queue is the one that has messages under way."""
        first = self._by_group[collective.channel.group.name][0]
        return first.lack() if first is collective else f"{collective.channel} waits for {first.lack()}"

    def clear(self) -> None:
        self._by_group.clear()


class Stream(ABC):
    """Collectives go in by `begin`, and come out by `finish`."""

    def __init__(self) -> None:
        self.queues = Queues()

    @abstractmethod
    def begin(self, collective: Collective) -> None:
        """Set it going as soon as those of its group that were begun before are over."""

    @abstractmethod
    def finish(self, collective: Collective) -> None:
        """Wait until it is over, and write its record. CommunicationError where that takes too long, or MPI fails."""

    def poll(self) -> None:
        """Called now and then by who computes."""

    def abandon(self) -> None:
        """Forget what is under way: the job ends."""
        self.queues.clear()


@final
class Polled(Stream):
    """Goes on where an operator begins."""

    def __init__(self) -> None:
        super().__init__()
        self._due = 0.0

    def begin(self, collective: Collective) -> None:
        self.queues.add(collective)
        self.queues.advance()

    def poll(self) -> None:
        if self.queues and time.perf_counter() >= self._due:
            looks = LOOKS
            while looks:
                looks = LOOKS if self.queues.advance() else looks - 1
            self._due = time.perf_counter() + POLL_EVERY

    def finish(self, collective: Collective) -> None:
        since = time.perf_counter()
        collective.drive(self.queues.advance, partial(self.queues.lack, collective))
        collective.record(since)


@final
class Threaded(Stream):
    """See [Note: Polls or a thread]."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._main_waits = False

    def begin(self, collective: Collective) -> None:
        with self._lock:
            self.queues.add(collective)
            self.queues.advance()
            if self._thread is None:
                self._thread = threading.Thread(target=self._drive, name="communication", daemon=True)
                self._thread.start()
            self._work.notify()

    def finish(self, collective: Collective) -> None:
        since = time.perf_counter()
        self._main_waits = True  # and drives: two would only take turns
        try:
            collective.drive(self._advance, partial(self._lack, collective))
        finally:
            self._main_waits = False
        with self._lock:
            collective.record(since)

    def abandon(self) -> None:
        with self._lock:
            super().abandon()

    def _advance(self) -> bool:
        with self._lock:
            if self._error is not None:
                raise self._error
            return self.queues.advance()

    def _lack(self, collective: Collective) -> str:
        with self._lock:
            return self.queues.lack(collective)

    def _drive(self) -> None:
        """Of the thread: until there has been nothing to do for a while."""
        sleep = SHORTEST_SLEEP
        with np.errstate(over="ignore", invalid="ignore"):
            while True:
                with self._lock:
                    if not self.queues and not self._work.wait_for(lambda: bool(self.queues), IDLE):
                        self._thread = None
                        return
                    try:
                        moved = not self._main_waits and self.queues.advance()
                    except BaseException as error:  # the rank that computes raises it where it waits
                        self._error = error
                        self.queues.clear()
                        continue
                sleep = SHORTEST_SLEEP if moved else min(2 * sleep, LONGEST_SLEEP)
                time.sleep(0 if moved else sleep)


def stream_for(world: Group) -> Stream:
    """Polls, unless MPIZERO_DRIVE says `thread`. ConfigError for other words, and where MPI lets one thread call it."""
    how = os.environ.get("MPIZERO_DRIVE") or "polls"
    if how not in ("polls", "thread"):
        raise ConfigError(f"MPIZERO_DRIVE={how!r} is no way to drive collectives: use polls or thread")
    if how == "polls":
        return Polled()
    if world.thread_level != "MULTIPLE":
        raise ConfigError(f"MPIZERO_DRIVE=thread needs an MPI that several threads may call (MPI_THREAD_MULTIPLE), but "
                          f"{world.library} gives {world.thread_level}: leave it out, and polls drive collectives")
    return Threaded()
