"""ZeRO data parallelism on real MPI ranks, counted to the byte. Importing this needs no MPI and loads no NumPy."""

from mpizero._kernels import kernels_for_processor
from mpizero._missing import explain_missing_numpy
from mpizero._threads import one_blas_thread_per_rank

one_blas_thread_per_rank()
kernels_for_processor()
explain_missing_numpy()
