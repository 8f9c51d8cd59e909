"""How a job ends when something goes wrong on some ranks: soon, all ranks, with the reason said once.

[Note: leaving] MPI_Abort ends a job whatever its ranks do, but mpirun's exit status is then a matter of luck: now and
then MPICH reports that it killed the others (9) rather than the status asked for. So a rank that leaves with an error
tells the others, which notice in their next longer wait, and all leave together as at a normal end: each with the same
status, after MPI_Finalize. How they hear of one another and come together is meeting.py's matter. MPI_Abort is for
bugs, and for ranks that do not come. Until all have come, a leaving rank keeps its arrays: others may still be
receiving from them. A rank that has given up waiting tells nobody, since the others should give up too and say for whom
they wait.
"""

from __future__ import annotations

import contextlib
import errno
import os
import platform
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn, final

from mpizero.comm import wait
from mpizero.comm.mpi.meeting import Meeting, PeerLeft
from mpizero.errors import CommunicationError, MpizeroError
from mpizero.launcher import launch, rank_in_job, rank_on_machine, ranks_on_machine
from mpizero.text import ranks_on

USER_ERROR = 2  # exit status where output cannot be written; a MpizeroError has its own
BUG = 1  # exit status of any other exception
INTERRUPTED = 130  # 128 + SIGINT, as shells have it
MEETING_SECONDS = 5.0  # a rank that leaves with an error waits so long for the others to leave too
FINALIZE_SECONDS = 20  # for MPI_Finalize, which may stumble over messages that nobody received
PEACE_SECONDS = 60  # the same after a good end
LET_FIRST_SPEAK = 2.0  # seconds
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EIO}  # of an error that names no file: an output stream's
LAST_WORDS = 0.2  # seconds before an abort: MPICH's mpirun may then end before it has read what its ranks wrote
ERROR = "mpizero: error: "  # how a MpizeroError is said

# MPI is one per process, so its end is too. Once started: the module mpi4py.MPI, a communicator used by nothing else,
# the host of each of its ranks, and how they meet.
_mpi: Any = None
_comm: Any = None
_hosts: Sequence[str] = ()
_meeting: Meeting | None = None


@final
@dataclass(frozen=True)
class Ending:
    """How a rank means to end: with the others, or at once whatever they do. See [Note: leaving].

    status: its exit status, and that of all ranks unless it is 0. text: what to say; once, of the ranks that leave for
    one `reason`. tell: let the others know.
    """

    status: int
    text: str = ""
    reason: str = ""
    tell: bool = True
    at_once: bool = False


def install(mpi: Any, comm: Any, hosts: Sequence[str]) -> None:
    """From now on an uncaught exception ends all ranks of `comm`, also outside `run_main` and in threads.

    mpi: the module mpi4py.MPI. hosts: of each rank. Called by `start`.
    """
    global _mpi, _comm, _hosts, _meeting
    _mpi, _comm, _hosts, _meeting = mpi, comm, hosts, Meeting(mpi, comm)
    sys.excepthook = lambda kind, error, trace: end(ending(error))
    threading.excepthook = _end_from_thread
    wait.watch(_meeting.heed_notice)


def ending(error: BaseException) -> Ending:
    """How a rank ends that `error` has stopped."""
    if isinstance(error, SystemExit):
        return _asked_for(error)
    if isinstance(error, MpizeroError):
        text, gave_up = f"{ERROR}{error}\n", isinstance(error, CommunicationError)
        return Ending(error.status, text, text if gave_up else type(error).__name__, tell=not gave_up)
    if isinstance(error, PeerLeft):
        return Ending(error.args[0], reason="another rank's reason")
    if isinstance(error, KeyboardInterrupt):
        return Ending(INTERRUPTED, at_once=True)
    if isinstance(error, OSError) and error.filename is None and error.errno in FULL:
        _write_no_more()
        return Ending(USER_ERROR, f"{ERROR}standard output cannot be written: {error.strerror}\n",
                      type(error).__name__)
    if isinstance(error, BrokenPipeError):  # whoever read our output has enough
        return Ending(BUG, at_once=True)
    return Ending(BUG, _traceback(error), at_once=True)


