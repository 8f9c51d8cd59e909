"""The pass that brings states from where they rest to where they are used, and back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import takewhile
from typing import TypeGuard

from mpizero.layout.tiers import DEVICE, Tiers
from mpizero.schedule.actions import (
    Action,
    AllGatherParam,
    AllReduceGrad,
    AllReduceShard,
    Bucket,
    DownloadGrad,
    FetchParam,
    FreeGrad,
    OptimStep,
    ReduceGrad,
    ReduceScatterGrad,
    Unshard,
    UploadGrad,
    UploadParam,
)

Reduction = ReduceScatterGrad | ReduceGrad | AllReduceGrad


def offloaded(actions: Iterable[Action], tiers: Tiers) -> list[Action]:
    """Moves where something is used on another tier than it rests on.

    What a reduction leaves goes to the optimizer's states at once, and is added there to what is there of earlier
    microbatches. Across replicas the sum of all of them is made on the device, for which it comes back. What an update
    gives comes up right after it; parameters that rest elsewhere come up whenever they are gathered.
    """
    actions = list(actions)
    if tiers.optimizer is not DEVICE:
        actions = list(_updates_away(actions, params=tiers.params is DEVICE))
    if tiers.params is not DEVICE:
        actions = [each for action in actions for each in _fetched(action)]
    return actions


def _updates_away(actions: list[Action], params: bool) -> Iterator[Action]:
    """params: whether these rest on the device."""
    away: set[int] = set()  # units of whose gradient something is there already
    for place, action in enumerate(actions):
        if isinstance(action, AllReduceShard):
            if action.unit in away:
                yield from (DownloadGrad(action.unit), UploadGrad(action.unit))
            yield from (action, DownloadGrad(action.unit))
            away.add(action.unit)
            continue
        yield action
        if units := _summed(action):
            to_come = {each.unit for each in takewhile(_across_replicas, actions[place + 1:])}
            yield from (DownloadGrad(unit) for unit in units if unit not in to_come)
            away.update(unit for unit in units if unit not in to_come)
        elif isinstance(action, OptimStep) and params:
            yield UploadParam(action.unit)
        elif isinstance(action, FreeGrad):
            away.discard(action.unit)


def _summed(action: Action) -> tuple[int, ...]:
    """The units whose whole gradient it reduces, or the last piece of it."""
    if isinstance(action, Bucket):
        return tuple(piece.unit for piece in action.pieces if piece.last)
    return (action.unit,) if isinstance(action, Reduction) else ()


def _across_replicas(action: Action) -> TypeGuard[AllReduceShard]:
    return isinstance(action, AllReduceShard)


def _fetched(action: Action) -> tuple[Action, ...]:
    """With what makes whole parameters of those that rest elsewhere."""
    if isinstance(action, Unshard):
        return FetchParam(action.unit), AllGatherParam(action.unit, action.axis)
    return (action,)
