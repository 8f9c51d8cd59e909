"""Facts of machines that nobody has here."""

from __future__ import annotations

from dataclasses import replace

from mpizero.doctor.facts import Facts
from mpizero.doctor.host import Host, Interface
from mpizero.doctor.launched import Started
from mpizero.doctor.rank import Rank
from mpizero.doctor.speed import DTYPES, Speeds

GB = 10**9
ETH = Interface("eth0", "10.0.0.1", "up", True, 10e9, 0)
LO = Interface("lo", "127.0.0.1", "unknown", False, None, 0)
HOST = Host("CPU", 8, 64 * GB, None, 0, 32 * GB, 30 * GB, "performance", "intel_pstate", "eth0", (LO, ETH))
RANK = Rank("a", tuple(range(8)), None, "Open MPI v5.0.11", "MULTIPLE", "openblas 0.3", 1, {}, {"numpy": "2.4"})
MPIRUN = Started("Open MPI's mpirun", "/opt/mpi/bin/prterun", (), "/opt/mpi/bin/mpirun", "/opt/mpi/bin/mpirun", (),
                 False)


def facts(places="aaaa", started=None, host=None, hosts=None, **rank):
    """places: the host of each rank. started, host, rank: what differs from the samples; hosts: of one host alone."""
    ranks = tuple(replace(RANK, host=name, **rank) for name in places)
    each = replace(HOST, **host or {})
    return Facts(ranks, {name: replace(each, **(hosts or {}).get(name, {})) for name in dict.fromkeys(places)},
                 replace(MPIRUN, **started or {}))


def speeds(ranks=4, rates=None, alone=2e10, busy=0.0):
    """rates: of each rank's products in float32."""
    same = {dtype: (1e10,) * ranks for dtype in DTYPES}
    return Speeds((busy,) * ranks, (alone,) * ranks, same | {"float32": tuple(rates or (1e10,) * ranks)},
                  {dtype: (5e9,) * ranks for dtype in DTYPES}, {dtype: (1e8,) * ranks for dtype in DTYPES},
                  (3e9,) * ranks)
