"""One BLAS thread per rank where ranks share a machine: N ranks with a thread per core each would fight for every core.

BLAS libraries read their thread count when they are loaded, so this must run before NumPy is imported:
`mpizero/__init__.py` calls it first of all. Set OMP_NUM_THREADS, or the library's own variable, to choose another
number.
"""

from __future__ import annotations

import os
from collections.abc import MutableMapping

from mpizero.launcher import ranks_on_machine

# OpenBLAS is what NumPy's wheels bring; the others are what a NumPy built elsewhere may use.
BLAS_VARIABLES = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")


def one_blas_thread_per_rank(environ: MutableMapping[str, str] = os.environ) -> None:
    """Ask every BLAS for one thread if ranks share this machine; what the user has set stays."""
    if ranks_on_machine(environ) > 1 and "OMP_NUM_THREADS" not in environ:  # which all of them obey
        for name in (*BLAS_VARIABLES, "OMP_NUM_THREADS"):
            environ.setdefault(name, "1")
