"""How a job ends when something goes wrong on some ranks: soon, all ranks, with the reason said once.

[Note: leaving] MPI_Abort ends a job whatever its ranks do, but mpirun's exit status is then a matter of luck: now and then MPICH reports
that it killed the others (9) rather than the status asked for. So a rank that leaves with an error tells the others, which notice in their
next longer wait, and all leave together as at a normal end: each with the same status, after MPI_Finalize. MPI_Abort is for bugs, and
for ranks that do not come. A rank that has given up waiting tells nobody, since the others should give up too and say for whom they wait.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np

from mpizero.dist import wait
from mpizero.errors import CommunicationError, MpizeroError
from mpizero.launcher import rank_in_job, rank_on_machine

USER_ERROR = 2  # exit status of a MpizeroError
BUG = 1  # exit status of any other exception
INTERRUPTED = 130  # 128 + SIGINT, as shells have it
MEETING_SECONDS = 5.0  # a rank that leaves with an error waits so long for the others to leave too
FINALIZE_SECONDS = 20  # for MPI_Finalize, which may stumble over messages that nobody received
LET_FIRST_SPEAK = 2.0  # seconds
NOTICE = 1  # tag of the message by which a rank says that it leaves

# MPI itself is one per process, so its end is too: the module mpi4py.MPI and a communicator used by nothing else, once started.
_mpi: Any = None
_comm: Any = None


class _PeerLeft(BaseException):
    """Another rank leaves with an error: args = (its exit status,). Not an Exception, which a program may swallow."""


def install(mpi: Any, comm: Any) -> None:
    """From now on an uncaught exception ends all ranks of `comm`, also outside `run_main` and in threads. Called by `start`."""
    global _mpi, _comm
    _mpi, _comm = mpi, comm
    sys.excepthook = lambda kind, error, trace: _fail(error)
    threading.excepthook = _fail_in_thread
    wait.watch(_heed_notice)


def run_main(main: Callable[[], int | None]) -> NoReturn:
    """Run an entry point and end the process with the status it returns (None: 0), such that one failing rank ends all.

    A MpizeroError becomes one line on standard error and exit status 2: rank 0's if all ranks raise the same class, else that of the
    rank that failed. Any other exception prints its traceback with its rank and ends the job with status 1. sys.exit is honoured.
    """
    for stream in (sys.stdout, sys.stderr):  # a name that the terminal cannot show is no reason to fail
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        status, text = main() or 0, ""
    except SystemExit as error:
        status, text = _asked_for(error)
    except BaseException as error:
        _fail(error)
    _leave(status, text)


def _asked_for(error: SystemExit) -> tuple[int, str]:
    """Exit status and text, as Python itself reads sys.exit's argument."""
    if error.code is None or isinstance(error.code, int):
        return error.code or 0, ""
    return BUG, f"{error.code}\n"


def _fail(error: BaseException) -> NoReturn:
    if isinstance(error, MpizeroError):
        text, gave_up = f"mpizero: error: {error}\n", isinstance(error, CommunicationError)
        _leave(USER_ERROR, text, text if gave_up else type(error).__name__, tell=not gave_up)
    if isinstance(error, _PeerLeft):
        _leave(error.args[0], "", "another rank's reason")
    if isinstance(error, KeyboardInterrupt):
        _abort(INTERRUPTED)
    if isinstance(error, BrokenPipeError):  # whoever read our output has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        _abort(BUG)
    _say(_traceback(error))
    _abort(BUG)


def _fail_in_thread(args: threading.ExceptHookArgs) -> None:
    """As `_fail`; but a thread cannot leave in good order, since sys.exit ends only itself."""
    error = args.exc_value
    if error is None or isinstance(error, SystemExit):
        return
    if isinstance(error, _PeerLeft):
        _abort(error.args[0])
    _say(f"mpizero: error: {error}\n" if isinstance(error, MpizeroError) else _traceback(error))
    _abort(USER_ERROR if isinstance(error, MpizeroError) else BUG)


def _leave(status: int, text: str, reason: str = "", tell: bool = True) -> NoReturn:
    """End this process with `status` and, if that is not 0, all others too. `text` is said once by ranks that leave for one `reason`.

    See [Note: leaving].
    """
    status = status & 0xFF or (BUG if status else 0)  # what an exit status can hold; 256 must not become success
    if _comm is None and status and rank_in_job() is not None:
        _start_quietly()
    if _comm is None or _mpi.Is_finalized():
        _leave_alone(status, text)
    if status and tell:
        _give_notice(status)
    rank, reasons = _comm.Get_rank(), _meet(f"{status} {reason}", MEETING_SECONDS if status else wait.timeout())
    if reasons is None and status:
        _say(text)
        _abort(status)
    if reasons is None or reasons.index(reasons[rank]) == rank:
        _say(text)
    if status:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(FINALIZE_SECONDS)
    sys.exit(status)


def _meet(reason: str, seconds: float) -> list[bytes] | None:
    """Every rank's reason (a digest) when all ranks are leaving; None when some do not come in time.

    A rank that leaves in peace waits for the others here, asleep; in MPI_Finalize it would spin.
    """
    wait.watch(None)
    mine = np.frombuffer(hashlib.sha256(reason.encode()).digest(), np.uint8)
    table = np.empty((_comm.Get_size(), mine.size), np.uint8)
    request = _comm.Iallgather(mine, table)
    if not wait.wait(request.Test, seconds):
        return None
    return [row.tobytes() for row in table]


def _give_notice(status: int) -> None:
    """Tell every other rank that this one leaves with `status`. Who leaves too does not listen any more."""
    for rank in range(_comm.Get_size()):
        if rank != _comm.Get_rank():
            _comm.Isend(np.array([status], np.uint8), rank, NOTICE)


def _heed_notice() -> None:
    """What a rank does now and then while it waits."""
    if _comm.Iprobe(tag=NOTICE):
        status = np.empty(1, np.uint8)
        _comm.Recv(status, tag=NOTICE)
        raise _PeerLeft(int(status[0]))


def _leave_alone(status: int, text: str) -> NoReturn:
    """Without MPI. Under an mpirun the other ranks of this machine have the same trouble; the first of them speaks.

    The others let it: an mpirun may end all ranks when the first has left with an error.
    """
    if rank_on_machine() in (None, 0):
        _say(text)
    elif status:
        time.sleep(LET_FIRST_SPEAK)
    sys.exit(status)


def _abort(status: int) -> NoReturn:
    if _comm is None and rank_in_job() is not None:
        _start_quietly()  # an mpirun may wait for ever for ranks that leave without having started MPI
    if _comm is not None and not _mpi.Is_finalized() and _comm.Get_size() > 1:
        _comm.Abort(status)
    os._exit(status)


def _start_quietly() -> None:
    from mpizero.dist.start import start
    try:
        start()
    except MpizeroError:
        pass  # the error at hand is told instead


def _traceback(error: BaseException) -> str:
    rank = _comm.Get_rank() if _comm is not None and not _mpi.Is_finalized() else rank_in_job()
    lines = "".join(traceback.format_exception(error))
    return lines if rank is None else f"rank {rank}: uncaught exception, ending all ranks\n{lines}"


def _say(text: str) -> None:
    """One write, so that lines of ranks do not mix. Streams that are closed or full must not keep a rank from leaving."""
    for act in (lambda: sys.stdout.flush(), lambda: sys.stderr.write(text), lambda: sys.stderr.flush()):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            act()
