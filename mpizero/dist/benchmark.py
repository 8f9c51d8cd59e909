"""Our rings against MPI's own collectives, on the ranks at hand."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from mpizero.dist import collectives, reference
from mpizero.dist.group import Group

Call = Callable[[], None]


@dataclass(frozen=True)
class Row:
    """One collective at one size; times are medians over the repeats of the slowest rank's seconds.

    bytes follow nccl-tests (doc/PERFORMANCE.md): the size of the whole array, which is what a rank puts into a reduce-scatter
    or all-reduce and what it has after an all-gather. algbw = bytes / ours_s; busbw = algbw * (n-1)/n, for an all-reduce
    algbw * 2 (n-1)/n: the bytes a rank sends in the ring per second. Both in bytes per second.
    """

    op: str
    bytes: int
    dtype: str
    ours_s: float
    mpi_s: float
    ratio: float  # mpi_s / ours_s: above 1 ours is faster
    algbw: float
    busbw: float


def measure(group: Group, sizes: Sequence[int], dtype: str = "float32", repeat: int = 21) -> list[Row]:
    """Rows for each op and each size in bytes (rounded up to whole elements a rank). The same on every rank."""
    rows = []
    for size in sizes:
        numel = -(-size // (np.dtype(dtype).itemsize * group.size)) * group.size
        for op, ours, mpis in _calls(group, numel, dtype):
            ours_s, mpi_s = _alternate(group, ours, mpis, repeat)
            rows.append(_row(op, numel, dtype, group.size, ours_s, mpi_s))
    return rows


def _calls(group: Group, numel: int, dtype: str) -> list[tuple[str, Call, Call]]:
    """(op, ours, MPI's) on arrays of zeros, which additions leave as they are however often they run."""
    flat, out = np.zeros(numel, dtype), np.zeros(numel // group.size, dtype)
    flat[:], out[:] = 0, 0  # touch the pages
    return [
        ("reduce_scatter", lambda: collectives.reduce_scatter(group, flat, out), lambda: reference.mpi_reduce_scatter(group, flat, out)),
        ("all_gather", lambda: collectives.all_gather(group, flat), lambda: reference.mpi_all_gather(group, flat)),
        ("all_reduce", lambda: collectives.all_reduce(group, flat), lambda: reference.mpi_all_reduce(group, flat)),
    ]


def _alternate(group: Group, ours: Call, mpis: Call, repeat: int) -> tuple[float, float]:
    """Medians of both, measured in turn so that both see the same disturbances. The first two rounds warm up."""
    seconds = np.empty((repeat + 2, 2))
    for row in seconds:
        for column, call in enumerate((ours, mpis)):
            group.barrier()
            begin = time.perf_counter()
            call()
            row[column] = time.perf_counter() - begin
    slowest = collectives.all_gather_values(group, seconds[2:].reshape(-1)).max(axis=0).reshape(-1, 2)
    ours_s, mpi_s = np.median(slowest, axis=0)
    return float(ours_s), float(mpi_s)


def _row(op: str, numel: int, dtype: str, size: int, ours_s: float, mpi_s: float) -> Row:
    nbytes = numel * np.dtype(dtype).itemsize
    algbw = nbytes / ours_s
    busbw = algbw * (size - 1) / size * (2 if op == "all_reduce" else 1)
    return Row(op, nbytes, dtype, ours_s, mpi_s, mpi_s / ours_s, algbw, busbw)
