"""What a plan needs to know beside the list of actions."""

from __future__ import annotations

from dataclasses import dataclass

from mpizero.dtypes import ITEMSIZE, optimizer_bytes
from mpizero.layout import REPLICATED, Keep, Placement, Wrapping


@dataclass(frozen=True)
class Geometry:
    """A wrapped model under a placement on a mesh of `replicas` x `shards` ranks, stored in `dtype`."""

    wrapping: Wrapping
    placement: Placement
    replicas: int
    shards: int
    dtype: str

    @property
    def itemsize(self) -> int:
        """Bytes of a stored parameter or gradient."""
        return ITEMSIZE[self.dtype]

    @property
    def optimizer_bytes(self) -> int:
        """K of ZeRO sec. 3.1."""
        return optimizer_bytes(self.dtype)

    def kept(self, unit: int, keep: Keep) -> int:
        """Elements of `unit` that a rank keeps."""
        layout = self.wrapping.units[unit]
        return layout.padded_numel if keep is REPLICATED else layout.shard_numel(self.shards)
