"""MPI's own collectives on our groups: the reference of tests and benchmarks, and nothing on the training path.

They wait by spinning. The reductions take types that MPI can add: float32, float64 and integers, not float16 or
bfloat16.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mpizero.comm.channel import Array
from mpizero.comm.group import Group


def mpi_reduce_scatter(group: Group, flat: Array, out: Array | None = None) -> None:
    """out (numel / size,) = sum over ranks of this rank's chunk of flat (numel,), a multiple of the group's size.

    Without `out` in place, which in MPI means at the beginning of `flat`.
    """
    if out is None:
        group._comm.Reduce_scatter_block(group._mpi.IN_PLACE, flat)
    else:
        group._comm.Reduce_scatter_block(flat, out)


def mpi_all_gather(group: Group, flat: Array, shard: Array | None = None) -> None:
    """flat (numel,) = all ranks' shards (numel / size,) one after the other. Any dtype.

    Without `shard` in place: it is flat's own chunk.
    """
    byte = group._mpi.BYTE
    mine = group._mpi.IN_PLACE if shard is None else [shard.view(np.uint8), byte]
    group._comm.Allgather(mine, [flat.view(np.uint8), byte])


def mpi_all_reduce(group: Group, flat: Array, out: Array | None = None) -> None:
    """out (numel,) = sum over ranks of flat (numel,). Without `out` in place."""
    if out is None:
        group._comm.Allreduce(group._mpi.IN_PLACE, flat)
    else:
        group._comm.Allreduce(flat, out)


def mpi_broadcast(group: Group, flat: Array, root: int) -> None:
    """flat (numel,) = that of group rank `root`, in place. Any dtype."""
    group._comm.Bcast([flat.view(np.uint8), group._mpi.BYTE], root)


def mpi_reduce(group: Group, flat: Array, out: Array | None, root: int) -> None:
    """On group rank `root` out (numel,) = sum over ranks of flat (numel,). Without `out` there in place."""
    if group.rank != root:
        group._comm.Reduce(flat, None, root=root)
    elif out is None:
        group._comm.Reduce(group._mpi.IN_PLACE, flat, root=root)
    else:
        group._comm.Reduce(flat, out, root=root)


def mpi_all_gather_unequal(group: Group, flat: Array, shard: Array | None, counts: Sequence[int]) -> None:
    """flat (numel,) = all ranks' shards, of so many elements each, one after the other. Any dtype.

    Without `shard` in place.
    """
    byte, nbytes = group._mpi.BYTE, [count * flat.itemsize for count in counts]
    mine = group._mpi.IN_PLACE if shard is None else [shard.view(np.uint8), byte]
    group._comm.Allgatherv(mine, [flat.view(np.uint8), nbytes, byte])
