"""The helper that starts ranks from inside a test."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.support.launch import clean_environment

SIZE = "from mpi4py import MPI; print(f'size={MPI.COMM_WORLD.Get_size()}\\n', end='')"


def test_a_world_of_its_own(launch):
    """Under an outer mpirun too: a child that took the outer ranks for its own would not see two."""
    end = launch(2, "-c", SIZE)
    assert (end.status, end.stdout) == (0, "size=2\n" * 2), end.output


def test_without_mpirun(launch):
    end = launch(None, "-c", SIZE)
    assert (end.status, end.stdout) == (0, "size=1\n"), end.output


def test_status_output_and_environment(launch):
    code = "import os, sys; print('out', os.environ['GIVEN'], 'HOME' in os.environ); sys.exit('err\\0or')"
    end = launch(None, "-c", code, env={"GIVEN": "yes", "HOME": None})
    assert (end.status, end.stdout, end.stderr) == (1, "out yes False\n", "error\n")


def test_a_hang_is_an_error_and_leaves_no_process(launch, tmp_path):
    code = (f"import os, time; open(os.path.join({str(tmp_path)!r}, str(os.getpid())), 'w'); "
            "print('started', flush=True); time.sleep(1000)")
    with pytest.raises(TimeoutError, match=r"not ended after \d+ s(.|\n)*started"):
        launch(2, "-c", code, timeout=3)
    pids = [int(path.name) for path in tmp_path.iterdir()]
    for _ in range(50):
        alive = [pid for pid in pids if Path(f"/proc/{pid}").exists()]
        if not alive:
            break
        time.sleep(0.1)
    assert len(pids) == 2 and not alive


def test_what_an_outer_mpirun_set_is_gone(monkeypatch):
    names = {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_FD", "HYDI_CONTROL_FD", "MPI_LOCALNRANKS", "PRTE_LAUNCHED",
             "OPAL_PREFIX"}
    for name in names:
        monkeypatch.setenv(name, "1")
    assert set(os.environ) - set(clean_environment()) >= names
