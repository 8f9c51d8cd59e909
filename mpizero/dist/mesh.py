"""Ranks as a grid: `shard` groups split the model states, `replicate` groups hold copies of the same shard."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from mpizero.dist.group import Group
from mpizero.errors import ConfigError

T = TypeVar("T")


@dataclass(frozen=True)
class Mesh:
    """The two groups of this rank, and the world they divide: replicate.size * shard.size == world.size."""

    replicate: Group
    shard: Group
    world: Group


def mesh(world: Group, shard_size: int) -> Mesh:
    """Cut `world` into groups of `shard_size` consecutive ranks, so that the frequent traffic stays between neighbours.

    Collective over `world`. ConfigError unless shard_size divides world.size.
    """
    if shard_size < 1 or world.size % shard_size:
        raise ConfigError(f"replicate * shard({shard_size}) = {world.size} ranks has no solution: {_cure(world.size, shard_size)}")
    rows = [range(first, first + shard_size) for first in range(0, world.size, shard_size)]
    columns = [range(first, world.size, shard_size) for first in range(shard_size)]
    shards = [world.subgroup(row, "shard") for row in rows]
    replicas = [world.subgroup(column, "replicate") for column in columns]
    return Mesh(_only(replicas), _only(shards), world)


def _only(groups: list[T | None]) -> T:
    """The one group that this rank is in."""
    (group,) = [group for group in groups if group is not None]
    return group


def _cure(size: int, shard_size: int) -> str:
    divisors = ", ".join(str(f) for f in range(1, size + 1) if size % f == 0)
    cure = f"use --shard-size {divisors.replace(', ', ' or ')}"
    if shard_size > 0:
        cure += f", or mpirun -n {-(-size // shard_size) * shard_size}"
    return cure
