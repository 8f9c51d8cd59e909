"""How a job ends when something goes wrong on some ranks: soon, all ranks, with the reason said once."""

from __future__ import annotations

import hashlib
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np

from mpizero.dist.wait import timeout, wait
from mpizero.errors import MpizeroError

USER_ERROR = 2  # exit status of a MpizeroError
BUG = 1  # exit status of any other exception
INTERRUPTED = 130  # 128 + SIGINT, as shells have it
MEETING_SECONDS = 3.0  # a rank that fails waits so long for the others to fail alike
LET_RANK_0_SPEAK = 1.0  # seconds

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

    A MpizeroError becomes one line on standard error and exit status 2: said by rank 0 if all ranks fail alike, else by the rank
    that failed. Any other exception prints its traceback with its rank and ends the job with status 1. sys.exit is honoured.
    """
    try:
        status, text = main() or 0, ""
    except SystemExit as error:
        status, text = (error.code, "") if isinstance(error.code, int) else (0, "") if error.code is None else (BUG, f"{error.code}\n")
    except BaseException as error:
        _fail(error)
    _leave(status, text)


def _fail(error: BaseException) -> NoReturn:
    if isinstance(error, MpizeroError):
        _leave(USER_ERROR, f"mpizero: error: {error}\n")
    status, text = (INTERRUPTED, "") if isinstance(error, KeyboardInterrupt) else (BUG, _traceback(error))
    _say(text)
    _abort(status)


def _fail_in_thread(args: threading.ExceptHookArgs) -> None:
    """As `_fail`; but a thread cannot leave in good order, since sys.exit ends only itself."""
    error = args.exc_value
    if error is None or isinstance(error, SystemExit):
        return
    _say(f"mpizero: error: {error}\n" if isinstance(error, MpizeroError) else _traceback(error))
    _abort(USER_ERROR if isinstance(error, MpizeroError) else BUG)


def _leave(status: int, text: str) -> NoReturn:
    """End this process with `status` and, if that is not 0, all others too; `text` says why."""
    status = status & 0xFF or (BUG if status else 0)  # what an exit status can hold; 256 must not become success
    if _comm is None and status and _launched_rank() is not None:
        _start_quietly()
    if _comm is None or _mpi.Is_finalized():
        _leave_alone(status, text)
    rows = _meet(status, text)
    if rows is None and status:
        _say(text)
        _abort(status)
    if rows is None or rows.index(rows[_comm.Get_rank()]) == _comm.Get_rank():
        _say(text)
    sys.exit(status)  # all ranks are on their way out, so MPI can be finalised


def _meet(status: int, text: str) -> list[bytes] | None:
    """Every rank's status and reason (a digest), when all ranks are leaving; None when some do not come.

    A rank that leaves in peace waits for the others here, asleep; in MPI_Finalize it would spin.
    """
    mine = np.frombuffer(hashlib.sha256(f"{status} {text}".encode()).digest(), np.uint8)
    table = np.empty((_comm.Get_size(), mine.size), np.uint8)
    request = _comm.Iallgather(mine, table)
    if not wait(request.Test, MEETING_SECONDS if status else timeout()):
        return None
    return [row.tobytes() for row in table]


def _leave_alone(status: int, text: str) -> NoReturn:
    """Without MPI. Under an mpirun all ranks probably have the same trouble, and mpirun ends them when the first has left."""
    if text and _launched_rank():
        time.sleep(LET_RANK_0_SPEAK)
    _say(text)
    sys.exit(status)


def _abort(status: int) -> NoReturn:
    if _comm is not None and not _mpi.Is_finalized() and _comm.Get_size() > 1:
        _comm.Abort(status)
    os._exit(status)


def _start_quietly() -> None:
    from mpizero.dist.start import start
    try:
        start()
    except MpizeroError:
        pass  # the error at hand is told instead


def _launched_rank() -> int | None:
    """This process's rank as mpirun told it, which is known without MPI; None if no mpirun started it."""
    for variable in ("OMPI_COMM_WORLD_RANK", "PMI_RANK"):
        if os.environ.get(variable, "").isdigit():
            return int(os.environ[variable])
    return None


def _traceback(error: BaseException) -> str:
    rank = _comm.Get_rank() if _comm is not None and not _mpi.Is_finalized() else _launched_rank()
    lines = "".join(traceback.format_exception(error))
    return lines if rank is None else f"rank {rank}: uncaught exception, ending all ranks\n{lines}"


def _say(text: str) -> None:
    """One write, so that lines of ranks do not mix."""
    sys.stdout.flush()
    sys.stderr.write(text)
    sys.stderr.flush()
