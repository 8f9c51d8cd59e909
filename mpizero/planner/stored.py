"""What each value takes: of which kind, how many bytes, on which tier; and what rests."""

from __future__ import annotations

from typing import NamedTuple

from mpizero.layout import (
    DEVICE, HOST, OWNED, REPLICATED, SHARDED, ActivationBytes, Geometry, Keep, Tier, update_block_numel,
)
from mpizero.layout.files import buffer_bytes
from mpizero.memory.kinds import (
    ACTIVATION, GRAD, GRAD_FP32, KEPT_INPUT, OPTIM, PARAM, UNSHARDED_GRAD, UNSHARDED_PARAM,
)
from mpizero.planner.activations import Storage, storage_bytes
from mpizero.schedule.places import resting, tier_of
from mpizero.schedule.values import Name, Value


class Delta(NamedTuple):
    """Bytes that are taken, or given back (below 0)."""

    kind: str
    nbytes: int
    tier: Tier = DEVICE


def at_rest(geometry: Geometry, tier: Tier = DEVICE) -> dict[str, int]:
    """What a rank keeps between steps: gradients are freed."""
    live = dict.fromkeys((PARAM, OPTIM), 0)
    for kind, nbytes, where in (sized(value, geometry) for value in resting(geometry)):
        live[kind] += nbytes if where is tier else 0
    return live


def buffers(geometry: Geometry, activations: ActivationBytes | None, tier: Tier) -> int:
    """Those of the host through which what is in files passes, which are there all the time."""
    return buffer_bytes(geometry, activations) if tier is HOST else 0


def value_bytes(value: Value, geometry: Geometry, activations: ActivationBytes | None = None) -> int:
    """Of a value that moves, as a rank holds it. activations: without, those of kept inputs are left out."""
    return sized(value, geometry, activations).nbytes


def sized(storage: Storage, geometry: Geometry, activations: ActivationBytes | None = None,
          extent: Keep = SHARDED) -> Delta:
    """extent: of a reduced gradient."""
    return Delta(*_kind_and_bytes(storage, geometry, activations, extent), tier_of(storage, geometry.placement))


def _kind_and_bytes(storage: Storage, geometry: Geometry, activations: ActivationBytes | None,
                    extent: Keep) -> tuple[str, int]:
    placement, unit, itemsize = geometry.placement, storage.index, geometry.itemsize
    match storage.name:
        case Name.NEW:
            return PARAM, itemsize * geometry.kept(unit, placement.optim)
        case Name.OFFLOADED | Name.HELD:
            return GRAD, geometry.sum_itemsize * geometry.kept(unit, placement.optim)
        case Name.WHOLE | Name.PART:
            kind = PARAM if placement.params is REPLICATED else UNSHARDED_PARAM
            return kind, itemsize * geometry.kept(unit, REPLICATED)
        case Name.SHARD:
            return PARAM, itemsize * geometry.kept(unit, SHARDED)
        case Name.OWN:
            return PARAM, itemsize * geometry.kept(unit, OWNED)
        case Name.STATES:
            return OPTIM, geometry.optimizer_bytes * geometry.kept(unit, placement.optim)
        case Name.GRAD:
            return UNSHARDED_GRAD, itemsize * geometry.kept(unit, REPLICATED)
        case Name.REDUCED:
            return GRAD, geometry.sum_itemsize * geometry.kept(unit, extent)
        case Name.GRAD_FP32:
            return GRAD_FP32, 4 * update_block_numel(geometry.kept(unit, placement.optim))
        case Name.SHELVED | Name.SHELVED_PART | Name.KEPT_PART:
            return KEPT_INPUT, 0 if activations is None else storage_bytes(storage, activations)
        case _:
            assert activations is not None
            return ACTIVATION, storage_bytes(storage, activations)
