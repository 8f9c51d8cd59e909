"""One BLAS thread per rank where ranks share a machine: N ranks with a thread per core each would fight for every core.

BLAS libraries read their thread count when they are loaded, so this must run before NumPy is imported: `mpizero/__init__.py`
calls it first of all. Set OMP_NUM_THREADS, or the library's own variable, to choose another number.
"""

from __future__ import annotations

import os
import re
from collections.abc import MutableMapping

# OpenBLAS is what NumPy's wheels bring; the others are what a NumPy built elsewhere may use.
BLAS_VARIABLES = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")


def ranks_on_this_machine(environ: MutableMapping[str, str]) -> int:
    """Number of ranks that the launcher started on this machine, 1 if no launcher tells.

    Open MPI's mpirun sets OMPI_COMM_WORLD_LOCAL_SIZE, Hydra (MPICH, Intel MPI) MPI_LOCALNRANKS. Under Slurm's srun the job
    step lists ranks per node, as in "4(x2),1"; its largest entry counts, since the variable does not say which node this is.
    """
    for name in ("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"):
        if environ.get(name, "").isdigit():
            return int(environ[name])
    per_node = re.sub(r"\(x\d+\)", "", environ.get("SLURM_STEP_TASKS_PER_NODE", ""))
    return max((int(count) for count in per_node.split(",") if count.isdigit()), default=1)


def one_blas_thread_per_rank(environ: MutableMapping[str, str] = os.environ) -> None:
    """Ask every BLAS for one thread if ranks share this machine; what the user has set stays."""
    if ranks_on_this_machine(environ) > 1 and "OMP_NUM_THREADS" not in environ:  # which all of them obey
        for name in (*BLAS_VARIABLES, "OMP_NUM_THREADS"):
            environ.setdefault(name, "1")
