"""What `plan fit` is asked: which model, on what, how."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace
from typing import Any

from mpizero.layout import ADAM, ActivationBytes, ModelSpec, OptimizerSpec
from mpizero.machine import Machine
from mpizero.planner.model import OURS, PlannedModel
from mpizero.planner.tiers import Offload
from mpizero.schedule import StepSettings

AHEAD = 1  # segments gathered before they are needed
# of every list here, beside what is asked and tried
SETTINGS: dict[str, Any] = {"overlap": True, "backward_prefetch": AHEAD, "forward_prefetch": AHEAD}


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
    reduce_dtype: str | None = None
    optimizer: OptimizerSpec = ADAM
    shard_size: int | None = None  # None: every one that divides the ranks is tried
    offload: Offload | None = None  # None: each that makes sense is tried
    bucket_size: str | None = None
    activations: int | None = None  # bytes set aside; None: `program`'s, where the model has shapes
    recompute: bool = False
    recompute_interval: int = 1
    program: str | None = None  # whose activations; None: the model's usual one
    fused_loss: bool = False
    margin: float = 0.0  # share of the device's memory that is kept free
    tensor_size: int | None = None  # ranks that compute one batch together; None: every size inside a host is tried
    partition_activations: bool = False
    whole: PlannedModel | None = None  # of which `model` is a part

    @property
    def table(self) -> ActivationBytes | None:
        """What a microbatch leaves where all is saved. None: told as `activations`, or not known."""
        if self.activations is not None or not self.model.programs:
            return None
        return self.model.activations(self.whose, self.batch_size, self.dtype, self.fused_loss)

    @property
    def whose(self) -> str:
        """The program that activations are of, where the model has shapes."""
        return self.program or self.model.programs[0]

    @property
    def ours(self) -> bool:
        """Whether activations are this project's own, of which all bytes are known."""
        return self.table is not None and self.whose == OURS

    @property
    def room(self) -> int:
        """Bytes of the device that a plan may fill."""
        return self.device_memory - round(self.margin * self.device_memory)

    def batch(self, size: int) -> Question:
        """The same with `size` samples in a microbatch. Only of models with shapes."""
        return replace(self, batch_size=size, tokens=size * self.model.context)

    @property
    def parts(self) -> list[Question]:
        """The same of each tensor size to try, ascending: divisors of the ranks and of what the model has of
        everything, that go into a host; of one alone where it is asked for, or where nobody knows what a rank then
        has."""
        if self.model.spec.tensor_size > 1:
            return [self]
        if self.tensor_size is not None:
            return [self.divided(self.tensor_size)]
        if self.model.divide is None or self.activations is not None:
            return [self.divided(1)]
        return [self.divided(size) for size in divisors(math.gcd(self.ranks, self.model.parts))
                if size <= self.ranks_per_host and (self.ranks // size) % (self.shard_size or 1) == 0]

    def divided(self, size: int) -> Question:
        """The same of a rank among `size` tensor parallel ones. ConfigError where that cannot be."""
        return replace(self, model=_part(self.model, size), tensor_size=size, whole=self.model)

    @functools.cached_property
    def listed(self) -> ModelSpec:
        """A model of which lists are the same: of fewer tensor parallel ranks."""
        size = self.model.spec.tensor_size
        if size == 1 or self.whole is None:
            return self.model.spec
        return _part(self.whole, divisors(size)[1]).spec

    @property
    def shared(self) -> ActivationBytes | None:
        """The table that says how large is what tensor parallel ranks tell each other. None where there are none."""
        if self.model.spec.tensor_size == 1:
            return None
        return self.table or self.model.activations(OURS, self.batch_size, self.dtype)

    @property
    def sharing(self) -> int:
        """Ranks that share a host."""
        return min(self.ranks, self.ranks_per_host)

    @property
    def capacity(self) -> dict[str, int | None]:
        """What a rank may take of each tier."""
        return {"device": self.room,
                "host": None if self.host_memory is None else self.host_memory // self.sharing,
                "nvme": None if self.nvme is None else self.nvme // self.sharing}

    def sizes(self, stage: str) -> list[int]:
        """Shard sizes to try, ascending. Of 1, which shards nothing as stage 0 does, only where it is asked for."""
        if not StepSettings(stage).shards:
            return [1]
        if self.shard_size is not None:
            return [self.shard_size]
        return divisors(self.ranks // (self.tensor_size or 1))[1:] or [1]

    def settings(self, stage: str, offload: Offload, size: int) -> StepSettings:
        """Of the run that is planned. ConfigError where there can be none."""
        return StepSettings(stage, size if StepSettings(stage).shards else None, self.accumulation,
                            recompute=self.recompute, recompute_interval=self.recompute_interval,
                            bucket_size=self.bucket_size, offload=offload.setting, tensor_size=self.tensor_size or 1,
                            partition_activations=self.partition_activations, **SETTINGS)


@functools.lru_cache(maxsize=64)
def _part(model: PlannedModel, size: int) -> PlannedModel:
    """What the first of `size` tensor parallel ranks has."""
    if size == 1:
        return model
    assert model.divide is not None, f"nobody knows a part of {model.name}"
    return model.divide(size)


@functools.lru_cache
def divisors(number: int) -> list[int]:
    """Ascending, from 1 on."""
    small = [size for size in range(1, math.isqrt(number) + 1) if number % size == 0]
    return sorted({*small, *(number // size for size in small)})
