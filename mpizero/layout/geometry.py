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
    """A wrapped model under a placement on a mesh, stored in `dtype`, updated by `optimizer`."""

    wrapping: Wrapping
    placement: Placement
    mesh: MeshShape = MeshShape()
    dtype: str = "float16"
    optimizer: OptimizerSpec = ADAM

    @property
    def replicas(self) -> int:
        return self.mesh.size(Axis.REPLICATE)

    @property
    def shards(self) -> int:
        return self.mesh.size(Axis.SHARD)

    @property
    def itemsize(self) -> int:
        """Bytes of a stored parameter or gradient."""
        return ITEMSIZE[self.dtype]

    @property
    def optimizer_bytes(self) -> int:
        """K of ZeRO sec. 3.1."""
        return optimizer_bytes(self.optimizer, self.dtype)

    def kept(self, unit: int, keep: Keep) -> int:
        """Elements of `unit` that a rank keeps."""
        layout = self.wrapping.units[unit]
        return layout.padded_numel if keep is REPLICATED else layout.shard_numel(self.shards)
