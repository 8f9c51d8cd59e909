"""How jobs end, in child jobs under the mpirun at hand: soon, all ranks, the reason once, the right exit status."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from mpizero.comm import wait
from mpizero.comm.mpi.meeting import Meeting

JOBS = Path(__file__).with_name("jobs.py")
SECONDS = 25.0  # for start and end of a job on a busy machine; about 2 when it is idle


@pytest.fixture
def job(launch):
    """Run a job of jobs.py. Returns how it finished; it must be soon."""

    def run(name, n=3, **env):
        finished = launch(n, JOBS, name, timeout=60, env={"MPIZERO_TIMEOUT": None, **env})
        assert finished.seconds < SECONDS
        return finished

    return run


def our_lines(finished):
    return [line for line in finished.stderr.splitlines() if line.startswith("mpizero: ")]


def check_one_line(finished, text):
    assert our_lines(finished) == [f"mpizero: error: {text}"], finished.output
    assert "Traceback" not in finished.output
    assert finished.status == 2, finished.output


@pytest.mark.parametrize("n", [None, 2])
def test_all_is_well(job, n):
    finished = job("fine", n)
    assert (finished.status, finished.stderr) == (0, "")


def test_status_of_main(job):
    assert job("status_of_main", 2).status == 5


@pytest.mark.parametrize("name", ["bug_on_one_rank", "plain:bug_on_one_rank", "bug_before_mpi"])
def test_uncaught_exception(job, name):
    finished = job(name)
    assert finished.status not in (0, 2)
    assert finished.stderr.count("Traceback") == 1 and finished.stderr.count("ZeroDivisionError: a bug on rank 1") == 1
    assert "rank 1: uncaught exception" in finished.stderr


def test_uncaught_exception_in_a_thread(job):
    finished = job("bug_in_thread")
    assert finished.status not in (0, 2)
    assert finished.stderr.count("ZeroDivisionError") == 1 and "rank 1: uncaught exception" in finished.stderr


@pytest.mark.parametrize("name, n", [("user_error_on_all", None), ("user_error_on_all", 4),
                                     ("plain:user_error_on_all", None), ("plain:user_error_on_all", 2)])
def test_user_error_on_all_ranks(job, name, n):
    check_one_line(job(name, n), f"stage 7 is unknown: use 0 to 3 ({n or 1} ranks)")


def test_user_error_on_all_ranks_one_late(job):
    check_one_line(job("user_error_on_all_but_late_on_one"), "stage 7 is unknown: use 0 to 3")


@pytest.mark.parametrize("n", [None, 2])
def test_user_error_before_mpi_starts(job, n):
    check_one_line(job("user_error_before_mpi", n), "stage 7 is unknown: use 0 to 3")


def test_user_error_before_mpi_starts_on_one_rank(job):
    check_one_line(job("user_error_before_mpi_on_one_rank"), "no file on rank 1")


def test_notices_are_received(job):
    """MPI wants every message received before MPI_Finalize. Each of four ranks tells the three others.

    MPICH on UCX also warns on stdout of the barrier's own messages, which rank 2 was about to exchange.
    """
    finished = job("leaves_no_message_behind", 4)
    told = [line for line in finished.stdout.splitlines() if "UCX  WARN" not in line]
    assert finished.status == 2 and told == ["open=False done=True of 3"] * 4, finished.output


@pytest.mark.parametrize("name", ["user_error_on_one_rank", "plain:user_error_on_one_rank",
                                  "user_error_on_one_rank_while_others_end",
                                  "user_error_on_one_rank_during_large_messages"])
def test_user_error_on_one_rank(job, name):
    check_one_line(job(name), "the data of rank 2 hold NaN")


def test_what_goes_wrong_on_one_host_names_it(job):
    finished = job("user_error_on_one_host")
    (line,) = our_lines(finished)  # of the ranks that had said so by then
    assert re.fullmatch(r"mpizero: error: (ranks 2-3|rank [23]) on b: there is no such file", line), finished.output
    assert finished.status == 2 and "Traceback" not in finished.output, finished.output
    finished = job("bug_on_one_host")
    assert "rank 2 on b: uncaught exception" in finished.stderr and finished.status not in (0, 2)


def test_what_goes_wrong_on_all_hosts_names_none(job):
    check_one_line(job("user_error_on_all_hosts"), "stage 7 is unknown")


def test_a_rank_that_never_comes_has_its_time(job):
    """MPI waits in C, before there is anything of ours. Ranks that come in time get all of it."""
    finished = job("comes_late_to_the_start", 2, MPIZERO_TIMEOUT="1")
    assert finished.status not in (0, 2) and "started" not in finished.output
    finished = job("comes_late_to_the_start", 2, MPIZERO_TIMEOUT="60")
    assert (finished.status, finished.stdout.split()) == (0, ["started"] * 2)


def test_before_its_end_each_rank_has_talked_to_each(monkeypatch):
    """Else MPI_Finalize of MPICH 4.0 may wait for ever."""
    talked = []

    class Comm:
        Get_rank, Get_size = staticmethod(lambda: 1), staticmethod(lambda: 4)

        def Isend(self, buffer, dest, tag):
            talked.append(("to", dest))

        def Irecv(self, buffer, source, tag):
            buffer[:] = 0
            talked.append(("from", source))

    monkeypatch.setattr(wait, "_watch", wait._watch)  # which a meeting ends
    mpi = SimpleNamespace(Request=SimpleNamespace(Testall=lambda requests: True))
    reasons = Meeting(mpi, Comm()).meet("0 ", 1.0)
    assert sorted(talked) == [(word, rank) for word in ("from", "to") for rank in (0, 2, 3)]
    assert [reason == hashlib.sha256(b"0 ").digest() for reason in reasons] == [False, True, False, False]


def test_mpi_that_does_not_end(job):
    assert job("stays_in_mpi", 2).status != 0


def test_user_error_on_one_rank_while_another_is_busy(job):
    """It does not come to a wait in time, so the job is aborted; mpirun's status is then a race between its ranks."""
    finished = job("user_error_on_one_rank_while_another_is_busy")
    assert our_lines(finished) == ["mpizero: error: the data of rank 2 hold NaN"] and "Traceback" not in finished.output
    assert finished.status != 0


