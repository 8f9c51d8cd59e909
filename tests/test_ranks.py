"""Four pytests under mpirun behave like one: what tests/support/ranks.py promises, seen from outside by running it."""

from __future__ import annotations

import re
import textwrap
from types import SimpleNamespace

import pytest

from mpizero.comm import barrier
from tests.support.launch import ROOT
from tests.support.load import scaled
from tests.support.ranks import dealt

PREAMBLE = """
import os
import time
import pytest
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank = comm.Get_rank()
on_ranks = pytest.mark.mpi
"""

WORKER = 1  # the second rank that tests of one process are dealt to


@pytest.fixture
def run(launch, tmp_path):
    """Run a test file of these lines on n ranks; returns how it ended."""

    def run(n: int | None, lines: str, *options: str):
        path = tmp_path / "test_child.py"
        path.write_text(PREAMBLE + textwrap.dedent(lines))
        where = ("-c", ROOT / "setup.cfg", "--rootdir", tmp_path, "-p", "tests.support.ranks")
        patience = ("-o", "mpi_timeout=4", "-o", "mpi_failed_timeout=2")
        return launch(n, "-m", "pytest", "--color=no", *where, *patience, *options, path, env={"PYTEST_ADDOPTS": None})

    return run


def test_outcomes(run, tmp_path):
    """One launch for all that ends well or by the book."""
    end = run(4, """
        @on_ranks
        def test_everywhere():
            assert comm.allreduce(1) == 4

        @on_ranks
        def test_rank_2_fails():
            print("rank", rank, "was here")
            assert rank != 2, "rank two's own words"

        @on_ranks
        def test_two_ranks_fail():
            assert rank not in (0, 3), f"words of rank {rank}"

        @pytest.fixture(params=["setup", "teardown"])
        def phase(request):
            assert rank != 1 or request.param == "teardown", "rank one's setup"
            yield
            assert rank != 1, "rank one's teardown"

        @on_ranks
        def test_fixture(phase):
            comm.Barrier()

        @on_ranks
        def test_skip_on_one_rank():
            if rank == 2:
                pytest.skip("not here")

        @on_ranks
        @pytest.mark.xfail
        def test_expected():
            assert False

        @on_ranks
        def test_own_folders(tmp_path):
            assert len(set(comm.allgather(str(tmp_path)))) == 4

        @pytest.mark.parametrize("i", [0, 1])
        def test_alone(i, pytestconfig):
            (pytestconfig.rootpath / f"{rank}.{i}").touch()
            time.sleep(5 * i)  # longer than mpi_timeout: nobody loses patience meanwhile
    """, "--with-mpi", "-v", "-rs")
    assert end.status == 1 and end.seconds < scaled(30), end.output
    assert len(re.findall("test session starts", end.stdout)) == 1
    assert len(re.findall("2 failed, 5 passed, 1 skipped, 1 xfailed, 2 errors", end.stdout)) == 1, end.output
    for failed in ("rank_2_fails", "two_ranks_fail"):
        assert f"test_child.py::test_{failed} FAILED" in end.stdout
    words_of = [(1, "rank one's setup"), (1, "rank one's teardown"), (2, "rank two's own words"),
                (0, "words of rank 0"), (3, "words of rank 3")]
    for rank, words in words_of:
        assert re.search(rf"\[rank {rank}\](?:(?!\[rank).)*{words}", end.stdout, re.DOTALL)
    assert "rank 2 was here" in end.stdout and "rank 3 was here" not in end.stdout
    assert "[rank 2] Skipped: not here" in end.stdout
    assert sorted(path.name for path in tmp_path.glob("?.?")) == ["0.0", "0.1"]  # on one rank alone
    assert end.stdout.index("test_alone") < end.stdout.index("test_everywhere")


def test_failure_before_a_collective_is_no_hang(run):
    end = run(3, """
        @on_ranks
        def test_lonely():
            assert rank != 1, "rank one's own words"
            comm.Barrier()
    """, "--with-mpi")
    assert end.status == 70 and end.seconds < scaled(20), end.output
    assert "rank one's own words" in end.stderr
    assert re.search(r"rank 1 waited [\d.]+ s for the others after call of test_child.py::test_lonely", end.stderr)
    assert "stacks of rank 2" in end.stderr
    assert re.search(r"line \d+ in test_lonely", end.stderr)  # where the others hang


def test_a_rank_that_hangs_is_no_hang(run):
    end = run(2, """
        @on_ranks
        def test_stuck():
            if rank == 1:
                comm.recv(source=0, tag=7)
    """, "--with-mpi")
    assert end.status == 70 and end.seconds < scaled(20), end.output
    assert re.search(r"rank 0 waited [\d.]+ s", end.stderr) and re.search(r"line \d+ in test_stuck", end.stderr)


def test_a_test_of_one_process_that_hangs_is_no_hang(run):
    end = run(2, """
        def test_stuck():
            time.sleep(1000)

        @on_ranks
        def test_next():
            comm.Barrier()
    """, "--with-mpi", "-o", "faulthandler_timeout=2")
    assert end.status != 0 and end.seconds < scaled(20), end.output
    assert re.search(r"line \d+ in test_stuck", end.stderr)


