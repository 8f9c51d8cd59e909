"""What a launcher (mpirun, srun) tells its ranks through the environment, known before MPI starts."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

SPECIAL_STEPS = 0xFFFFFFF0  # Slurm's step numbers from here on are batch scripts, interactive shells and the like


@dataclass(frozen=True)
class Launch:
    """Who started this process, with how many ranks in all (None: not told), and how ranks find each other.

    wiring: PMI or PMIx, or "" where the launcher offers none.
    """

    name: str
    ranks: int | None
    wiring: str


def launch(environ: Mapping[str, str] = os.environ) -> Launch | None:
    """The launcher closest to this process; None if there was none.

    An mpirun may have been started inside a Slurm step, or start its helpers as one: then its ranks see both.
    """
    step = _step(environ, "SLURM_STEP_NUM_TASKS")
    if (ranks := _number(environ, "OMPI_COMM_WORLD_SIZE")) is not None:
        return Launch("Open MPI's mpirun", ranks, "PMIx")
    ranks = _number(environ, "PMI_SIZE")
    if "PMIX_RANK" in environ:
        wiring = "PMIx" if any(name.startswith("PMIX_SERVER_URI") for name in environ) else ""  # else left over
        name = "mpirun" if step is None else "srun --mpi=pmix" if wiring else "srun"
        return Launch(name, ranks if step is None else step, wiring)
    if ranks is not None:
        hydra = "MPI_LOCALNRANKS" in environ  # Intel MPI has the same
        return Launch("MPICH's mpirun" if hydra else "mpirun" if step is None else "srun --mpi=pmi2", ranks, "PMI")
    return None if step is None else Launch("srun", step, "")


def is_foreign(launch: Launch, library: str, loaded: str) -> bool:
    """Whether that MPI library surely cannot find the other ranks: to be asked before MPI_Init, which may abort then.

    library: its name, as 'MPICH 5.0.2'. loaded: paths of the process's shared libraries. False where only MPI_Init can
    tell: libraries may be built for several launchers, or load at run time what finds them.
    """
    if library.startswith("Open MPI"):  # version 4 may also know srun --mpi=pmi2
        return launch.ranks != 1 and (launch.name == "MPICH's mpirun" or launch.wiring == "")
    if library.startswith("MPICH"):
        return {"PMIx": "libpmix" not in loaded,
                "": launch.ranks != 1 and "libpmi" not in loaded}.get(launch.wiring, False)
    return False


def cure(launch: Launch, library: str, loaded: str) -> str:
    """How to start ranks that use this MPI library."""
    mpirun = mpirun_of(library, loaded) or "that library's mpirun"
    if not launch.name.startswith("srun"):
        return mpirun
    return f"srun --mpi={'pmix' if library.startswith('Open MPI') else 'pmi2'}, or inside the allocation with {mpirun}"


def mpirun_of(library: str, loaded: str) -> str | None:
    """The mpirun in the tree that holds the library; with the name that Debian gives it first."""
    family = library.lower().replace(" ", "").rstrip("0123456789.v")  # openmpi, mpich
    for path in dict.fromkeys(re.findall(r"/\S*/libmpi[a-z_]*\.so\S*", loaded)):
        for folder in Path(path).parents[:-1]:  # not /: its bin is another tree's
            for name in (f"mpirun.{family}", "mpirun"):
                if os.access(folder / "bin" / name, os.X_OK):
                    return str(folder / "bin" / name)
    return None


def rank_in_job(environ: Mapping[str, str] = os.environ) -> int | None:
    """This process's rank as its launcher counts; None if none started it."""
    told = _number(environ, "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK")
    return _step(environ, "SLURM_PROCID") if told is None else told


def rank_on_machine(environ: Mapping[str, str] = os.environ) -> int | None:
    """This process's number among the ranks of its machine, or if that is not told in the job; None if no launcher
    started it."""
    told = _number(environ, "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")
    told = _step(environ, "SLURM_LOCALID") if told is None else told
    return rank_in_job(environ) if told is None else told


def ranks_on_machine(environ: Mapping[str, str] = os.environ) -> int:
    """Number of ranks that the launcher started on this machine, 1 if no launcher tells.

    Open MPI's mpirun sets OMPI_COMM_WORLD_LOCAL_SIZE, Hydra (MPICH, Intel MPI) MPI_LOCALNRANKS. Under Slurm's srun the
    job step lists ranks per node, as in "4(x2),1"; its largest entry counts, since the variable does not say which node
    this is.
    """
    told = _number(environ, "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")
    if told is not None:
        return told
    per_node = re.sub(r"\(x\d+\)", "", environ.get("SLURM_STEP_TASKS_PER_NODE", ""))
    return max((int(count) for count in per_node.split(",") if count.isdigit()), default=1)


def _step(environ: Mapping[str, str], name: str) -> int | None:
    """A number of the Slurm job step that srun made of this process; None outside one.

    SLURM_PROCID and SLURM_LOCALID are 0 in a batch script too, which is no step of its own; the shell of salloc is one
    by its number, and may hold what was said of the allocation.
    """
    step = environ.get("SLURM_STEP_ID", "0")
    inside = "SLURM_STEP_NUM_TASKS" in environ and step.isdigit() and int(step) < SPECIAL_STEPS
    return _number(environ, name) if inside else None


def _number(environ: Mapping[str, str], *names: str) -> int | None:
    """The first of these variables that holds a number."""
    return next((int(environ[name]) for name in names if environ.get(name, "").isdigit()), None)
