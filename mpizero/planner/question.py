"""What `plan fit` is asked: which model, on what, how."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

from mpizero.layout import ADAM, MeshShape, OptimizerSpec
from mpizero.machine import Machine
from mpizero.planner.model import PlannedModel
from mpizero.schedule import StepSettings


@dataclass(frozen=True)
class Question:
    """Memories in bytes: the device's of a rank, the others of a host; None: not told."""

    model: PlannedModel
    ranks: int
    ranks_per_host: int
    device_memory: int
    host_memory: int | None
    nvme: int | None
    machine: Machine
    tokens: int  # of a rank in a microbatch
    batch_size: int = 1
    accumulation: int = 1
    dtype: str = "float16"
    optimizer: OptimizerSpec = ADAM
    shard_size: int | None = None  # None: every one that divides the ranks is tried
    activations: int | None = None  # bytes set aside; None: from the model's shapes, where it has some
    recompute: bool = False

    @property
    def sharing(self) -> int:
        """Ranks that share a host."""
        return min(self.ranks, self.ranks_per_host)

    @property
    def capacity(self) -> dict[str, int | None]:
        """What a rank may take of each tier."""
        return {"device": self.device_memory,
                "host": None if self.host_memory is None else self.host_memory // self.sharing,
                "nvme": None if self.nvme is None else self.nvme // self.sharing}

    def sizes(self, stage: str) -> list[int]:
        """Shard sizes to try, ascending. Of 1, which shards nothing as stage 0 does, only where it is asked for."""
        if stage == "0":
            return [1]
        if self.shard_size is not None:
            return [self.shard_size]
        return divisors(self.ranks)[1:] or [1]

    def mesh(self, stage: str, size: int) -> MeshShape:
        """ConfigError where `size` does not divide the ranks."""
        return StepSettings(stage, None if stage == "0" else size).mesh(self.ranks)


@functools.lru_cache
def divisors(number: int) -> list[int]:
    """Ascending, from 1 on."""
    small = [size for size in range(1, math.isqrt(number) + 1) if number % size == 0]
    return sorted({*small, *(number // size for size in small)})
