"""The pass that brings states from where they rest to where they are used, and back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise, takewhile

from mpizero.layout.tiers import DEVICE, Tiers
from mpizero.schedule.actions import (
    Action,
    AllGatherParam,
    AllReduceGrad,
    AllReduceShard,
    Backward,
    Broadcast,
    BroadcastParam,
    DownloadGrad,
    DownloadKept,
    FetchParam,
    Forward,
    FreeGrad,
    LossBackward,
    OptimStep,
    Phase,
    Recompute,
    ReduceGrad,
    ReduceScatterGrad,
    Reshard,
    Save,
    Unshard,
    UploadGrad,
    UploadKept,
    UploadParam,
)

Reduction = ReduceScatterGrad | ReduceGrad | AllReduceGrad
NOTHING = Phase("end")


def offloaded(actions: Iterable[Action], tiers: Tiers) -> list[Action]:
    """Moves where something is used on another tier than it rests on.

    What a reduction leaves goes to the optimizer's states at once, and is added there to what is there of earlier
    microbatches. Across replicas the sum of all of them is made on the device, for which it comes back. What an update
    gives comes up right after it; parameters that rest elsewhere come up whenever they are gathered. A kept input
    leaves as soon as its segment is computed, and comes back one backward ahead.
    """
    actions = list(actions)
    if tiers.optimizer is not DEVICE:
        actions = list(_updates_away(actions, params=tiers.params is DEVICE))
    if tiers.checkpoints is not DEVICE:
        actions = _shelved(actions)
    if tiers.params is not DEVICE:
        actions = [each for action in actions for each in _fetched(action)]
    return actions


def _updates_away(actions: list[Action], params: bool) -> Iterator[Action]:
    """params: whether these rest on the device."""
    away: set[int] = set()  # units of whose gradient something is there already
    for action, following in pairwise([*actions, NOTHING]):
        if isinstance(action, AllReduceShard):
            if action.unit in away:
                yield from (DownloadGrad(action.unit), UploadGrad(action.unit))
            yield from (action, DownloadGrad(action.unit))
            away.add(action.unit)
            continue
        yield action
        if isinstance(action, Reduction) and following != AllReduceShard(action.unit):
            yield DownloadGrad(action.unit)
            away.add(action.unit)
        elif isinstance(action, OptimStep) and params:
            yield UploadParam(action.unit)
        elif isinstance(action, FreeGrad):
            away.discard(action.unit)


def _shelved(actions: list[Action]) -> list[Action]:
    """With kept inputs that leave the device meanwhile."""
    out: list[Action] = []
    away: set[tuple[int, int]] = set()
    for action in actions:
        if isinstance(action, Recompute) and (action.segment, action.mb) in away:
            ahead = next(i for i in reversed(range(len(out))) if isinstance(out[i], Backward | LossBackward))
            out.insert(ahead, UploadKept(action.segment, action.mb))
            away.discard((action.segment, action.mb))
        out.append(action)
        if isinstance(action, Forward) and action.save is Save.INPUT:
            out.append(DownloadKept(action.segment, action.mb))
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
