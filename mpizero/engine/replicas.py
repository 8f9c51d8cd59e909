"""Replicas must be equal bit for bit: compare checksums of what several ranks keep alike.

A replica that drifts raises no error by itself: forget the all-gather after the update, and training goes on with old weights.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mpizero.dist import Group, all_gather, all_gather_values
from mpizero.engine.unit import Unit
from mpizero.errors import ReplicaMismatch
from mpizero.layout import REPLICATED

BUFFERS = ("param", "master", "exp_avg", "exp_avg_sq")


@dataclass(frozen=True)
class Mismatch:
    """A buffer of a unit that differs between ranks that must keep it alike."""

    unit: str
    buffer: str
    ranks: tuple[int, ...]  # of the group that trains
    checksums: tuple[int, ...]  # CRC-32, one a rank

    def __str__(self) -> str:
        values = ", ".join(f"rank {rank}: {value:08x}" for rank, value in zip(self.ranks, self.checksums, strict=True))
        return f"{self.buffer} of unit {self.unit} differs ({values})"


def compare_replicas(world: Group, units: Sequence[Unit]) -> list[Mismatch]:
    """Checksums of everything kept, compared between all ranks that keep the same elements. The same list on every rank."""
    mine = [float(zlib.crc32(getattr(unit, name).view(np.uint8))) for unit in units for name in BUFFERS]
    table = all_gather_values(world, np.array(mine), op="check", phase="check").reshape(world.size, len(units), len(BUFFERS))
    found = []
    for u, unit in enumerate(units):
        shards = unit.mesh.shard.size  # ranks of a shard group are neighbours: rank % shards is the shard that a rank keeps
        for b, name in enumerate(BUFFERS):
            keep = unit.placement.params if name == "param" else unit.placement.optim
            for shard in range(1 if keep is REPLICATED else shards):
                ranks = range(world.size) if keep is REPLICATED else range(shard, world.size, shards)
                values = tuple(int(table[rank, u, b]) for rank in ranks)
                if len(set(values)) > 1:
                    found.append(Mismatch(unit.layout.name, name, tuple(ranks), values))
    return found


def check_replicas(world: Group, units: Sequence[Unit], step: int) -> None:
    """Raise `ReplicaMismatch` on every rank if replicas differ."""
    found = compare_replicas(world, units)
    if found:
        raise ReplicaMismatch(f"replicas differ after step {step}: {'; '.join(map(str, found[:3]))}"
                              f"{f'; and {len(found) - 3} more' if len(found) > 3 else ''}. A rank has computed or received something else: "
                              "look for a missing gather, different library versions, or faulty memory")


def largest_difference(world: Group, units: Sequence[Unit]) -> float:
    """Largest absolute difference between any rank's kept whole parameters and rank 0's."""
    largest = 0.0
    for unit in units:
        assert unit.placement.params is REPLICATED, "only whole replicas can be compared element by element"
        every = np.empty((world.size, unit.layout.padded_numel), unit.dtype)
        every[world.rank] = unit.param
        all_gather(world, every.reshape(-1), unit=unit.layout.name, phase="check")
        largest = max(largest, float(np.abs(every.astype(np.float32) - every[0].astype(np.float32)).max(initial=0.0)))
    return largest
