"""Links between tiers: real copies, one after the other on each link, counted and timed.

[Note: Who copies] A move that stands in the list as it is is done by the rank itself. One that was begun is done by a
thread of the link, like the copy engine of a device: NumPy copies large blocks without holding the interpreter. Storage
is taken and given back by the rank alone, so bytes never depend on the thread.

[Note: A slower link] Host and device are one memory here. `rate` makes a link as slow as another machine's: after each
chunk whoever copies sleeps until a link of that rate would be done. Nothing passes a link before somebody sends it, so
a link that had nothing to do has no credit, however long that was: else moves of less than a chunk would pass for
nothing. Inside a move there is credit for a chunk, so one that was late, or a long sleep, costs no bandwidth.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any, TypeVar, final

import numpy as np

from mpizero.layout import NVME, Tier
from mpizero.layout.links import CHUNK, LINKS, Way, chunk_numel

FILE_THREADS = 4  # of a link to or from files: as many requests at a time
POLL_EVERY = 500e-6  # seconds between two looks at something else, while a rank waits for a link

Array = np.ndarray
Result = TypeVar("Result")


@dataclass(frozen=True)
class Moved:
    """One move, for the log. seconds: from its first byte to its last. exposed: of the time, how long the rank waited.
    begin_s: perf_counter."""

    link: str
    source: Tier
    target: Tier
    what: str
    unit: str
    nbytes: int
    begin_s: float
    seconds: float
    exposed: float


def make_links(limits: Mapping[Way, float], poll: Callable[[], None]) -> dict[Way, Link]:
    """One for each way: both directions go on at a time."""
    return {way: Link(f"{above}-{below}", way, limits.get(way), poll, FILE_THREADS if below is NVME else 1)
            for above, below in LINKS.values() for way in ((above, below), (below, above))}


@final
class Link:
    """One way between two tiers, of the link that `name` names in both directions. rate: bytes a second at most; None:
    as fast as it goes. poll: called now and then by a rank that waits. records: of moves that are over, until somebody
    clears them."""

    def __init__(self, name: str, way: Way, rate: float | None = None, poll: Callable[[], None] = lambda: None,
                 threads: int = 1):
        self.name, self.way, self.rate, self.poll = name, way, rate, poll
        self.records: list[Moved] = []
        self._free, self._lock = 0.0, threading.Lock()  # when a link of this rate has done what it was given
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix=name)

    def move(self, source: Array, target: Array, what: str, unit: str = "",
             put: Callable[[Array, Array], object] = np.copyto) -> Transfer:
        """A move of a flat array into another of its size and dtype, not yet under way. put: (target, source) of each
        chunk: what copies, or adds."""
        assert source.shape == target.shape and source.dtype == target.dtype, (source.shape, target.shape)
        chunks = ((target[part], source[part]) for part in _chunks(source))
        return Transfer(self, chunks, source.nbytes, what, unit, put, (source, target))

    def submit(self, act: Callable[..., Result], *arguments: Any) -> Future[Result]:
        """In a thread of the link, after what it was given before."""
        return self._threads.submit(act, *arguments)

    def note(self, what: str, unit: str, nbytes: int, begin: float, end: float, exposed: float) -> None:
        """A move that is over."""
        self.records.append(Moved(self.name, *self.way, what, unit, nbytes, begin, end - begin, exposed))

    def passed(self, nbytes: int, since: float) -> None:
        """So many bytes have been copied, of a move that began at `since` (perf_counter): sleep until the link would
        have carried them."""
        if self.rate is not None:
            with self._lock:
                self._free = max(self._free, since, time.perf_counter() - CHUNK / self.rate) + nbytes / self.rate
                until = self._free
            time.sleep(max(0.0, until - time.perf_counter()))


@final
class Transfer:
    """One move of `nbytes`, by chunks (target, source), which come one after the other: what is in the target may be on
    its way on when the next is asked for. arrays: what lives until it is finished, however early the link is done."""

    def __init__(self, link: Link, chunks: Iterable[tuple[Array, Array]], nbytes: int, what: str, unit: str,
                 put: Callable[[Array, Array], object] = np.copyto, arrays: tuple[Array, ...] = ()):
        self.arrays = arrays
        self.link, self.chunks, self.nbytes, self.what, self.unit, self.put = link, chunks, nbytes, what, unit, put
        self._future: Future[None] | None = None
        self._first = self._last = 0.0

    def begin(self) -> None:
        """Let the link do it."""
        treatment = np.geterr()

        def run() -> None:
            with np.errstate(**treatment):  # a thread's own
                self.copy()

        self._future = self.link.submit(run)

    def finish(self) -> None:
        """Do it, or wait until the link has; then it stands in the link's records."""
        since = time.perf_counter()
        if self._future is None:
            self.copy()
        else:
            awaited(self._future, self.link.poll)  # raises what the copy raised
        exposed = time.perf_counter() - since
        self.link.note(self.what, self.unit, self.nbytes, self._first, self._last, exposed)
        self.arrays = ()

    def copy(self) -> None:
        """All of it, chunk by chunk."""
        self._first = time.perf_counter()
        for target, source in self.chunks:
            self.put(target, source)
            self.link.passed(source.nbytes, self._first)
        self._last = time.perf_counter()


def awaited(future: Future[Result], poll: Callable[[], None] | None) -> Result:
    """Its result, or what it raised; a rank looks at something else now and then meanwhile."""
    while not future.done():
        if poll is not None:
            poll()
        wait([future], None if poll is None else POLL_EVERY)
    return future.result()


def _chunks(array: Array) -> Iterator[slice]:
    step = max(1, chunk_numel(array.size, array.itemsize))
    for start in range(0, array.size, step):
        yield slice(start, min(start + step, array.size))
