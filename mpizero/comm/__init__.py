"""Ranks that talk: process groups, meshes, rings over point-to-point messages, the traffic log, a job's start and end.

The only package that uses MPI. What touches the module mpi4py stands in `mpizero.comm.mpi`, and only `start` imports
it.
"""

from mpizero.comm.addition import adder
from mpizero.comm.clock import Offset, clock_offset
from mpizero.comm.collective import Collective
from mpizero.comm.collectives import (
    all_gather,
    all_gather_values,
    all_reduce,
    barrier,
    begin_all_gather,
    begin_all_reduce,
    begin_broadcast,
    begin_reduce,
    begin_reduce_scatter,
    broadcast,
    reduce,
    reduce_scatter,
)
from mpizero.comm.group import Group
from mpizero.comm.hosts import cores_each, needlessly_spread, overlaps, spread
from mpizero.comm.mesh import Mesh, mesh
from mpizero.comm.mpi.main import run_main
from mpizero.comm.mpi.start import start
from mpizero.comm.stream import Polled, Stream, Threaded, stream_for
from mpizero.comm.traffic import Message, Record, Totals, TrafficLog
from mpizero.layout.rings import chunk

__all__ = ["Collective", "Group", "Mesh", "Message", "Offset", "Polled", "Record", "Stream", "Threaded", "Totals",
           "TrafficLog", "adder", "all_gather", "all_gather_values", "all_reduce", "barrier", "begin_all_gather",
           "begin_all_reduce", "begin_broadcast", "begin_reduce", "begin_reduce_scatter", "broadcast", "chunk",
           "clock_offset", "cores_each", "mesh", "needlessly_spread", "overlaps", "reduce", "reduce_scatter",
           "run_main", "spread", "start", "stream_for"]
