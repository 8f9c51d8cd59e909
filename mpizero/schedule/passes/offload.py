"""The pass that brings states from where they rest to where they are used, and back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice, takewhile

from mpizero.layout.placement import Placement
from mpizero.layout.tiers import DEVICE
from mpizero.schedule.actions import (
    Action,
    AllGatherParam,
    AllReduceGrad,
    AllReduceShard,
    Backward,
    Broadcast,
    BroadcastParam,
    Bucket,
    DownloadGrad,
    DownloadKept,
    FetchParam,
    Forward,
    FreeGrad,
    GatherKept,
    LossBackward,
    OptimStep,
    PartitionKept,
    Phase,
    Recompute,
    ReduceGrad,
    ReduceScatterGrad,
    Reshard,
    Save,
    StoreParam,
    Unshard,
    UploadGrad,
    UploadKept,
    UploadParam,
)

Reduction = ReduceScatterGrad | ReduceGrad | AllReduceGrad


def offloaded(actions: Iterable[Action], placement: Placement) -> list[Action]:
    """Moves where something is used on another tier than it rests on.

    What a reduction leaves goes to the optimizer's states at once, and is added there to what is there of earlier
    microbatches. Across replicas the sum of all of them is made on the device, for which it comes back. What an update
    gives comes up right after it; parameters that rest elsewhere come up whenever they are gathered. A kept input
    leaves as soon as its segment is computed, and comes back one backward ahead.
    """
    actions, tiers = list(actions), placement.tiers
    if tiers.optimizer is not DEVICE:
        actions = list(_updates_away(actions, placement))
    if tiers.checkpoints is not DEVICE:
        actions = _shelved(actions)
    if tiers.params is not DEVICE:
        actions = [each for action in actions for each in _fetched(action)]
    return actions


def _updates_away(actions: list[Action], placement: Placement) -> Iterator[Action]:
    to_params = UploadParam if placement.tiers.params is DEVICE else StoreParam
    away: set[int] = set()  # units of whose gradient something is there already
    for place, action in enumerate(actions):
        if isinstance(action, AllReduceShard):
            if action.unit in away and not _again(action, actions[max(place - 1, 0):place]):
                yield from (DownloadGrad(action.unit), UploadGrad(action.unit))
            yield action
            if not _again(action, actions[place + 1:place + 2]):
                yield DownloadGrad(action.unit)
            away.add(action.unit)
            continue
        yield action
        if units := _summed(action):
            to_come = set(_across_replicas(islice(actions, place + 1, None)))
            yield from (DownloadGrad(unit) for unit in units if unit not in to_come)
            away.update(unit for unit in units if unit not in to_come)
        elif isinstance(action, OptimStep) and placement.apart:
            yield to_params(action.unit)
        elif isinstance(action, FreeGrad):
            away.discard(action.unit)


def _again(action: AllReduceShard, neighbours: Iterable[Action]) -> bool:
    """Whether they sum the same along another axis."""
    return any(isinstance(other, AllReduceShard) and other.unit == action.unit for other in neighbours)


def _summed(action: Action) -> tuple[int, ...]:
    """The units whose whole gradient it reduces, or the last piece of it."""
    if isinstance(action, Bucket):
        return tuple(piece.unit for piece in action.pieces if piece.last)
    return (action.unit,) if isinstance(action, Reduction) else ()


def _across_replicas(actions: Iterable[Action]) -> Iterator[int]:
    """The units that are summed there at once."""
    for action in actions:
        if not isinstance(action, AllReduceShard):
            return
        yield action.unit


def _shelved(actions: list[Action]) -> list[Action]:
    """With kept inputs, or this rank's parts of them, that leave the device meanwhile."""
    out: list[Action] = []
    parts = {(action.segment, action.mb) for action in actions if isinstance(action, PartitionKept)}
    away: set[tuple[int, int]] = set()
    for action in actions:
        if isinstance(action, Recompute | GatherKept) and (place := (action.segment, action.mb)) in away:
            ahead = next(i for i in reversed(range(len(out))) if isinstance(out[i], Backward | LossBackward))
            out.insert(ahead, UploadKept(*place, part=place in parts))
            away.discard(place)
        out.append(action)
        keeps = isinstance(action, Forward) and action.save is Save.INPUT and (action.segment, action.mb) not in parts
        if isinstance(action, PartitionKept) or isinstance(action, Forward) and keeps:
            out.append(DownloadKept(action.segment, action.mb, part=not keeps))
            away.add((action.segment, action.mb))
    return out


def fetched_ahead(actions: Iterable[Action]) -> list[Action]:
    """Fetch what a gather completes one computation before the gather, so that from a file it has come by then; in the
    same phase and order. One unit more is in memory."""
    out: list[Action] = []
    for action in actions:
        place = len(out)
        if isinstance(action, FetchParam):
            stays = takewhile(lambda i: not isinstance(out[i], FetchParam | Phase) and out[i] != Reshard(action.unit),
                              reversed(range(len(out))))
            place = next((i for i in stays if isinstance(out[i], Forward | Recompute | Backward)), place)
        out.insert(place, action)
    return out


def _fetched(action: Action) -> tuple[Action, ...]:
    """With what makes whole parameters of those that rest elsewhere."""
    if isinstance(action, Unshard):
        return FetchParam(action.unit), AllGatherParam(action.unit, action.axis)
    if isinstance(action, Broadcast):
        return FetchParam(action.unit), BroadcastParam(action.unit, action.axis)
    return (action,)
