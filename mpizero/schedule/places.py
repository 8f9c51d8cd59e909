"""Where values are: what rests between steps, and on which tier each lies."""

from __future__ import annotations

from mpizero.layout.geometry import Geometry
from mpizero.layout.mesh import Axis
from mpizero.layout.placement import OWNED, REPLICATED, SHARDED, Placement
from mpizero.layout.tiers import DEVICE, HOST, Tier
from mpizero.schedule import values as v
from mpizero.schedule.values import Name, Value


def kept_params(unit: int, geometry: Geometry) -> Value:
    """The parameters of the unit that a rank keeps between steps."""
    return {REPLICATED: v.whole, SHARDED: v.shard, OWNED: v.own}[geometry.placement.params](unit)


def updates_on(placement: Placement) -> Tier:
    """Where updates run, and gradients are looked at for them: on the host for states in files."""
    return DEVICE if placement.tiers.optimizer is DEVICE else HOST


def tier_of(value: Value, placement: Placement) -> Tier:
    """Where it lies."""
    match value.name:
        case Name.SHARD | Name.OWN:
            return placement.tiers.params
        case Name.STATES | Name.OFFLOADED | Name.HELD:
            return placement.tiers.optimizer
        case Name.GRAD_FP32 | Name.NEW:
            return updates_on(placement)
        case Name.SHELVED | Name.SHELVED_PART:
            return placement.tiers.checkpoints
        case _:
            return DEVICE


def updates_a_part(geometry: Geometry) -> bool:
    """Whether a rank keeps whole parameters, but updates its own part of them alone."""
    placement = geometry.placement
    return placement.params is REPLICATED and placement.optim is SHARDED and geometry.mesh.size(Axis.SHARD) > 1


def resting(geometry: Geometry) -> frozenset[Value]:
    """What is there between steps."""
    wrapping = geometry.wrapping
    return frozenset([kept_params(unit, geometry) for unit in range(len(wrapping.units))]
                     + [v.states(unit) for unit in wrapping.trained])


def final_grad(unit: int, geometry: Geometry) -> Value:
    """The gradient on which ranks agree, and that the optimizer reads."""
    return v.reduced(unit) if geometry.placement.tiers.optimizer is DEVICE else v.offloaded(unit)