def end(how: Ending, start: Callable[[], object] | None = None) -> NoReturn:
    """End this process as said and, unless its status is 0, all others too.

    start: starts MPI; for a rank that ends before it has.
    """
    if how.at_once and how.text:
        _say(how.text)
    # an mpirun may wait for ever for ranks that leave without having started MPI
    if _comm is None and start is not None and how.status and rank_in_job() is not None:
        with contextlib.suppress(MpizeroError):  # the error at hand is told instead
            start()
    if how.at_once:
        _abort(how.status)
    _leave(replace(how, status=how.status & 0xFF or (BUG if how.status else 0)))  # 256 must not become success


def _asked_for(error: SystemExit) -> Ending:
    """As Python itself reads sys.exit's argument."""
    if error.code is None or isinstance(error.code, int):
        return Ending(error.code or 0)
    return Ending(BUG, f"{error.code}\n")


def _end_from_thread(args: threading.ExceptHookArgs) -> None:
    """A thread cannot leave in good order, since sys.exit ends only itself."""
    error = args.exc_value
    if error is not None and not isinstance(error, SystemExit):
        end(replace(ending(error), at_once=True))


def _leave(how: Ending) -> NoReturn:
    """Together with the others, as they come; an abort if they do not."""
    if _meeting is None or _mpi.Is_finalized():
        _leave_alone(how)
    if how.status and how.tell:
        _meeting.give_notice(how.status)
    patience = MEETING_SECONDS if how.text else MEETING_SECONDS + LET_FIRST_SPEAK  # who aborts may silence the others
    reasons = _meeting.meet(f"{how.status} {how.reason}", patience if how.status else wait.timeout())
    rank = _comm.Get_rank()
    same = [rank] if reasons is None else [other for other, reason in enumerate(reasons) if reason == reasons[rank]]
    if same[0] == rank:
        _say(_located(how, same))
    if reasons is None and how.status:
        _abort(how.status)
    if how.status or _comm.Get_size() > 1:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(FINALIZE_SECONDS if how.status else PEACE_SECONDS)
    sys.exit(how.status)


def _located(how: Ending, ranks: Sequence[int]) -> str:
    """The text, with the hosts of `ranks`, which leave for this reason, unless each host has some of them: what is
    missing or wrong may be so on one host alone. Who has given up waiting has named them."""
    if {_hosts[rank] for rank in ranks} == set(_hosts) or not how.tell:
        return how.text
    return _with(how.text, f"{'rank' if len(ranks) == 1 else 'ranks'} {ranks_on(_hosts, ranks)}")


def _with(text: str, where: str) -> str:
    return text.replace(ERROR, f"{ERROR}{where}: ", 1)


def _leave_alone(how: Ending) -> NoReturn:
    """Without MPI. Under an mpirun the other ranks of this machine have the same trouble; the first of them speaks.

    The others let it: an mpirun may end all ranks when the first has left with an error.
    """
    if rank_on_machine() in (None, 0):
        found = launch()
        several = found is not None and found.ranks is not None and found.ranks > ranks_on_machine()
        _say(_with(how.text, f"on {platform.node()}") if several else how.text)
    elif how.status:
        time.sleep(LET_FIRST_SPEAK)
    sys.exit(how.status)


def _abort(status: int) -> NoReturn:
    """At once, and all others too."""
    if _comm is not None and not _mpi.Is_finalized() and _comm.Get_size() > 1:
        time.sleep(LAST_WORDS)
        _mpi.COMM_WORLD.Abort(status)  # of another communicator, MPICH 4.0 waits until its ranks are in MPI too
    os._exit(status)


def _write_no_more() -> None:
    """Python would try again at its end to write what it could not."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _traceback(error: BaseException) -> str:
    lines, who = "".join(traceback.format_exception(error)), rank_in_job()
    where = "" if who is None else f"rank {who}"
    if _comm is not None and not _mpi.Is_finalized():
        rank = _comm.Get_rank()
        where = f"rank {rank} on {_hosts[rank]}" if len(set(_hosts)) > 1 else f"rank {rank}"
    return f"{where}: uncaught exception, ending all ranks\n{lines}" if where else lines


def _say(text: str) -> None:
    """One write, so that lines of ranks do not mix.

    Streams that are closed or full must not keep a rank from leaving.
    """
    for act in (lambda: sys.stdout.flush(), lambda: sys.stderr.write(text), lambda: sys.stderr.flush()):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            act()
