"""Passes: list of actions -> list of actions. A pass never names a strategy."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from mpizero.schedule.actions import Action, AllGatherParam, AllReduceShard, Forward


def without_saving(actions: Iterable[Action]) -> list[Action]:
    """Forward alone: nothing is kept for a backward that does not come."""
    return [replace(action, save=False) if isinstance(action, Forward) else action for action in actions]


def without_lone_collectives(actions: Iterable[Action], replicas: int, shards: int) -> list[Action]:
    """Drop the collectives in place that a group of one rank need not do."""
    return [action for action in actions
            if not (isinstance(action, AllReduceShard) and replicas == 1) and not (isinstance(action, AllGatherParam) and shards == 1)]
