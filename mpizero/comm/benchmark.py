"""Our rings against MPI's own collectives, on the ranks at hand.

[Note: unequal shards] A ring needs chunks of one size. Where one element of rank 1 lies on rank 0, PyTorch emulates an
all-gather by a broadcast from each rank, one after the other (FSDP, arXiv:2304.11277, sec. 3.2.1 and figure 2): so this
measures ours, against MPI's Allgatherv.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from mpizero.comm.collectives import (
    all_gather, all_gather_values, all_reduce, barrier, broadcast, reduce, reduce_scatter,
)
from mpizero.comm.group import Group
from mpizero.comm.mpi import reference
from mpizero.layout.rings import chunk

Call = Callable[[], None]
WARM_UP = 8  # rounds that do not count
UNEQUAL = "all_gather of unequal shards"  # see [Note: unequal shards]
IN_A_ROW = 3  # calls timed together


@final
@dataclass(frozen=True)
class Row:
    """One collective at one size; times are medians over the repeats of the slowest rank's seconds.

    `bytes` follows nccl-tests (doc/PERFORMANCE.md): the size of the whole array, which is what a rank puts into a
    reduce-scatter or an all-reduce and what it has after an all-gather. algbw = bytes / ours_s; busbw = algbw *
    (n-1)/n, for an all-reduce algbw * 2 (n-1)/n, which is what a rank of the ring sends per second, and for broadcast
    and reduce, which have a root, algbw. Both in bytes per second.
    """

    op: str
    bytes: int
    dtype: str
    ours_s: float
    mpi_s: float
    ratio: float  # mpi_s / ours_s: above 1 ours is faster
    algbw: float
    busbw: float


def measure(
    group: Group, sizes: Sequence[int], dtype: str = "float32", repeat: int = 21, in_place: bool = False
) -> list[Row]:
    """Rows for each op at each size in bytes (rounded up to whole elements a rank), the same on every rank. Collective.

    Ours works in place: a rank's shard is its own chunk of the whole array. MPI's is called in its plain form, with a
    send and a receive buffer; with `in_place` it is called with MPI_IN_PLACE.
    """
    rows = []
    for size in sizes:
        numel = -(-size // (np.dtype(dtype).itemsize * group.size)) * group.size
        for op, ours, mpis in _calls(group, numel, dtype, in_place):
            ours_s, mpi_s = _alternate(group, ours, mpis, repeat)
            rows.append(_row(op, numel, dtype, group.size, ours_s, mpi_s))
    return rows


def _calls(group: Group, numel: int, dtype: str, in_place: bool) -> list[tuple[str, Call, Call]]:
    """(op, ours, MPI's) on arrays of zeros, which additions leave as they are however often they run."""
    flat, whole, shard = (np.zeros(count, dtype) for count in (numel, numel, numel // group.size))
    for array in (flat, whole, shard):
        array.fill(0)  # touch the pages, which np.zeros does not
    own, root = flat[chunk(numel, group.rank, group.size)], 0
    result, apart = (None, None) if in_place else (whole, shard)
    summed = whole if group.rank == root else whole[:0]
    counts = unequal(numel, group.size)
    parts = np.split(flat, np.cumsum(counts)[:-1])

    def broadcasts() -> None:
        for rank, part in enumerate(parts):
            broadcast(group, part, rank)

    return [
        ("reduce_scatter",
         lambda: reduce_scatter(group, flat, own), lambda: reference.mpi_reduce_scatter(group, flat, apart)),
        ("all_gather",
         lambda: all_gather(group, flat), lambda: reference.mpi_all_gather(group, flat, apart)),
        ("all_reduce",
         lambda: all_reduce(group, flat), lambda: reference.mpi_all_reduce(group, flat, result)),
        ("broadcast",
         lambda: broadcast(group, flat, root), lambda: reference.mpi_broadcast(group, flat, root)),
        ("reduce",
         lambda: reduce(group, flat, summed, root), lambda: reference.mpi_reduce(group, flat, result, root)),
        (UNEQUAL,
         broadcasts, lambda: reference.mpi_all_gather_unequal(
             group, flat, None if in_place else whole[:counts[group.rank]], counts)),
    ]


def unequal(numel: int, size: int) -> list[int]:
    """Elements of each rank's shard, of which one element has moved from rank 1 to rank 0."""
    counts = [numel // size] * size
    if size > 1:
        counts[:2] = counts[0] + 1, counts[1] - 1
    return counts


def _alternate(group: Group, ours: Call, mpis: Call, repeat: int) -> tuple[float, float]:
    """Medians of both, measured in turn so that both meet the same disturbances.

    One measurement is the mean of IN_A_ROW calls, as in nccl-tests: a call then finds in the caches what its own kind
    has left there.
    """
    seconds = np.empty((WARM_UP + repeat, 2))
    for row in seconds:
        for column, call in enumerate((ours, mpis)):
            barrier(group)
            begin = time.perf_counter()
            for _ in range(IN_A_ROW):
                call()
            row[column] = (time.perf_counter() - begin) / IN_A_ROW
    slowest = all_gather_values(group, seconds[WARM_UP:].reshape(-1)).max(axis=0).reshape(-1, 2)
    ours_s, mpi_s = np.median(slowest, axis=0)
    return float(ours_s), float(mpi_s)


def _row(op: str, numel: int, dtype: str, size: int, ours_s: float, mpi_s: float) -> Row:
    nbytes = numel * np.dtype(dtype).itemsize
    algbw = nbytes / ours_s
    busbw = algbw * (1 if op in ("broadcast", "reduce") else (size - 1) / size * (2 if op == "all_reduce" else 1))
    return Row(op, nbytes, dtype, ours_s, mpi_s, mpi_s / ours_s, algbw, busbw)
