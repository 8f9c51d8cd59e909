"""Ranks that talk: process groups, meshes, rings over point-to-point messages, the traffic log, a job's start and end.

The only package that uses MPI. What touches the module mpi4py stands in `mpizero.comm.mpi`, and only `start` imports
it.
"""

from mpizero.comm.clock import Offset, clock_offset
from mpizero.comm.collectives import all_gather, all_gather_values, all_reduce, barrier, broadcast, reduce_scatter
from mpizero.comm.group import Group
from mpizero.comm.hosts import needlessly_spread
from mpizero.comm.mesh import Mesh, mesh
from mpizero.comm.mpi.main import run_main
from mpizero.comm.mpi.start import start
from mpizero.comm.ring import chunk
from mpizero.comm.traffic import Message, Record, Totals, TrafficLog

__all__ = ["Group", "Mesh", "Message", "Offset", "Record", "Totals", "TrafficLog", "all_gather", "all_gather_values",
           "all_reduce", "barrier", "broadcast", "chunk", "clock_offset", "mesh", "needlessly_spread", "reduce_scatter",
           "run_main", "start"]
