"""How ranks divide: a mesh of named axes with sizes, innermost last. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

from mpizero.errors import ConfigError


class Axis(StrEnum):
    """The axes of the mesh, innermost last: ranks along the last one are neighbours."""

    REPLICATE = "replicate"  # holds copies of the same shard
    SHARD = "shard"  # splits the model states


@lru_cache(typed=True)
def _inside(axis: Axis) -> tuple[Axis, ...]:
    axes = tuple(type(axis))
    return axes[axes.index(axis) + 1 :]


@dataclass(frozen=True)
class MeshShape:
    """The size of each axis; a field for each member of `Axis`, in its order. The ranks are numbered row by row."""

    replicate: int = 1
    shard: int = 1

    def size(self, axis: Axis) -> int:
        size: int = getattr(self, axis)
        return size

    @property
    def ranks(self) -> int:
        return math.prod(self.size(axis) for axis in Axis)

    @property
    def divided(self) -> frozenset[Axis]:
        """The axes along which there is more than one rank."""
        return frozenset(axis for axis in Axis if self.size(axis) > 1)

    def stride(self, axis: Axis) -> int:
        """How far apart neighbours along `axis` are: the size of all axes inside it."""
        return math.prod(self.size(inner) for inner in _inside(axis))

    def coordinate(self, rank: int, axis: Axis) -> int:
        """The place of `rank` along `axis`."""
        return rank // self.stride(axis) % self.size(axis)

    def group(self, rank: int, axis: Axis) -> range:
        """The ranks that differ from `rank` along `axis` alone, itself included, in order."""
        stride = self.stride(axis)
        first = rank - self.coordinate(rank, axis) * stride
        return range(first, first + stride * self.size(axis), stride)

    def groups(self, axis: Axis) -> list[range]:
        """All groups along `axis`: together they hold each rank once."""
        return [self.group(rank, axis) for rank in range(self.ranks) if self.coordinate(rank, axis) == 0]

    def successor(self, rank: int, axis: Axis) -> int:
        """The rank to which `rank` sends in a ring along `axis`."""
        stride, size = self.stride(axis), self.size(axis)
        place = rank // stride % size
        return rank + ((place + 1) % size - place) * stride


def mesh_shape(ranks: int, shard_size: int) -> MeshShape:
    """`ranks` ranks in shard groups of `shard_size`.

    ConfigError, with the equation and the cure, unless it divides them.
    """
    if shard_size >= 1 and ranks % shard_size == 0:
        return MeshShape(ranks // shard_size, shard_size)
    cure = "use `shard_size` " + " or ".join(str(size) for size in range(1, ranks + 1) if ranks % size == 0)
    if shard_size > 0:
        cure += f", or `ranks` {-(-ranks // shard_size) * shard_size}"
    raise ConfigError(f"replicate * shard({shard_size}) = {ranks} ranks has no solution: {cure}")
