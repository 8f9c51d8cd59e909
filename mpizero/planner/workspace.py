"""What an action takes beside the values that it makes: rings, updates and agreements by closed forms, computations by
their tapes."""

from __future__ import annotations

from mpizero.layout import (
    DEVICE, REPLICATED, ActivationBytes, Geometry, Tier, norm_block_numel, update_block_numel,
)
from mpizero.layout.links import landing_bytes
from mpizero.layout.rings import Dtypes, all_reduce_bytes, bucket_bytes, reduce_bytes, reduce_scatter_bytes
from mpizero.layout.states import MASTER, stored_states
from mpizero.layout.tape import Tape
from mpizero.planner.activations import storage_bytes, storages
from mpizero.schedule.actions import Action, Backward, Forward, Loss, LossBackward, LossPart, Recompute
from mpizero.schedule.effect import Effect, Shared
from mpizero.schedule.places import updates_on
from mpizero.schedule.values import Name


def workspace(effect: Effect, geometry: Geometry, accumulate: bool,
              table: ActivationBytes | None = None) -> tuple[int, Tier]:
    """Bytes that it takes when it begins, and gives back when it ends: those of what is begun live until then; and
    where. accumulate: whether a gradient is there, to which a reduction or a move adds. table: without it, those of
    sums of activations are left out."""
    away = updates_on(geometry.placement)
    if effect.shares is not None:
        return _sharing(effect.shares, geometry, table), DEVICE
    if effect.agrees:
        return 8 * norm_block_numel(geometry.wrapping.units, geometry.mesh.ranks), away
    if effect.updates is not None:
        block = 4 * update_block_numel(geometry.kept(effect.updates, geometry.placement.optim))
        return block * (1 if _in_float32(geometry) else 2), away
    if not effect.sums:  # a gather or a move copies into its place
        return 0, DEVICE
    if effect.sends is None:
        return landing_bytes(geometry.kept(effect.sums[0].target.index, geometry.placement.optim),
                             geometry.sums) if accumulate else 0, away
    return _reduction(effect, geometry, accumulate), DEVICE


def _in_float32(geometry: Geometry) -> bool:
    """Whether what is updated is."""
    return geometry.dtype == MASTER.dtype or MASTER in stored_states(geometry.optimizer, geometry.dtype)


def _reduction(effect: Effect, geometry: Geometry, accumulate: bool) -> int:
    """As the calls in `engine.unit` have it."""
    assert effect.sends is not None
    op, unit, extent, axis, chunk = effect.sends
    whole, size = geometry.kept(unit, REPLICATED), geometry.mesh.size(axis)
    dtypes = Dtypes(geometry.dtype, geometry.wire, geometry.sums)
    if chunk is not None:
        return bucket_bytes(chunk, size, dtypes, scatters=op == "reduce_scatter")
    if effect.sums[0].source.name is Name.REDUCED:  # in place, as it is kept; all rings at once
        if not (rings := geometry.rings(unit, extent, axis)):
            return 0
        return rings * all_reduce_bytes(geometry.kept(unit, extent) // rings, size,
                                        dtypes._replace(source=geometry.sums), False, in_place=True)
    if op == "reduce_scatter":
        return reduce_scatter_bytes(whole, size, dtypes, accumulate)
    if op == "reduce":
        return reduce_bytes(whole, size, dtypes, accumulate, root=geometry.owns(unit))
    assert op == "all_reduce", op
    return all_reduce_bytes(whole, size, dtypes, accumulate, in_place=not accumulate and dtypes.source == dtypes.sums)


def _sharing(shared: Shared, geometry: Geometry, table: ActivationBytes | None) -> int:
    """Of a sum of activations; a gather copies into its place."""
    if table is None or shared.op == "all_gather":
        return 0
    numel = storage_bytes(storages(shared.value, table)[0], table) // geometry.itemsize
    dtypes = Dtypes(geometry.dtype, geometry.dtype, geometry.dtype)
    return all_reduce_bytes(numel, geometry.tensors, dtypes, False, in_place=True)


def tape_of(action: Action, table: ActivationBytes) -> Tape:
    """What a computation takes and gives back on its way; () where it is not known, or of another action."""
    match action:
        case Forward(segment) | Recompute(segment):
            return table.segments[segment].forward
        case Backward(segment):
            return table.segments[segment].backward
        case LossPart():
            return table.loss_part
        case Loss():
            return table.loss
        case LossBackward():
            return table.loss_backward
        case _:
            return ()
