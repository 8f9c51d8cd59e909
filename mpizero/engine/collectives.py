"""What ranks do together to a unit's parameters and gradients, as actions say it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from mpizero.comm import (Collective, begin_all_gather, begin_all_reduce, begin_broadcast, begin_reduce,
                          begin_reduce_scatter)
from mpizero.engine.pending import Pending
from mpizero.engine.rooms import Array
from mpizero.engine.unit import Unit
from mpizero.layout import OWNED, REPLICATED, Axis
from mpizero.memory.kinds import GRAD
from mpizero.memory.regions import Region


def unshard(unit: Unit, axis: Axis) -> Pending:
    """All-gather the whole parameters from the shards, or broadcast them from the owner."""
    assert unit.placement.params is not REPLICATED and not unit.gathered, \
        f"unit {unit.layout.name} is whole"
    whole = unit.open_param()
    assert not isinstance(unit.param, Region), f"unit {unit.layout.name} rests in a file"
    whole[unit.shard] = unit.param
    return Pending(begin_gather(unit, whole, axis, unit.phase))


def begin_gather(unit: Unit, whole: Array, axis: Axis, phase: str) -> Collective:
    """Complete `whole` (padded_numel,), in which each rank along the axis has what it keeps."""
    group, name = unit.mesh.group(axis), unit.layout.name
    if unit.placement.params is OWNED:
        return begin_broadcast(group, whole, unit.owner, unit=name, phase=phase)
    return begin_all_gather(group, whole, unit=name, phase=phase)


def broadcast_param(unit: Unit, axis: Axis) -> Pending:
    """Complete whole parameters from what the owner fetched."""
    return Pending(begin_gather(unit, unit.whole_param, axis, unit.phase))


def all_gather_param(unit: Unit, axis: Axis) -> Pending:
    """Complete whole parameters from what each rank along the axis updated, or fetched."""
    return Pending(begin_all_gather(unit.mesh.group(axis), unit.whole_param, unit=unit.layout.name,
                                    phase=unit.phase))


def reduce_scatter_grad(unit: Unit, axis: Axis) -> Pending:
    """Sum along the axis; the shard of the sum becomes, or is added to, the reduced gradient."""
    return _reduce(unit, axis, begin_reduce_scatter)


def reduce_grad(unit: Unit, axis: Axis) -> Pending:
    """Sum along the axis; at the owner the whole sum becomes, or is added to, the reduced gradient."""
    return _reduce(unit, axis, partial(begin_reduce, root=unit.owner))


def _reduce(unit: Unit, axis: Axis, begin: Callable[..., Collective]) -> Pending:
    """To what this rank keeps."""
    flat, first = unit.close_grad(), unit.reduced is None
    if first:
        unit.reduced = unit.ledger.empty(unit.shard_numel, unit.grad_dtype, GRAD)
    ring = begin(unit.mesh.group(axis), flat, unit.reduced, accumulate=not first, wire=unit.wire,
                 unit=unit.layout.name, phase=unit.phase)
    return Pending(ring, lambda: unit.ledger.discard(flat))


def all_reduce_grad(unit: Unit, axis: Axis) -> Pending:
    """Sum along the axis; the whole sum becomes, or is added to, the reduced gradient."""
    flat, first = unit.close_grad(), unit.reduced is None
    in_place = first and unit.grad_dtype == unit.dtype
    if first:
        unit.reduced = flat if in_place else unit.ledger.empty(flat.size, unit.grad_dtype, GRAD)
    ring = begin_all_reduce(unit.mesh.group(axis), flat, unit.reduced, accumulate=not first, wire=unit.wire,
                            unit=unit.layout.name, phase=unit.phase)

    def done() -> None:
        if in_place:
            unit.ledger.rekind(flat, GRAD)
        else:
            unit.ledger.discard(flat)

    return Pending(ring, done)


def all_reduce_shard(unit: Unit, axis: Axis) -> Pending:
    """Sum this rank's shard of the reduced gradient along the axis, in as many rings as `Geometry.rings` says."""
    assert unit.reduced is not None, f"unit {unit.layout.name} has no reduced gradient on the device"
    part, parts = unit.part_of(unit.reduced, unit.shard), unit.rings(axis)
    return Pending(begin_all_reduce(unit.mesh.group(axis), part, wire=unit.wire, parts=parts, unit=unit.layout.name,
                                    phase=unit.phase))
