"""Replicas must be equal bit for bit: compare checksums of what several ranks keep alike.

A replica that drifts raises no error by itself: forget the all-gather after the update, and training goes on with old
weights.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mpizero.comm import Group, all_gather, all_gather_values
from mpizero.engine.unit import Unit
from mpizero.errors import ReplicaMismatch
from mpizero.layout import REPLICATED, Axis
from mpizero.memory.kinds import WORKSPACE


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
    """Checksums of everything kept, compared between all ranks that keep the same elements. Collective; the same list
    on every rank."""
    kept = [(unit, name, keep) for unit in units for name, _, keep in unit.kept()]
    mine = [float(_checksum(unit, name)) for unit, name, _ in kept]
    table = all_gather_values(world, np.array(mine), op="check", phase="check")
    found = []
    for (unit, name, keep), column in zip(kept, table.T, strict=True):
        axes = [Axis.REPLICATE] + [Axis.SHARD] * (keep is REPLICATED) + [Axis.TENSOR] * unit.layout.copied
        for ranks in unit.mesh.shape.alike(axes):
            checksums = tuple(int(column[rank]) for rank in ranks)
            if len(set(checksums)) > 1:
                found.append(Mismatch(unit.layout.name, name, tuple(ranks), checksums))
    return found


def _checksum(unit: Unit, name: str) -> int:
    checksum = 0
    for _, values in unit.blocks(name):
        checksum = zlib.crc32(values.view(np.uint8).data, checksum)
    return checksum


def check_replicas(world: Group, units: Sequence[Unit], step: int) -> None:
    """Raise `ReplicaMismatch` on every rank if replicas differ. Collective. step: the last one's number, from 1."""
    found = compare_replicas(world, units)
    if found:
        more = f"; and {len(found) - 3} more" if len(found) > 3 else ""
        raise ReplicaMismatch(f"replicas differ after step {step}: {'; '.join(map(str, found[:3]))}{more}. A rank has "
                              "computed or received something else: look for a missing gather, different library "
                              "versions, or faulty memory")


def largest_difference(world: Group, units: Sequence[Unit]) -> float:
    """Largest absolute difference between any rank's kept whole parameters and rank 0's. Collective."""
    return float(np.max([0.0, *(_spread(world, unit) for unit in units)]))


def _spread(world: Group, unit: Unit) -> float:
    """The largest difference of one unit, whose workspace dies with the call."""
    assert unit.placement.params is REPLICATED, "only whole replicas can be compared element by element"
    numel, ledger, found = unit.layout.padded_numel, unit.ledger, [0.0]
    flat = ledger.empty(world.size * numel, unit.dtype, WORKSPACE)
    every = flat.reshape(world.size, numel)
    every[world.rank] = unit.whole_param
    all_gather(world, flat, unit=unit.layout.name, phase="check")
    first, other = (ledger.empty(numel, np.float32, WORKSPACE) for _ in range(2))
    np.copyto(first, every[0], casting="unsafe")
    for row in every[1:]:
        np.copyto(other, row, casting="unsafe")
        other -= first
        found.append(float(np.abs(other, out=other).max(initial=0.0)))
    return float(np.max(found))  # NaN if one of them is