def test_user_errors_of_one_class(job):
    """Two texts: rank 0's is enough."""
    check_one_line(job("different_user_errors"), "bad data")


def test_user_errors_of_two_classes(job):
    finished = job("user_errors_of_two_classes")
    assert sorted(our_lines(finished)) == ["mpizero: error: no data", "mpizero: error: wrong flag"]
    assert finished.status == 2


def test_no_mpi_on_any_rank(job):
    """Every rank fails, rank 0 speaks."""
    check_no_mpi(job("user_error_on_all", 2, MPI4PY_LIBMPI="/nonexistent/libmpi.so"))


def test_no_mpi_without_mpirun(job):
    check_no_mpi(job("fine", None, MPI4PY_LIBMPI="/nonexistent/libmpi.so"))


def check_no_mpi(finished):
    [line] = our_lines(finished)
    assert line.startswith("mpizero: error: MPI is not available: pip install ")
    assert "finds no MPI library that works" in line and "/nonexistent/libmpi.so" in line
    assert "Traceback" not in finished.output and finished.status == 2


@pytest.mark.parametrize("name, n, status", [
    ("exit_status", None, 7), ("exit_status", 2, 7), ("exit_status_of_one_rank", 3, 7), ("exit_in_peace", 2, 0),
    ("exit_256", 2, 1),
])
def test_sys_exit(job, name, n, status):
    finished = job(name, n)
    assert finished.status == status, finished.output
    assert "Traceback" not in finished.output


def test_sys_exit_with_a_text(job):
    finished = job("exit_text", 2)
    assert finished.status == 1
    assert finished.stderr.count("enough") == 1


def test_keyboard_interrupt_is_quiet(job):
    finished = job("interrupted")
    assert finished.status != 0
    assert "Traceback" not in finished.output and "KeyboardInterrupt" not in finished.output


def test_killed_rank_ends_the_job(job):
    assert job("killed").status != 0


def test_waiting_has_an_end(job):
    """With two ranks: of several that give up, the first to abort may end the others before they have spoken."""
    finished = job("waits_for_ever", 2, MPIZERO_TIMEOUT="2")
    assert finished.status != 0 and "Traceback" not in finished.output
    here = os.uname().nodename
    text = ("mpizero: error: all_reduce of unit 'head' in group 'world': no answer from rank 0 on "
            f"{here} to rank 1 on {here} within 2 s")
    assert any(line.startswith(text) for line in our_lines(finished)), finished.output


def test_making_a_group_has_an_end(job):
    """MPI's own call would wait for ever."""
    finished = job("waits_for_ever_to_make_a_group", 2, MPIZERO_TIMEOUT="2")
    assert finished.status != 0 and "Traceback" not in finished.output
    text = "mpizero: error: group 'pair' cannot be made: not all ranks of group 'world' have come within 2 s"
    assert any(line.startswith(text) for line in our_lines(finished)), finished.output


def test_ranks_that_call_different_collectives_time_out(job):
    """No wrong data, no hang: every rank names what it waits for, and whom."""
    finished = job("different_collectives", MPIZERO_TIMEOUT="2")
    assert finished.status == 2 and "Traceback" not in finished.output
    text = "\n".join(our_lines(finished))
    assert "all_reduce of unit 'h.1' in group 'world': no answer from rank 0" in text  # rank 1
    assert "all_gather of unit 'h.2' in group 'world': no answer from rank 1" in text  # rank 2
