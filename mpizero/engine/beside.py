"""Updates that go on beside the next step: in a thread of the host, one after the other."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import final

import numpy as np

from mpizero.memory.links import awaited


@dataclass(frozen=True)
class Updated:
    """One update that went on beside other work, for the log. seconds: that it took; exposed: for how long the rank
    waited. begin_s: perf_counter."""

    unit: str
    begin_s: float
    seconds: float
    exposed: float


@final
class Host:
    """The thread, and the records of updates that are over, until somebody clears them. poll: called now and then by a
    rank that waits."""

    def __init__(self, poll: Callable[[], None]):
        self.poll, self.records = poll, list[Updated]()
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="host")


@final
class Beside:
    """One update. go: does it, with arrays that belong to it until it is finished."""

    def __init__(self, host: Host, unit: str, go: Callable[[], None]):
        self.host, self.unit, self._go = host, unit, go
        self._future: Future[tuple[float, float]] | None = None

    def begin(self) -> None:
        """Let the thread do it, after those that were begun before."""
        treatment = np.geterr()

        def run() -> tuple[float, float]:
            begin = time.perf_counter()
            with np.errstate(**treatment):  # a thread's own
                self._go()
            return begin, time.perf_counter() - begin

        self._future = self.host.thread.submit(run)

    def finish(self) -> None:
        """Wait until it is over; then it stands in the records."""
        assert self._future is not None, "it was not begun"
        since = time.perf_counter()
        begin, seconds = awaited(self._future, self.host.poll)
        self.host.records.append(Updated(self.unit, begin, seconds, time.perf_counter() - since))
