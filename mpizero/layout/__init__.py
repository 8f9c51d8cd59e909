"""Names, shapes, offsets, padding, shard ranges, meshes, models: what everything else stands on.

Pure: no arrays, no MPI.
"""

from mpizero.layout.flat import (READ_BLOCK, UPDATE_BLOCK, FlatLayout, flatten, norm_block_numel, rounding_block_numel,
                                 update_block_numel)
from mpizero.layout.geometry import Geometry
from mpizero.layout.mesh import Axis, MeshShape, mesh_shape
from mpizero.layout.placement import OWNED, REPLICATED, SHARDED, Keep, Placement
from mpizero.layout.policies import check_policy, named_policy
from mpizero.layout.spec import ActivationBytes, ModelSpec, ParamSpec, SegmentBytes, SegmentSpec, freeze, with_decay
from mpizero.layout.states import (ADAM, MASTER, OPTIMIZERS, OptimizerSpec, Sees, StateSpec, optimizer_bytes,
                                   optimizer_spec, require_elements, require_narrow, stored_states)
from mpizero.layout.strided import Strided
from mpizero.layout.tiers import DEVICE, HOST, NVME, Tier, Tiers, offload_text, parse_offload
from mpizero.layout.wrapping import Policy, SegmentUse, Wrapping, wrap

__all__ = ["ADAM", "ActivationBytes", "Axis", "DEVICE", "FlatLayout", "Geometry", "HOST", "Keep", "MASTER", "MeshShape",
           "ModelSpec", "NVME", "OPTIMIZERS", "OWNED", "OptimizerSpec", "ParamSpec", "Placement", "Policy",
           "READ_BLOCK", "REPLICATED", "SHARDED", "Sees", "SegmentBytes", "SegmentSpec", "SegmentUse", "StateSpec",
           "Strided", "Tier", "Tiers", "UPDATE_BLOCK", "Wrapping", "check_policy", "flatten", "freeze", "mesh_shape",
           "named_policy", "norm_block_numel", "offload_text", "optimizer_bytes", "optimizer_spec", "parse_offload",
           "require_elements", "require_narrow", "rounding_block_numel", "stored_states", "update_block_numel",
           "with_decay", "wrap"]
