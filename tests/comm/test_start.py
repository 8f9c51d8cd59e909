"""Starting: without MPI, and under a launcher of another one."""

from __future__ import annotations

import builtins
import os
import sys
from pathlib import Path

import pytest

from mpizero.comm.mpi.start import _brief, _check_launcher, _load, _remedy
from mpizero.errors import LaunchError
from tests.support.launch import ROOT, clean_environment, mpirun
from tests.support.launch import launch as launch_ranks


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
    with pytest.raises(LaunchError, match="^MPI is not available: pip install .*mpi4py is not installed") as caught:
        _load()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("reason", "found", "cure"), [
    ("libmpi.so.12: cannot open", "libmpich.so.12", f"mpicc.mpich -shared .* -o {sys.prefix}/lib/libmpi.so.12 gives "),
    ("libmpi.so.12: cannot open", None, "pip install "),
    ("undefined symbol", "libmpich.so.12", "pip install "),
])
def test_no_library_that_works(monkeypatch, reason, found, cure):
    """Debian's MPICH is there, but mpi4py's wheel asks for it by another name."""
    real_import = builtins.__import__

    def without_library(name, scope=None, local=None, names=(), level=0):
        if name == "mpi4py" and "MPI" in (names or ()):
            raise ImportError(reason)
        return real_import(name, scope, local, names, level)

    monkeypatch.setattr("mpizero.comm.mpi.start.find_library", {"mpich": found}.get)
    monkeypatch.setattr(builtins, "__import__", without_library)
    with pytest.raises(LaunchError, match=f"^MPI is not available: {cure}.* finds no MPI library .*{reason}"):
        _load()


def test_files_of_one_trouble_are_named_together():
    lines = ["cannot load MPI library", "/venv/lib/libmpi.so: no such file", "/venv/lib/libmpi.so.12: no such file",
             "/other/libmpi.so.40: bad", "libmpi.so: no such file", "libmpi.so.12: no such file"]
    assert _brief("\n".join(lines)) == (
        "cannot load MPI library; libmpi.so, libmpi.so.12: no such file; /other/libmpi.so.40: bad")


def test_the_page_on_hosts_has_the_same_command(monkeypatch):
    monkeypatch.setattr("mpizero.comm.mpi.start.find_library", str)
    command = _remedy("libmpi.so.12").split(" gives ")[0].replace(sys.prefix, '"$VIRTUAL_ENV"')
    assert f"    {command}\n" in (ROOT / "hostfiles" / "README.md").read_text()


class OtherLibrary:
    @staticmethod
    def Get_library_version():
        return "Some MPI 9.9, package\nline two\0"


@pytest.mark.parametrize("variable", ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"])
def test_launcher_of_another_library(monkeypatch, variable):
    """Each rank would believe itself alone. A library that nobody knows is asked to start first."""
    clean(monkeypatch)
    monkeypatch.setattr("mpizero.comm.mpi.start._shared_libraries", lambda: "")  # of ranks, one is loaded
    _check_launcher(OtherLibrary, 1)
    monkeypatch.setenv(variable, "4")
    _check_launcher(OtherLibrary)
    _check_launcher(OtherLibrary, 4)
    text = r"(mpirun|srun) started 4 ranks, but not for the MPI library of this process \(Some MPI\), .* it is alone: "
    with pytest.raises(LaunchError, match=text + "start it with .*that library's mpirun"):
        _check_launcher(OtherLibrary, 1)


def clean(monkeypatch):
    for name in set(os.environ) - set(clean_environment()):
        monkeypatch.delenv(name)


def other_mpirun(library):
    """What the other library's mpirun tells its ranks."""
    if library.startswith("MPICH"):
        return {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "{rank}", "OMPI_COMM_WORLD_LOCAL_RANK": "{rank}",
                "PMIX_RANK": "{rank}", "PMIX_SERVER_URI41": "tcp4://127.0.0.1:1"}
    return {"PMI_SIZE": "2", "PMI_RANK": "{rank}", "MPI_LOCALRANKID": "{rank}", "MPI_LOCALNRANKS": "2", "PMI_FD": "99"}


@pytest.fixture(scope="module")
def library():
    """What the MPI at hand says it is."""
    return launch_ranks(None, "-c", "from mpi4py import MPI; print(MPI.Get_library_version())").stdout


@pytest.mark.parametrize("names", [
    None,
    {"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "{rank}"},
    {"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "{rank}", "SLURM_LOCALID": "{rank}", "SLURM_STEP_ID": "0",
     "SLURM_JOBID": "4"},
    {"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "{rank}", "PMIX_RANK": "{rank}", "PMIX_NAMESPACE": "left over"},
], ids=["mpirun", "srun", "srun with all it sets", "srun and PMIx without a server"])
def test_strange_launcher_is_found_before_mpi_starts(launch, library, names):
    """MPI_Init would abort here, or crash, or start a world of one. The first rank speaks, and names the cure."""
    if not library.startswith(("MPICH", "Open MPI")) or library.startswith("MPICH Version:      4"):
        pytest.skip(f"what others do under a strange mpirun is theirs: {library[:40]}")
    code = "from mpizero.comm import run_main, start; run_main(lambda: print(start().size))"
    for rank in (0, 1):
        env = {name: value.format(rank=rank) for name, value in (names or other_mpirun(library)).items()}
        end = launch(None, "-c", code, env=env)
        assert (end.status, end.stdout) == (2, ""), end.output
        [*lines] = end.stderr.splitlines()
        assert len(lines) == (rank == 0), end.output
        if rank == 0:
            assert " started 2 ranks, but not for the MPI library of this process" in lines[0]
            path = lines[0].split()[-1]
            assert Path(path).exists() and os.path.samefile(path, mpirun())
