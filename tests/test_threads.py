"""One BLAS thread per rank where ranks share a machine, and the user's word against it."""

from __future__ import annotations

import os

import pytest

from mpizero._threads import BLAS_VARIABLES, one_blas_thread_per_rank
from mpizero.launcher import ranks_on_machine

ASK_BLAS = """
import mpizero, numpy, threadpoolctl
threads = {pool["num_threads"] for pool in threadpoolctl.threadpool_info() if pool["user_api"] == "blas"}
print(f"threads={threads}\\n", end="")
"""
UNSET = dict.fromkeys((*BLAS_VARIABLES, "OMP_NUM_THREADS"))


@pytest.mark.parametrize("environ, ranks", [
    ({}, 1),
    ({"OMPI_COMM_WORLD_LOCAL_SIZE": "4"}, 4),
    ({"MPI_LOCALNRANKS": "3"}, 3),
    ({"SLURM_STEP_TASKS_PER_NODE": "4(x2),1"}, 4),
    ({"SLURM_STEP_TASKS_PER_NODE": "1(x8)"}, 1),
    ({"SLURM_STEP_TASKS_PER_NODE": "16"}, 16),
    ({"MPI_LOCALNRANKS": "what?", "SLURM_STEP_TASKS_PER_NODE": ""}, 1),
])
def test_launchers(environ, ranks):
    assert ranks_on_machine(environ) == ranks


@pytest.mark.parametrize("own", [{}, {"OPENBLAS_NUM_THREADS": "3"}, {"OMP_NUM_THREADS": "2"}])
def test_what_the_user_has_set_stays(own):
    environ = {"MPI_LOCALNRANKS": "2", **own}
    one_blas_thread_per_rank(environ)
    assert {name: environ[name] for name in own} == own
    others = {environ.get(name) for name in UNSET if name not in own}
    assert others == ({None} if "OMP_NUM_THREADS" in own else {"1"})


@pytest.mark.parametrize("ranks", [None, 1])
def test_a_rank_alone_keeps_all_cores(ranks):
    environ = {} if ranks is None else {"MPI_LOCALNRANKS": str(ranks)}
    one_blas_thread_per_rank(environ)
    assert not set(environ) & set(UNSET)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="with one core every BLAS starts one thread")
@pytest.mark.parametrize("n, own, threads", [
    (2, {}, 1), (2, {"OMP_NUM_THREADS": "2"}, 2), (None, {}, len(os.sched_getaffinity(0)))])
def test_what_blas_says(launch, n, own, threads):
    end = launch(n, "-c", ASK_BLAS, env={**UNSET, **own})
    assert end.status == 0, end.output
    assert end.stdout.split("\n") == [f"threads={{{threads}}}"] * (n or 1) + [""]
