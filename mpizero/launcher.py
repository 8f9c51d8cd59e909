"""What an mpirun tells its ranks through the environment, known before MPI starts."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping


def rank_in_job(environ: Mapping[str, str] = os.environ) -> int | None:
    """This process's rank; None if no mpirun started it."""
    return _number(environ, "OMPI_COMM_WORLD_RANK", "PMI_RANK")


def rank_on_machine(environ: Mapping[str, str] = os.environ) -> int | None:
    """This process's number among the ranks of its machine; None if no mpirun started it."""
    return _number(environ, "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")


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


def _number(environ: Mapping[str, str], *names: str) -> int | None:
    """The first of these variables that holds a number."""
    return next((int(environ[name]) for name in names if environ.get(name, "").isdigit()), None)
