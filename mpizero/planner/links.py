"""Which of the bytes that a step sends leave the host? From the same list of sends, and where the mesh's ranks stand.

A ring sends to its next member only. Ranks fill hosts in order, so a shard group's ring leaves a host at its border alone, and a
replicate group whose members stand on different hosts leaves it at every rank.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction

from mpizero.planner.geometry import Geometry
from mpizero.planner.states import plain
from mpizero.planner.traffic import Send
from mpizero.schedule.actions import Action, AllReduceGrad, AllReduceShard, Axis


@dataclass(frozen=True)
class Links:
    """Bytes sent in a step. A rank is the busiest: another may send less between hosts, and so more inside its own."""

    sent_bytes: int  # by every rank alike
    inter_host_bytes: int  # by the rank that sends most of them
    intra_host_bytes: int  # by the rank that sends most of them
    host_bytes: int  # leaving the busiest host, all its ranks together
    hosts: int
    by_rank: tuple[tuple[int, int], ...]  # inside, between


def axis_of(action: Action) -> Axis:
    """The axis of the mesh along which a collective runs."""
    match action:
        case AllReduceGrad(_, axis):
            return axis
        case AllReduceShard():
            return Axis.REPLICATE
        case _:
            return Axis.SHARD


def successor(rank: int, axis: Axis, geometry: Geometry) -> int:
    """The world rank to which `rank` sends in a ring along `axis`. Shard groups are neighbours."""
    shards, world = geometry.shards, geometry.shards * geometry.replicas
    if axis is Axis.REPLICATE:
        return (rank + shards) % world
    return rank // shards * shards + (rank + 1) % shards


def place(sends: Iterable[Send], geometry: Geometry, ranks_per_host: int) -> Links:
    """Split what is sent into inside and between hosts of `ranks_per_host` ranks."""
    by_axis: dict[Axis, int] = defaultdict(int)
    for send in sends:
        by_axis[axis_of(send.action)] += send.nbytes
    ranks = list(_ranks(by_axis, geometry, ranks_per_host))
    leaving: dict[int, int] = defaultdict(int)
    for rank, (_, between) in enumerate(ranks):
        leaving[rank // ranks_per_host] += between
    return Links(sum(by_axis.values()), max(between for _, between in ranks), max(inside for inside, _ in ranks), max(leaving.values()),
                 len(leaving), tuple(ranks))


def stays_inside(axis: Axis, geometry: Geometry, ranks_per_host: int) -> bool:
    """No ring along `axis` leaves a host."""
    world = geometry.shards * geometry.replicas
    return all(successor(rank, axis, geometry) // ranks_per_host == rank // ranks_per_host for rank in range(world))


def _ranks(by_axis: dict[Axis, int], geometry: Geometry, ranks_per_host: int) -> Iterator[tuple[int, int]]:
    """(bytes inside the host, bytes between hosts) of each rank."""
    for rank in range(geometry.shards * geometry.replicas):
        far = {axis: successor(rank, axis, geometry) // ranks_per_host != rank // ranks_per_host for axis in by_axis}
        between = sum(nbytes for axis, nbytes in by_axis.items() if far[axis])
        yield sum(by_axis.values()) - between, between


def full_sharding(model_bytes: int, world: int) -> int | float:
    """Two all-gathers and a reduce-scatter over all ranks: 3 M (W-1)/W. FSDP (arXiv:2304.11277), sec. 3.2.2."""
    return plain(Fraction(3 * model_bytes * (world - 1), world))


def hybrid_sharding(model_bytes: int, world: int, group: int) -> int | float:
    """Between hosts, when a shard group of `group` ranks fills a host: the ring all-reduce of M/G over W/G replicas, 2 M (W-G)/(G W)."""
    return plain(Fraction(2 * model_bytes * (world - group), group * world))


def hybrid_sharding_printed(model_bytes: int, world: int, group: int) -> int | float:
    """What the FSDP paper prints for the same (sec. 3.2.2): 2 M (W-1)/(G W), as if the all-reduce had W members."""
    return plain(Fraction(2 * model_bytes * (world - 1), group * world))
