"""MPI's own collectives on our groups: the reference of tests and benchmarks, and nothing on the training path.

They wait by spinning. float16 and bfloat16 have no MPI type that every library can add, so the reductions take other types only.
"""

from __future__ import annotations

import numpy as np

from mpizero.dist.group import Group
from mpizero.dist.lane import Array


def mpi_reduce_scatter(group: Group, flat: Array, out: Array) -> None:
    """out (numel / size,) = sum over ranks of this rank's chunk of flat (numel,). numel must be a multiple of the group's size."""
    group._comm.Reduce_scatter_block(flat, out)


def mpi_all_gather(group: Group, flat: Array) -> None:
    """In place: every rank's own chunk of flat (numel,), a multiple of the group's size, is sent to all. Any dtype."""
    group._comm.Allgather(group._mpi.IN_PLACE, [flat.view(np.uint8), group._mpi.BYTE])


def mpi_all_reduce(group: Group, flat: Array) -> None:
    """flat (numel,) = sum over ranks, in place."""
    group._comm.Allreduce(group._mpi.IN_PLACE, flat)


def mpi_broadcast(group: Group, flat: Array, root: int) -> None:
    """flat (numel,) = that of group rank `root`, in place. Any dtype."""
    group._comm.Bcast([flat.view(np.uint8), group._mpi.BYTE], root)

