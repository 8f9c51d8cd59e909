"""Waiting for messages without burning a core that a neighbour rank needs.

A blocking MPI wait spins. With more ranks than cores that steals the core from the very rank that should send. So: test
a few times, then let others run, then sleep for longer and longer.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from mpizero.errors import CommunicationError, ConfigError
from mpizero.interrupt import complain

TESTS = 200  # before the first yield, about 100 us: with a core for each rank, most messages come meanwhile
CROWDED_TESTS = 20  # the same with more ranks than cores: the message may come from a rank that waits for this core
YIELDS = 50  # of the core, before the first sleep
LATENESS = 0.05  # sleeps last this share of the time waited so far, so that a message is noticed at most so late,
SHORTEST_SLEEP = 10e-6  # but from this
LONGEST_SLEEP = 2e-3  # to this many seconds
TESTS_PER_WAKE = 3  # one is not enough: MPICH's TCP makes progress a little at a time
DEFAULT_TIMEOUT = 1800.0  # seconds

_watch: Callable[[], None] | None = None


def watch(look: Callable[[], None] | None) -> None:
    """Call `look` now and then in waits that last; it may raise. None to stop.

    For the end of a job: another rank may be leaving.
    """
    global _watch
    _watch = look


def timeout() -> float:
    """Seconds a rank waits for its peers: MPIZERO_TIMEOUT, or half an hour.

    ConfigError if it is not a positive number.
    """
    text = os.environ.get("MPIZERO_TIMEOUT", "")
    try:
        seconds = float(text) if text else DEFAULT_TIMEOUT
    except ValueError:
        seconds = 0.0
    if not seconds > 0:
        raise ConfigError(f"MPIZERO_TIMEOUT={text!r} is not a positive number of seconds: "
                          "use for example MPIZERO_TIMEOUT=1800")
    return seconds


def tests(crowded: bool) -> int:
    """How often to test before giving way. crowded: this host has more ranks than cores for them."""
    return CROWDED_TESTS if crowded else TESTS


def wait(done: Callable[[], bool], limit: float | None = None, tests: int = CROWDED_TESTS,
         lack: Callable[[], str] | None = None) -> bool:
    """Poll `done` until it returns True, first `tests` times in a row.

    False after `limit` seconds (None: `timeout()`). lack: says what is waited for; then who has asked the run to end is
    told why it does not.
    """
    for _ in range(tests):
        if done():
            return True
    for _ in range(YIELDS):
        os.sched_yield()
        if done():
            return True
    return _sleep(done, timeout() if limit is None else limit, lack)


def _sleep(done: Callable[[], bool], limit: float, lack: Callable[[], str] | None) -> bool:
    begin, waited = time.monotonic(), 0.0
    while waited < limit:
        time.sleep(min(max(SHORTEST_SLEEP, LATENESS * waited), LONGEST_SLEEP))
        for _ in range(TESTS_PER_WAKE):
            if done():
                return True
        if _watch is not None:
            _watch()
        if lack is not None:
            complain(begin, lack)
        waited = time.monotonic() - begin
    return False


def gave_up(lack: str) -> CommunicationError:
    """The error of a rank whose peers did not answer in time."""
    return CommunicationError(f"{lack} within {timeout():g} s. A rank has stopped, or runs another collective: see its "
                              "own output; if it is only slow, raise MPIZERO_TIMEOUT (seconds)")
