"""What each action means, in one place: the values it reads, makes and frees, what it sends, and on what it runs.

Every reader of a list is a fold over these effects. A new action is its definition (`actions`), its effect (here) and
its execution (`engine.executor`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, assert_never

from mpizero.layout.geometry import Geometry
from mpizero.layout.mesh import Axis
from mpizero.layout.placement import OWNED, REPLICATED, SHARDED, Keep
from mpizero.layout.states import MASTER
from mpizero.layout.tiers import DEVICE, HOST, NVME
from mpizero.layout.wrapping import SegmentUse
from mpizero.schedule import values as v
from mpizero.schedule.actions import (
    Action,
    Agree,
    AllGatherLoss,
    AllGatherParam,
    AllReduceActivation,
    AllReduceBucket,
    AllReduceGrad,
    AllReduceInputGrad,
    AllReduceShard,
    AwaitFree,
    Backward,
    Begin,
    Broadcast,
    BroadcastParam,
    Bucket,
    Collective,
    DownloadGrad,
    DownloadKept,
    End,
    FetchParam,
    Forward,
    FreeGrad,
    GatherKept,
    HoldGrad,
    LoadBatch,
    Loss,
    LossBackward,
    LossPart,
    Move,
    MoveKept,
    OptimStep,
    PartitionKept,
    Phase,
    Recompute,
    ReduceGrad,
    ReduceScatterBucket,
    ReduceScatterGrad,
    Reshard,
    Save,
    Share,
    StoreParam,
    UnknownAction,
    Unshard,
    UploadGrad,
    UploadKept,
    UploadParam,
)
from mpizero.schedule.effect import Carry, Effect, Send, Shared, Sum, Work
from mpizero.schedule.places import final_grad, kept_params, updates_a_part, updates_on
from mpizero.schedule.values import Value

NOTHING = Effect()


def effect_of(action: Action, geometry: Geometry) -> Effect:
    """The effect of `action`, worked out once for a geometry. UnknownAction if it is none of ours."""
    if not isinstance(action, Action):
        raise UnknownAction(action)
    known: dict[Action, Effect] = geometry.effects
    if action not in known:
        known[action] = _effect_of(action, geometry)
    return known[action]


def _effect_of(action: Action, geometry: Geometry) -> Effect:
    if isinstance(action, Collective):
        return _collective(action, geometry)
    if isinstance(action, Share):
        return share(action, geometry.wrapping.segments)
    if isinstance(action, Move):
        return _move(action, geometry)
    match action:
        case Phase():
            return NOTHING
        case LoadBatch() | Forward() | Recompute() | LossPart() | Loss() | LossBackward() | Backward():
            return _compute(action, geometry)
        case Reshard(unit):
            return Effect(frees=(v.whole(unit),))
        case Agree():
            grads = tuple(final_grad(unit, geometry) for unit in geometry.wrapping.trained)
            in_files = geometry.placement.tiers.optimizer is NVME
            return Effect(reads=grads, agrees=True,
                          carries=tuple(Carry(grad, NVME, HOST) for grad in grads) if in_files else ())
        case OptimStep(unit, late):
            effect = Effect(reads=(_grad_of(unit, late, geometry), v.states(unit)), during=(v.grad_fp32(unit),),
                            updates=unit, work=Work("optim_step", unit))
            effect = replace(effect, carries=_read_and_written(unit, geometry))
            apart = geometry.placement.apart
            return replace(effect, makes=(v.new(unit),)) if apart else replace(effect, **_refreshed(unit, geometry))
        case HoldGrad(unit):
            away = v.offloaded(unit)
            return Effect(reads=(away,), becomes=((away, v.held(unit)),))
        case StoreParam(unit):
            new = v.new(unit)
            return Effect(reads=(new,), frees=(new,), **_refreshed(unit, geometry))
        case PartitionKept(segment, mb):
            kept = v.kept(segment, mb)
            return Effect(reads=(kept,), makes=(v.kept_part(segment, mb),), frees=(kept,))
        case FreeGrad(unit, late):
            return Effect(frees=(_grad_of(unit, late, geometry),))
        case AwaitFree(unit):
            return Effect(awaits=v.whole(unit))
        case Begin(going):
            whole = effect_of(going, geometry)
            return replace(whole, becomes=(), frees=(), refreshes=None, begins=whole, during=(),
                           makes=(*whole.makes, *whole.during))
        case End(going):
            whole = effect_of(going, geometry)
            return Effect(becomes=whole.becomes, frees=(*whole.frees, *whole.during), refreshes=whole.refreshes,
                          sums=whole.sums, ends=whole)
        case _:
            assert_never(action)


def _compute(action: LoadBatch | Forward | Recompute | LossPart | Loss | LossBackward | Backward,
             geometry: Geometry) -> Effect:
    """What happens between a batch and the gradients of its segments."""
    segments = geometry.wrapping.segments
    loss = len(segments)  # it comes after the last segment
    match action:
        case LoadBatch(mb):
            return Effect(makes=(v.x(0, mb), v.targets(mb)))
        case Forward(segment, mb, save):
            used, x, y = map(v.whole, segments[segment].units), v.x(segment, mb), output(segments[segment])(mb)
            kept = (v.kept(segment, mb),)
            keeps = {Save.ALL: (v.saved(segment, mb),), Save.INPUT: kept, Save.COPY: kept, Save.NOTHING: ()}[save]
            return Effect(reads=(*used, x), makes=(y, *keeps), frees=(x,), work=Work("forward", segment))
        case Recompute(segment, mb, onward):
            used, y = map(v.whole, segments[segment].units), output(segments[segment])(mb)
            source = again(segments, segment)(segment, mb)
            target = y if segments[segment].sums else again(segments, segment + 1)(segment + 1, mb)
            return Effect(reads=(*used, source), frees=(source,), during=() if onward else (y,),
                          makes=(v.saved(segment, mb), *([target] if onward else [])),
                          work=Work("recompute", segment))
        case LossPart(mb):
            return Effect(reads=(v.x(loss, mb), v.targets(mb)), makes=(v.loss_part(mb),))
        case Loss(mb, save):
            parts = (v.loss_parts(mb),) if geometry.wrapping.divided else ()
            ends = (v.x(loss, mb), v.targets(mb), *parts)
            return Effect(reads=ends, makes=(v.saved(loss, mb),) if save else (), frees=ends)
        case LossBackward(mb):
            return Effect(reads=(v.saved(loss, mb),), makes=(v.dy(loss - 1, mb),), frees=(v.saved(loss, mb),))
        case Backward(segment, mb):
            use, ends = segments[segment], (v.saved(segment, mb), v.dy(segment, mb))
            goes_on = segment > 0 and segments[segment - 1].backward
            dx = (v.dsummand if use.sums_back else v.dy)(segment - 1, mb)
            return Effect(reads=(*map(v.whole, use.units), *ends), makes=(dx,) if goes_on else (),
                          adds=tuple(map(v.grad, use.trains)), frees=ends, work=Work("backward", segment))
        case _:
            assert_never(action)


def output(segment: SegmentUse) -> Callable[[int], Value]:
    """What its forward gives, of a microbatch."""
    return partial(v.summand if segment.sums else v.x, segment.index + 1)


def again(segments: Sequence[SegmentUse], segment: int) -> Callable[[int, int], Value]:
    """What a segment is computed again from: what was kept, unless it goes on with what the part before it gives."""
    return v.x if segment < len(segments) and segments[segment].continues else v.kept


def share(action: Share, segments: Sequence[SegmentUse]) -> Effect:
    """What happens between tensor parallel ranks to activations."""
    match action:
        case AllReduceActivation(segment, mb, recomputed):
            part = v.summand(segment + 1, mb)
            whole = (again(segments, segment + 1) if recomputed else v.x)(segment + 1, mb)
            return Effect(reads=(part,), becomes=((part, whole),), shares=Shared("all_reduce", part),
                          work=Work("all_reduce_activation", segment))
        case AllReduceInputGrad(segment, mb):
            part = v.dsummand(segment - 1, mb)
            return Effect(reads=(part,), becomes=((part, v.dy(segment - 1, mb)),), shares=Shared("all_reduce", part),
                          work=Work("all_reduce_input_grad", segment))
        case GatherKept(segment, mb):
            part, whole = v.kept_part(segment, mb), v.kept(segment, mb)
            return Effect(reads=(part,), makes=(whole,), frees=(part,), shares=Shared("all_gather", whole),
                          work=Work("gather_kept", segment))
        case AllGatherLoss(mb):
            part = v.loss_part(mb)
            return Effect(reads=(part,), becomes=((part, v.loss_parts(mb)),), shares=Shared("all_gather", part),
                          work=Work("all_gather_loss", len(segments) - 1))
        case _:
            assert_never(action)


def _collective(action: Collective, geometry: Geometry) -> Effect:
    """What happens between ranks."""
    match action:
        case Unshard(unit, axis):
            return Effect(reads=(v.shard(unit),), makes=(v.whole(unit),), **_sent("all_gather", unit, REPLICATED, axis))
        case Broadcast(unit, axis):
            return Effect(reads=(v.own(unit),), makes=(v.whole(unit),), **_sent("broadcast", unit, REPLICATED, axis))
        case AllGatherParam(unit, axis):
            part = v.part(unit)
            return Effect(reads=(part,), becomes=((part, v.whole(unit)),),
                          **_sent("all_gather", unit, REPLICATED, axis))
        case BroadcastParam(unit, axis):
            part = v.part(unit)
            return Effect(reads=(part,), becomes=((part, v.whole(unit)),),
                          **_sent("broadcast", unit, REPLICATED, axis))
        case ReduceScatterGrad(unit, axis):
            grad, reduced = v.grad(unit), v.reduced(unit)
            return Effect(reads=(grad,), adds=(reduced,), frees=(grad,), sums=(Sum(grad, reduced, axis, SHARDED),),
                          **_sent("reduce_scatter", unit, REPLICATED, axis))
        case ReduceGrad(unit, axis):
            grad, reduced = v.grad(unit), v.reduced(unit)
            return Effect(reads=(grad,), adds=(reduced,), frees=(grad,), sums=(Sum(grad, reduced, axis, OWNED),),
                          **_sent("reduce", unit, REPLICATED, axis))
        case AllReduceGrad(unit, axis):
            grad, reduced = v.grad(unit), v.reduced(unit)
            effect = Effect(reads=(grad,), sums=(Sum(grad, reduced, axis, REPLICATED),),
                            **_sent("all_reduce", unit, REPLICATED, axis))
            if geometry.sums != geometry.dtype:  # the sum needs storage of its own
                return replace(effect, adds=(reduced,), frees=(grad,))
            return replace(effect, becomes=((grad, reduced),))
        case AllReduceShard(unit, axis):
            reduced, extent = v.reduced(unit), OWNED if geometry.placement.optim is OWNED else SHARDED
            kind = "all_reduce_copied" if axis is Axis.TENSOR else "all_reduce_shard"
            return Effect(reads=(reduced,), sums=(Sum(reduced, reduced, axis, extent),),
                          **_sent("all_reduce", unit, extent, axis, kind=kind))
        case ReduceScatterBucket() | AllReduceBucket():
            return _bucket(action, geometry)
        case _:
            assert_never(action)


def _bucket(action: Bucket, geometry: Geometry) -> Effect:
    """As a reduction of each unit, which frees its gradient, or turns it into the sum, with its last piece alone."""
    scatters, pieces = isinstance(action, ReduceScatterBucket), action.pieces
    op, extent = ("reduce_scatter", SHARDED) if scatters else ("all_reduce", REPLICATED)
    effect = Effect(reads=tuple(v.grad(piece.unit) for piece in pieces),
                    sums=tuple(Sum(v.grad(piece.unit), v.reduced(piece.unit), action.axis, extent, piece)
                               for piece in pieces),
                    sends=Send(op, pieces[-1].unit, REPLICATED, action.axis, sum(piece.size for piece in pieces)),
                    work=Work(op, pieces[-1].unit, pieces))
    whole = [piece.unit for piece in pieces if piece.last]
    if scatters or geometry.sums != geometry.dtype:
        return replace(effect, adds=tuple(v.reduced(piece.unit) for piece in pieces), frees=tuple(map(v.grad, whole)))
    return replace(effect, becomes=tuple((v.grad(unit), v.reduced(unit)) for unit in whole))


def _move(action: Move, geometry: Geometry) -> Effect:
    """What happens between tiers."""
    if isinstance(action, MoveKept):
        return _move_kept(action, geometry)
    tiers, unit = geometry.placement.tiers, action.unit
    reduced, away, kept = v.reduced(unit), v.offloaded(unit), geometry.placement.optim
    match action:
        case DownloadGrad():
            return Effect(reads=(reduced,), adds=(away,), frees=(reduced,), sums=(Sum(reduced, away, None, kept),),
                          carries=(Carry(away, DEVICE, tiers.optimizer),), work=Work("download", unit))
        case UploadGrad():
            return Effect(reads=(away,), makes=(reduced,), frees=(away,), sums=(Sum(away, reduced, None, kept),),
                          carries=(Carry(away, tiers.optimizer, DEVICE),), work=Work("upload", unit))
        case UploadParam():
            new = v.new(unit)
            return Effect(reads=(new,), frees=(new,), **_refreshed(unit, geometry),
                          carries=(Carry(new, updates_on(geometry.placement), DEVICE),), work=Work("upload", unit))
        case FetchParam():
            rest = kept_params(unit, geometry)
            return Effect(reads=(rest,), makes=(v.part(unit) if geometry.shards > 1 else v.whole(unit),),
                          carries=(Carry(rest, tiers.params, DEVICE),), work=Work("upload", unit))
        case _:
            assert_never(action)


def _move_kept(action: MoveKept, geometry: Geometry) -> Effect:
    """What happens between tiers to the inputs of segments."""
    there, segment = geometry.placement.tiers.checkpoints, action.segment
    kept = (v.kept_part if action.part else v.kept)(segment, action.mb)
    shelved = v.shelved(segment, action.mb, action.part)
    match action:
        case DownloadKept():
            return Effect(reads=(kept,), makes=(shelved,), frees=(kept,), carries=(Carry(shelved, DEVICE, there),),
                          work=Work("download_kept", segment))
        case UploadKept():
            return Effect(reads=(shelved,), makes=(kept,), frees=(shelved,), carries=(Carry(shelved, there, DEVICE),),
                          work=Work("upload_kept", segment))
        case _:
            assert_never(action)


def _read_and_written(unit: int, geometry: Geometry) -> tuple[Carry, ...]:
    """What an update of states in files reads of them, and writes."""
    tiers, states = geometry.placement.tiers, v.states(unit)
    if tiers.optimizer is not NVME:
        return ()
    found = [Carry(v.offloaded(unit), NVME, HOST), Carry(states, NVME, HOST), Carry(states, HOST, NVME)]
    if tiers.params is NVME:
        kept = kept_params(unit, geometry)
        found += [] if MASTER in geometry.stored else [Carry(kept, NVME, HOST)]  # they are what is updated
        found.append(Carry(kept, HOST, NVME))
    return tuple(found)


def _refreshed(unit: int, geometry: Geometry) -> dict[str, Any]:
    """What an effect has that writes new parameters where they are kept."""
    return {"refreshes": unit, "becomes": ((v.whole(unit), v.part(unit)),) if updates_a_part(geometry) else ()}


def _grad_of(unit: int, late: bool, geometry: Geometry) -> Value:
    """What an update reads."""
    return v.held(unit) if late else final_grad(unit, geometry)


def _sent(op: str, unit: int, extent: Keep, axis: Axis, kind: str | None = None) -> dict[str, Any]:
    """What a collective adds to an effect. kind: of its work, where `op` does not name it."""
    return {"sends": Send(op, unit, extent, axis), "work": Work(kind or op, unit)}
