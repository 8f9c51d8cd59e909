"""Names, shapes, offsets, padding and shard ranges. Pure: no arrays, no MPI."""

from mpizero.layout.flat import UPDATE_BLOCK, FlatLayout, flatten, update_block_numel
from mpizero.layout.grid import replica_count
from mpizero.layout.placement import REPLICATED, SHARDED, Keep, Placement
from mpizero.layout.spec import ModelSpec, ParamSpec, StageSpec
from mpizero.layout.units import Policy, StageUse, Wrapping, wrap

__all__ = ["REPLICATED", "SHARDED", "UPDATE_BLOCK", "FlatLayout", "Keep", "ModelSpec", "ParamSpec", "Placement", "Policy", "StageSpec", "StageUse",
           "Wrapping", "flatten", "replica_count", "update_block_numel", "wrap"]