def test_a_rank_that_dies_is_no_hang(run, tmp_path):
    end = run(2, """
        @on_ranks
        def test_dying(pytestconfig):
            if rank == 1:
                (pytestconfig.rootpath / "dying").touch()
                os.kill(os.getpid(), 9)
    """, "--with-mpi")
    assert end.status != 0 and end.seconds < scaled(20), end.output
    assert (tmp_path / "dying").exists()


def test_a_rank_that_breaks_off_is_no_hang(run, tmp_path):
    """Before the session has begun: no test, no collection, no meeting."""
    (tmp_path / "conftest.py").write_text(
        "from mpi4py import MPI\ndef pytest_sessionstart():\n    assert MPI.COMM_WORLD.rank != 1, 'own words'"
    )
    end = run(2, """
        @on_ranks
        def test_common():
            comm.Barrier()
    """, "--with-mpi")
    assert end.status != 0 and end.seconds < scaled(20), end.output
    assert "own words" in end.stderr and "rank 1 ended before the others" in end.stderr


@pytest.mark.parametrize("difference", ["if rank == 1: test_extra = lambda: None", "assert rank != 1"],
                         ids=["extra", "import error"])
def test_ranks_must_collect_the_same_tests(run, difference):
    end = run(2, f"""
        @on_ranks
        def test_common():
            comm.Barrier()

        {difference}
    """, "--with-mpi")
    assert end.status != 0 and end.seconds < scaled(20), end.output
    assert "ranks 0 and 1 collected different tests: test_child.py::test_" in end.stdout


@pytest.mark.parametrize("failing", ["test_alone", "test_on_ranks"])
def test_stop_at_the_first_failure(run, failing):
    end = run(2, f"""
        def test_alone():
            assert "{failing}" != "test_alone"

        @on_ranks
        @pytest.mark.parametrize("i", [0, 1])
        def test_on_ranks(i):
            comm.Barrier()
            assert rank != 1 or "{failing}" != "test_on_ranks"
    """, "--with-mpi", "-x", "-v")
    assert end.status == 1 and end.seconds < scaled(20), end.output
    assert re.search(rf"::{failing}\S* FAILED", end.stdout) and "1 failed" in end.stdout
    assert "test_on_ranks[1]" not in end.stdout


def test_tests_of_one_process_alone(run):
    """The same file under mpirun, where one rank has something to do, and without."""
    lines = """
        def test_alone():
            pass
    """
    under_mpi, plain = run(2, lines, "--with-mpi"), run(None, lines + """
        @on_ranks
        def test_on_ranks():
            assert False
    """)
    assert under_mpi.status == plain.status == 0, under_mpi.output + plain.output
    assert "1 passed in" in under_mpi.stdout and "1 passed, 1 skipped in" in plain.stdout


def test_tests_of_one_process_are_dealt(run, tmp_path):
    """A file to a rank, to one more than there are cores; all are reported once."""
    (tmp_path / "conftest.py").write_text("import pytest\nlaunch = pytest.fixture(lambda: None)\n")
    (tmp_path / "test_launching.py").write_text("from mpi4py import MPI\n\n\ndef test_launching(launch):\n"
                                                "    assert MPI.COMM_WORLD.Get_rank() == 0\n")
    end = run(3, """
        from mpizero.launcher import rank_in_job

        @pytest.mark.parametrize("i", [0, 1])
        def test_alone(i):
            assert rank_in_job() == 0
            print(f"ran on rank {rank}")
            assert i == 0, "own words"

        @on_ranks
        def test_on_ranks():
            assert rank_in_job() == rank
    """, "--with-mpi", "-v", "-rA", tmp_path / "test_launching.py")
    assert end.status == 1 and "1 failed, 3 passed" in end.stdout, end.output
    assert end.stdout.count("own words") > 0 and end.stdout.count("::test_alone[1] FAILED") == 1
    assert f"ran on rank {WORKER}" in end.stdout


def test_dealing_whole_files():
    def item(name, file, *markers):
        return SimpleNamespace(nodeid=name, path=file, get_closest_marker=lambda marker: marker in markers or None)

    items = [item("a", "A"), item("b", "B"), item("b2", "B"), item("c", "C"), item("d", "B", "launches"),
             item("e", "A", "mpi")]
    one_file = {"b": 0, "b2": 0, "d": 0}  # the heaviest, since it starts ranks
    assert dealt(items, 1) == {**one_file, "a": 0, "c": 0}
    assert dealt(items, 2) == {**one_file, "a": 1, "c": 1}
    assert dealt(items, 3) == {**one_file, "a": 1, "c": 2}
    launching = [item(name, name, "launches") for name in "abc"]
    assert dealt(launching, 4) == {"a": 0, "b": 1, "c": 0}  # two at a time
    assert dealt(launching, 4, 1) == {"a": 0, "b": 0, "c": 0}


def test_the_body_runs_on_the_ranks_of_the_group(group, world):
    assert group is not None
    assert group.ranks == tuple(range(group.size)) and world.rank < group.size
    assert group.log.records == [] and group.log is not world.log


def test_shared_path(shared_path, world):
    (shared_path / str(world.rank)).touch()
    barrier(world)
    assert len(list(shared_path.iterdir())) == world.size
    barrier(world)
