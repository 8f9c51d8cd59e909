"""ZeRO data parallelism on real MPI ranks, counted to the byte. Importing this needs no MPI and loads no NumPy."""

from mpizero._missing import explain_missing_numpy
from mpizero._threads import one_blas_thread_per_rank

one_blas_thread_per_rank()
explain_missing_numpy()
