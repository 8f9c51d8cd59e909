"""How a job ends when something goes wrong on some ranks: soon, all ranks, with the reason said once."""

from __future__ import annotations

import hashlib
import os
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np

from mpizero.dist.wait import timeout, wait
from mpizero.errors import CommunicationError, MpizeroError
from mpizero.launcher import rank_in_job, rank_on_machine

USER_ERROR = 2  # exit status of a MpizeroError
BUG = 1  # exit status of any other exception
INTERRUPTED = 130  # 128 + SIGINT, as shells have it
MEETING_SECONDS = 2.0  # a rank that fails waits so long for the others to fail alike

# MPI itself is one per process, so its end is too: the module mpi4py.MPI and a communicator used by nothing else, once started.
_mpi: Any = None
_comm: Any = None


def install(mpi: Any, comm: Any) -> None:
    """From now on an uncaught exception ends all ranks of `comm`, also outside `run_main` and in threads. Called by `start`."""
    global _mpi, _comm
    _mpi, _comm = mpi, comm
    sys.excepthook = lambda kind, error, trace: _fail(error)
    threading.excepthook = _fail_in_thread


def run_main(main: Callable[[], int | None]) -> NoReturn:
    """Run an entry point and end the process with the status it returns (None: 0), such that one failing rank ends all.

    A MpizeroError becomes one line on standard error and exit status 2: rank 0's if all ranks raise the same class, else that of the
    rank that failed. Any other exception prints its traceback with its rank and ends the job with status 1. sys.exit is honoured.
    """
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
        # ranks that give up waiting for each other have each something to tell: which collective, and for whom
        reason = str(error) if isinstance(error, CommunicationError) else type(error).__name__
        _leave(USER_ERROR, f"mpizero: error: {error}\n", reason)
    if isinstance(error, KeyboardInterrupt):
        _abort(INTERRUPTED)
    _say(_traceback(error))
    _abort(BUG)


def _fail_in_thread(args: threading.ExceptHookArgs) -> None:
    """As `_fail`; but a thread cannot leave in good order, since sys.exit ends only itself."""
    error = args.exc_value
    if error is None or isinstance(error, SystemExit):
        return
    _say(f"mpizero: error: {error}\n" if isinstance(error, MpizeroError) else _traceback(error))
    _abort(USER_ERROR if isinstance(error, MpizeroError) else BUG)


def _leave(status: int, text: str, reason: str = "") -> NoReturn:
    """End this process with `status` and, if that is not 0, all others too. `text` is said once by ranks that leave for one `reason`."""
    status = status & 0xFF or (BUG if status else 0)  # what an exit status can hold; 256 must not become success
    if _comm is None and status and rank_in_job() is not None:
        _start_quietly()
    if _comm is None or _mpi.Is_finalized():
        _leave_alone(status, text)
    rank, reasons = _comm.Get_rank(), _meet(f"{status} {reason}")
    if reasons is None and status:
        _say(text)
        _abort(status)
    if reasons is None or reasons.index(reasons[rank]) == rank:
        _say(text)
    sys.exit(status)  # all ranks are on their way out, so MPI can be finalised


def _meet(reason: str) -> list[bytes] | None:
    """Every rank's reason (a digest) when all ranks are leaving; None when some do not come.

    A rank that leaves in peace waits for the others here, asleep; in MPI_Finalize it would spin.
    """
    mine = np.frombuffer(hashlib.sha256(reason.encode()).digest(), np.uint8)
    table = np.empty((_comm.Get_size(), mine.size), np.uint8)
    request = _comm.Iallgather(mine, table)
    if not wait(request.Test, timeout() if reason.startswith("0 ") else MEETING_SECONDS):
        return None
    return [row.tobytes() for row in table]


def _leave_alone(status: int, text: str) -> NoReturn:
    """Without MPI. Under an mpirun the other ranks of this machine have the same trouble; the first of them speaks."""
    if rank_on_machine() in (None, 0):
        _say(text)
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
    """One write, so that lines of ranks do not mix."""
    sys.stdout.flush()
    sys.stderr.write(text)
    sys.stderr.flush()
