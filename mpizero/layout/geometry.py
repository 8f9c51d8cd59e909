"""All that a list of actions does not say itself: which model, cut how, kept where, stored as what. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from mpizero.dtypes import ITEMSIZE
from mpizero.layout.mesh import Axis, MeshShape
from mpizero.layout.placement import REPLICATED, Keep, Placement
from mpizero.layout.states import ADAM, OptimizerSpec, optimizer_bytes
from mpizero.layout.wrapping import Wrapping


@dataclass(frozen=True)
class Geometry:
    """A wrapped model under a placement on a mesh, stored in `dtype`, updated by `optimizer`.

    reduce_dtype: what gradients are sent as to be summed; None: as they are stored. sum_dtype: what their sums are made
    and kept in; None: as sent.
    """

    wrapping: Wrapping
    placement: Placement
    mesh: MeshShape = MeshShape()
    dtype: str = "float16"
    optimizer: OptimizerSpec = ADAM
    reduce_dtype: str | None = None
    sum_dtype: str | None = None

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
    def optimizer_bytes(self) -> int:
        """K of ZeRO sec. 3.1."""
        return optimizer_bytes(self.optimizer, self.dtype)

    def kept(self, unit: int, keep: Keep) -> int:
        """Elements of `unit` that a rank keeps."""
        layout = self.wrapping.units[unit]
        return layout.padded_numel if keep is REPLICATED else layout.shard_numel(self.shards)
