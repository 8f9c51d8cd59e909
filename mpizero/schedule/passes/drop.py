"""Passes that leave out what is not needed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from mpizero.layout.mesh import MeshShape
from mpizero.schedule.actions import Action, AllGatherParam, AllReduceShard, BroadcastParam, Forward, Loss, Save


def without_saving(actions: Iterable[Action]) -> list[Action]:
    """Forward alone: nothing is kept for a backward that does not come."""
    return [replace(action, save=Save.NOTHING) if isinstance(action, Forward) else
            replace(action, save=False) if isinstance(action, Loss) else action for action in actions]


def without_lone_collectives(actions: Iterable[Action], mesh: MeshShape) -> list[Action]:
    """Drop the collectives in place that a group of one rank need not do."""
    in_place = AllReduceShard | AllGatherParam | BroadcastParam
    return [action for action in actions if not (isinstance(action, in_place) and mesh.size(action.axis) == 1)]
