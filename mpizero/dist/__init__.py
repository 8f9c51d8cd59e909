"""Ranks that talk: start-up, process groups, meshes, rings over point-to-point messages, the traffic log, and how a job ends.

The only package that uses mpi4py, and only once `start` is called.
"""

from mpizero.dist.collectives import all_gather, all_gather_values, all_reduce, broadcast, reduce_scatter
from mpizero.dist.failure import run_main
from mpizero.dist.group import Group
from mpizero.dist.mesh import Mesh, mesh
from mpizero.dist.ring import chunk
from mpizero.dist.start import start
from mpizero.dist.traffic import Message, Record, Totals, TrafficLog

__all__ = ["Group", "Mesh", "Message", "Record", "Totals", "TrafficLog", "all_gather", "all_gather_values", "all_reduce", "broadcast",
           "chunk", "mesh", "reduce_scatter", "run_main", "start"]
