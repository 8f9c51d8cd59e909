"""Which of the bytes that a step sends leave the host? From the same list of sends, and where the mesh's ranks stand.

A ring sends to its next member only. What goes straight to its owner goes to all members alike. Ranks fill hosts in
order, so a shard group's ring leaves a host at its border alone, and a replicate group whose members stand on different
hosts leaves it at every rank.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

from mpizero.layout import Axis, Geometry, MeshShape
from mpizero.machine import Route
from mpizero.planner.traffic import Sent


@dataclass(frozen=True)
class Links:
    """Bytes sent in a step. A rank is the busiest: another may send less between hosts, and so more inside its own."""

    sent_bytes: int  # by the rank that sends most; by every rank alike, unless units have owners
    inter_host_bytes: int  # by the rank that sends most of them
    intra_host_bytes: int  # by the rank that sends most of them
    host_bytes: int  # leaving the busiest host, all its ranks together
    hosts: int
    by_rank: tuple[tuple[int, int], ...]  # inside, between


def split(sends: Mapping[int, Iterable[Sent]], geometry: Geometry, ranks_per_host: int) -> Links:
    """Split what each rank sends into inside and between hosts of `ranks_per_host` ranks. sends: of a rank of each of
    `geometry.representatives`."""
    flows = {shard_rank: _flow(each) for shard_rank, each in sends.items()}
    ranks = list(_ranks(flows, geometry, ranks_per_host))
    leaving: dict[int, int] = defaultdict(int)
    for rank, (_, between) in enumerate(ranks):
        leaving[rank // ranks_per_host] += between
    return Links(max(map(sum, ranks)), max(between for _, between in ranks), max(inside for inside, _ in ranks),
                 max(leaving.values()), len(leaving), tuple(ranks))


def sent_between(sends: Iterable[Sent], mesh: MeshShape, hosts: Sequence[str], rank: int) -> int:
    """Of the bytes that `rank` sends, those that leave its host. hosts: of each rank, a name."""
    return _between(_flow(sends), mesh, rank, hosts.__getitem__,
                    lambda group: sum(hosts[other] == hosts[rank] for other in group))


@lru_cache(maxsize=1024)
def leaving(mesh: MeshShape, ranks_per_host: int) -> tuple[dict[Axis, int], ...]:
    """Along each axis, how many ranks send to another host: of some hosts, among which is the busiest.

    Ranks fill hosts in order, so these are the first, the second, and the one in which the first shard group ends;
    where tensor parallel ranks neither fill hosts nor hosts them, any may be.
    """
    if mesh.ranks <= ranks_per_host:
        return (dict.fromkeys(Axis, 0),)
    even = ranks_per_host % mesh.tensor == 0 or mesh.tensor % ranks_per_host == 0
    chosen = {0, 1, mesh.shard * mesh.tensor // ranks_per_host} if even else range(-(-mesh.ranks // ranks_per_host))
    hosts = {host: range(host * ranks_per_host, min((host + 1) * ranks_per_host, mesh.ranks)) for host in chosen}
    return tuple({axis: sum(mesh.successor(rank, axis) // ranks_per_host != host for rank in ranks) for axis in Axis}
                 for host, ranks in hosts.items())


def route(mesh: MeshShape, axis: Axis, ranks_per_host: int) -> Route:
    """Where the rings along `axis` run."""
    return Route(max(host[axis] for host in leaving(mesh, ranks_per_host)), ranks_per_host)


def leaving_bytes(sends: Iterable[Sent], mesh: MeshShape, ranks_per_host: int) -> int:
    """Bytes of `sends` that leave the busiest host, all its ranks together: `split` without looking at each rank."""
    by_axis: dict[Axis, int] = defaultdict(int)
    for send in sends:
        by_axis[send.axis] += send.nbytes
    return max(sum(host[axis] * nbytes for axis, nbytes in by_axis.items())
               for host in leaving(mesh, ranks_per_host))


@dataclass(frozen=True)
class _Flow:
    """Bytes that a rank sends: by axis to the next rank, and to all others alike; by axis and owner to owners."""

    ring: Mapping[Axis, int]
    straight: Mapping[Axis, int]
    home: Mapping[tuple[Axis, int], int]

    @property
    def total(self) -> int:
        return sum((*self.ring.values(), *self.straight.values(), *self.home.values()))


def _flow(sends: Iterable[Sent]) -> _Flow:
    ring: dict[Axis, int] = defaultdict(int)
    straight: dict[Axis, int] = defaultdict(int)
    home: dict[tuple[Axis, int], int] = defaultdict(int)
    for send in sends:
        ring[send.axis] += send.ring
        straight[send.axis] += send.straight
        home[send.axis, send.owner] += send.home
    return _Flow(ring, straight, home)


def _ranks(flows: Mapping[int, _Flow], geometry: Geometry, ranks_per_host: int) -> Iterator[tuple[int, int]]:
    """(bytes inside the host, bytes between hosts) of each rank."""
    mesh = geometry.mesh

    def host_of(rank: int) -> int:
        return rank // ranks_per_host

    for rank in range(mesh.ranks):
        flow, begin = flows[geometry.like(mesh.coordinate(rank, Axis.SHARD))], rank - rank % ranks_per_host
        between = _between(flow, mesh, rank, host_of, partial(_count, begin=begin, end=begin + ranks_per_host))
        yield flow.total - between, between


def _between(flow: _Flow, mesh: MeshShape, rank: int, host_of: Callable[[int], Hashable],
             near: Callable[[range], int]) -> int:
    """Of the bytes that `rank` sends, those that leave its host. near: how many of a group are on that host."""
    here = host_of(rank)
    between = sum(nbytes for axis, nbytes in flow.ring.items() if host_of(mesh.successor(rank, axis)) != here)
    for axis, nbytes in flow.straight.items():
        if nbytes:
            group = mesh.group(rank, axis)
            between += nbytes // (len(group) - 1) * (len(group) - near(group))
    return between + sum(nbytes for (axis, owner), nbytes in flow.home.items()
                         if nbytes and host_of(mesh.group(rank, axis)[owner]) != here)


def _count(ranks: range, begin: int, end: int) -> int:
    """How many of them are in begin .. end - 1."""
    first, last = (-((ranks.start - bound) // ranks.step) for bound in (begin, end))
    return min(max(last, 0), len(ranks)) - min(max(first, 0), len(ranks))
