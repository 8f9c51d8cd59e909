"""All that a list of actions does not say itself: which model, cut how, kept where, stored as what. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from mpizero.dtypes import ITEMSIZE
from mpizero.layout.mesh import Axis, MeshShape
from mpizero.layout.placement import OWNED, REPLICATED, SHARDED, Keep, Placement
from mpizero.layout.states import ADAM, MASTER, OptimizerSpec, StateSpec, stored_states
from mpizero.layout.wrapping import Wrapping


@dataclass(frozen=True)
class Geometry:
    """A wrapped model under a placement on a mesh, stored in `dtype`, updated by `optimizer`.

    reduce_dtype: what gradients are sent as to be summed; None: as they are stored. sum_dtype: what their sums are made
    and kept in; None: as sent. shard_rank: number in its shard group of the rank that all this is about; only where
    units are OWNED do ranks of a shard group keep and send other bytes.
    """

    wrapping: Wrapping
    placement: Placement
    mesh: MeshShape = MeshShape()
    dtype: str = "float16"
    optimizer: OptimizerSpec = ADAM
    reduce_dtype: str | None = None
    sum_dtype: str | None = None
    shard_rank: int = 0

    @cached_property
    def effects(self) -> dict[Any, Any]:
        """What `schedule.effect_of` has found: of each action, its effect here."""
        return {}

    @property
    def replicas(self) -> int:
        return self.mesh.size(Axis.REPLICATE)

    @property
    def shards(self) -> int:
        return self.mesh.size(Axis.SHARD)

    @property
    def itemsize(self) -> int:
        """Bytes of a stored parameter, or of a gradient before it is reduced."""
        return ITEMSIZE[self.dtype]

    @property
    def wire(self) -> str:
        """What gradients are sent as."""
        return self.reduce_dtype or self.dtype

    @property
    def sums(self) -> str:
        """What gradients are summed in, and reduced gradients are stored in."""
        return self.sum_dtype or self.wire

    @property
    def wire_itemsize(self) -> int:
        return ITEMSIZE[self.wire]

    @property
    def sum_itemsize(self) -> int:
        return ITEMSIZE[self.sums]

    @property
    def stored(self) -> tuple[StateSpec, ...]:
        """What is stored beside the parameters. Parameters that rest elsewhere, or are read meanwhile, cannot be
        what is updated: then it is a copy of them."""
        stored = stored_states(self.optimizer, self.dtype)
        own = MASTER not in stored and self.placement.apart
        return (replace(MASTER, dtype=self.dtype), *stored) if own else stored

    @property
    def optimizer_bytes(self) -> int:
        """K of ZeRO sec. 3.1."""
        return sum(ITEMSIZE[state.dtype] for state in self.stored)

    def kept(self, unit: int, keep: Keep) -> int:
        """Elements of `unit` that a rank keeps."""
        layout = self.wrapping.units[unit]
        if keep is SHARDED:
            return layout.shard_numel(self.shards)
        return layout.padded_numel if keep is REPLICATED or self.owns(unit) else 0

    # -- units that have an owner -------------------------------------------------------------------------------------

    def owner(self, unit: int) -> int:
        """The shard rank that keeps an OWNED unit: units go round the shard group."""
        return unit % self.shards

    def owns(self, unit: int) -> bool:
        return self.owner(unit) == self.shard_rank

    def like(self, shard_rank: int) -> int:
        """The first shard rank that keeps and sends what `shard_rank` does. A rank that owns nothing hands on what it
        gets, but for the last one, after which the owner of the first unit comes."""
        if self.placement.params is not OWNED:
            return 0
        return shard_rank if shard_rank == self.shards - 1 else min(shard_rank, len(self.wrapping.units))

    @property
    def representatives(self) -> list[int]:
        """A shard rank of each kind, see `like`."""
        return sorted(set(map(self.like, range(self.shards))))

    def at(self, shard_rank: int) -> Geometry:
        """The same for another shard rank."""
        return self if shard_rank == self.shard_rank else replace(self, shard_rank=shard_rank)
