"""How ranks divide: a mesh of named axes with sizes, innermost last. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

from mpizero.errors import ConfigError


class Axis(StrEnum):
    """The axes of the mesh, innermost last: ranks along the last one are neighbours."""

    REPLICATE = "replicate"  # holds copies of the same shard
    SHARD = "shard"  # splits the model states
    TENSOR = "tensor"  # splits the computation of one batch


@lru_cache(typed=True)
def _inside(axis: Axis) -> tuple[Axis, ...]:
    axes = tuple(type(axis))
    return axes[axes.index(axis) + 1 :]


@dataclass(frozen=True)
class MeshShape:
    """The size of each axis; a field for each member of `Axis`, in its order. The ranks are numbered row by row."""

    replicate: int = 1
    shard: int = 1
    tensor: int = 1

    def size(self, axis: Axis) -> int:
        size: int = getattr(self, axis)
        return size

    @property
    def ranks(self) -> int:
        return math.prod(self.size(axis) for axis in Axis)

    @property
    def data_ranks(self) -> int:
        """Ranks that have batches of their own: those along `TENSOR` have one together."""
        return self.ranks // self.tensor

    def data_rank(self, rank: int) -> int:
        """The place of `rank` among them."""
        return rank // self.tensor

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

    def alike(self, axes: Collection[Axis]) -> list[tuple[int, ...]]:
        """All groups of ranks that differ along `axes` alone: together they hold each rank once."""
        found: dict[tuple[int, ...], list[int]] = {}
        for rank in range(self.ranks):
            place = tuple(self.coordinate(rank, axis) for axis in Axis if axis not in axes)
            found.setdefault(place, []).append(rank)
        return [tuple(ranks) for ranks in found.values()]

    def successor(self, rank: int, axis: Axis) -> int:
        """The rank to which `rank` sends in a ring along `axis`."""
        stride, size = self.stride(axis), self.size(axis)
        place = rank // stride % size
        return rank + ((place + 1) % size - place) * stride


def mesh_shape(ranks: int, shard_size: int | None = None, tensor_size: int = 1) -> MeshShape:
    """`ranks` ranks in tensor groups of `tensor_size`, and of those shard groups of `shard_size`; None: of all.

    ConfigError, with the equation and the cure, unless they divide so.
    """
    if tensor_size < 1 or ranks % tensor_size:
        raise ConfigError(f"replicate * shard * tensor({tensor_size}) = {ranks} ranks has no solution: "
                          f"{_cure('tensor_size', ranks, tensor_size)}")
    left = ranks // tensor_size
    shard_size = left if shard_size is None else shard_size
    if shard_size < 1 or left % shard_size:
        equation = f"replicate * shard({shard_size})"
        if tensor_size > 1:
            equation += f" * tensor({tensor_size})"
        raise ConfigError(f"{equation} = {ranks} ranks has no solution: "
                          f"{_cure('shard_size', left, shard_size, tensor_size)}")
    return MeshShape(left // shard_size, shard_size, tensor_size)


def _cure(name: str, count: int, size: int, times: int = 1) -> str:
    """count: what `size` should divide; times: ranks that each of these stands for."""
    cure = f"use `{name}` " + " or ".join(str(each) for each in range(1, count + 1) if count % each == 0)
    return cure + (f", or `ranks` {-(-count // size) * size * times}" if size > 0 else "")
