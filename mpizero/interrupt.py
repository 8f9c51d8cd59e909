"""Signals that ask a run to end: the first is only noted, so that what there is can be written; a second ends the
process at once."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType

# USR1: every mpirun hands it on and does nothing else, whereas Open MPI kills all ranks a quarter of a second after an
# INT or TERM. Slurm's --signal sends it too.
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
SAME = 0.5  # seconds in which another signal is the same request: `timeout` and terminals send to process and group
LATE = 5.0  # seconds that a rank waits after a signal before it says for whom

_came: list[tuple[int, float]] = []  # the first signal inside `noted`, and when, until `complain` has spoken of it


@contextlib.contextmanager
def noted() -> Iterator[Callable[[], int]]:
    """Inside, `SIGNALS` are handled so. Yields a function: the number of the first one that came, 0 before.

    For an entry point: a thread other than the main one cannot handle signals, and there nothing changes. Nor do
    signals that are ignored, as a shell's background jobs ignore INT.
    """
    came: list[tuple[int, float]] = []
    _came.clear()

    def handle(number: int, frame: FrameType | None) -> None:
        if not came:
            came.append((number, time.monotonic()))
            _came.extend(came)
        elif time.monotonic() - came[0][1] > SAME:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    if threading.current_thread() is not threading.main_thread():
        yield lambda: 0
        return
    before = {number: signal.signal(number, handle) or signal.SIG_DFL for number in SIGNALS
              if signal.getsignal(number) != signal.SIG_IGN}
    try:
        yield lambda: came[0][0] if came else 0
    finally:
        _came.clear()
        for number, handler in before.items():
            signal.signal(number, handler)


def complain(since: float, lack: Callable[[], str]) -> None:
    """For waits: where a signal has come, but its rank has waited `LATE` seconds without a break, say so, once.

    A step that waits for a host that is lost never ends. since: when the wait began. lack: what is waited for.
    """
    if _came and time.monotonic() - max(since, _came[0][1]) > LATE:
        number, _ = _came.pop()
        with contextlib.suppress(OSError, ValueError, AttributeError):  # a stream that is closed or full
            sys.stderr.write(f"mpizero: {signal.Signals(number).name} has come, but this step does not end: {lack()}. "
                             "A second signal ends the job at once\n")
            sys.stderr.flush()
