"""Without MPI."""

from __future__ import annotations

import builtins

import pytest

from mpizero.comm.mpi.start import _check_launcher, _load
from mpizero.errors import LaunchError
from mpizero.launcher import rank_in_job


def test_importing_needs_no_mpi(launch):
    code = "import sys, mpizero, mpizero.comm; sys.exit('mpi4py' in sys.modules)"
    finished = launch(None, "-c", code)
    assert finished.status == 0, finished.output


def test_mpi4py_missing(monkeypatch):
    real_import = builtins.__import__

    def without_mpi4py(name, *args, **options):
        if name.startswith("mpi4py"):
            raise ModuleNotFoundError(f"No module named {name!r}")
        return real_import(name, *args, **options)

    monkeypatch.setattr(builtins, "__import__", without_mpi4py)
    with pytest.raises(LaunchError, match="mpi4py is not installed: .*pip install") as caught:
        _load()
    assert "\n" not in str(caught.value)


class OtherLibrary:
    @staticmethod
    def Get_library_version():
        return "Some MPI 9.9, package\nline two\0"


@pytest.mark.parametrize("variable", ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE"])
def test_mpirun_of_another_library(monkeypatch, variable):
    """Each rank would believe itself alone."""
    for name in ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE"):
        monkeypatch.delenv(name, raising=False)
    _check_launcher(1, OtherLibrary)
    monkeypatch.setenv(variable, "4")
    _check_launcher(4, OtherLibrary)
    text = "mpirun started 4 ranks, .* another MPI library .Some MPI 9.9, package., .*start it with"
    with pytest.raises(LaunchError, match=text):
        _check_launcher(1, OtherLibrary)


def test_rank_as_mpirun_told(monkeypatch):
    for name in ("OMPI_COMM_WORLD_RANK", "PMI_RANK"):
        monkeypatch.delenv(name, raising=False)
    assert rank_in_job() is None
    monkeypatch.setenv("PMI_RANK", "3")
    assert rank_in_job() == 3
