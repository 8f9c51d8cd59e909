"""Ranks as a grid: `shard` groups split the model states, `replicate` groups hold copies of the same shard."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from mpizero.dist.group import Group
from mpizero.layout import replica_count

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
    replica_count(world.size, shard_size)  # it divides
    rows = [range(first, first + shard_size) for first in range(0, world.size, shard_size)]
    columns = [range(first, world.size, shard_size) for first in range(shard_size)]
    shards = [world.subgroup(row, "shard") for row in rows]
    replicas = [world.subgroup(column, "replicate") for column in columns]
    return Mesh(_only(replicas), _only(shards), world)


def _only(groups: list[T | None]) -> T:
    """The one group that this rank is in."""
    (group,) = [group for group in groups if group is not None]
    return group
