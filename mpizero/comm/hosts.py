"""Where ranks run: which of them share a host, in what order they are numbered, and how many cores they have."""

from __future__ import annotations

import os
import socket
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

from mpizero.layout import Axis, MeshShape

NAMESPACES = ("net", "time")
QUOTA = Path("/sys/fs/cgroup/cpu.max")  # of the control group that a container shows its processes


@final
@dataclass(frozen=True)
class Place:
    """Where one rank runs.

    name: of its host, for people. identity: the same for two ranks if they share a host: its memory, its network and
    its clock. cores: those that the rank may use; quota: how many of them at a time, as a control group limits it.
    """

    name: str
    identity: tuple[str, ...]
    cores: tuple[int, ...]
    quota: int | None


def this_place() -> Place:
    """This process's. A name alone does not tell hosts apart: containers of two machines, or of one, may bear the same.
    """
    name, boot = socket.gethostname(), _read(Path("/proc/sys/kernel/random/boot_id"))
    return Place(name, (name, boot, *map(_namespace, NAMESPACES)), tuple(sorted(os.sched_getaffinity(0))),
                 _quota(_read(QUOTA)))


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _namespace(kind: str) -> str:
    """Its number, which is unique on a machine: 'net:[4026531840]'."""
    try:
        return os.readlink(f"/proc/self/ns/{kind}")
    except OSError:
        return ""


def _quota(text: str) -> int | None:
    """Cores at a time, from 'quota period' in microseconds or 'max period'."""
    quota, period = text.split() if len(text.split()) == 2 else ("max", "")
    return -(-int(quota) // int(period)) if quota.isdigit() and period.isdigit() else None


def by_host(places: Sequence[Place]) -> list[int]:
    """Indices of `places` such that those of one host follow one another; hosts, and ranks of a host, as they come."""
    first = {place.identity: index for index, place in reversed(list(enumerate(places)))}
    return sorted(range(len(places)), key=lambda index: (first[places[index].identity], index))


def host_names(places: Sequence[Place]) -> list[str]:
    """A name for each place, the same for two if they share a host: 'node', and of another host so named 'node#2'."""
    names: dict[tuple[str, ...], str] = {}
    count: Counter[str] = Counter()
    for place in places:
        if place.identity not in names:
            count[place.name] += 1
            names[place.identity] = place.name if count[place.name] == 1 else f"{place.name}#{count[place.name]}"
    return [names[place.identity] for place in places]


def is_crowded(places: Iterable[Place]) -> bool:
    """Whether more ranks than cores are on a host. places: of its ranks, each of which may be bound to some cores."""
    places = list(places)
    cores = len({core for place in places for core in place.cores})
    return len(places) > min([cores, *(place.quota for place in places if place.quota is not None)])


def cores_each(places: Sequence[str], rank: int) -> int:
    """Cores for each rank of this host: those that this one may use, or its control group at a time, divided by how
    many they are; at least 1. places: the host of each rank."""
    place = this_place()
    cores = min(len(place.cores), place.quota or len(place.cores))
    return max(cores // places.count(places[rank]), 1)


def overlaps(hosts: Sequence[str]) -> bool:
    """Whether collectives had better go on while ranks compute, as far as start-up can tell: they cross hosts."""
    return len(set(hosts)) > 1


def spread(hosts: Sequence[str], shape: MeshShape, axis: Axis) -> list[range]:
    """The groups along an axis that span hosts. hosts: of each rank."""
    return [group for group in shape.groups(axis) if len({hosts[rank] for rank in group}) > 1]


def needlessly_spread(hosts: Sequence[str], shape: MeshShape) -> list[range]:
    """The shard groups that span hosts though one host has ranks enough for a whole group, and for those with whom its
    ranks compute together.

    hosts: of each rank. It happens where hosts have a number of ranks that the shard size does not divide.
    """
    room = max(Counter(hosts).values())
    return [group for group in spread(hosts, shape, Axis.SHARD) if len(group) * shape.tensor <= room]
