"""The pass that copies what is kept to where only what lasts lies: M_D of ZeRO (arXiv:1910.02054), sec. 6.3."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from mpizero.schedule.actions import Action, Forward, Save


def kept_apart(actions: Iterable[Action]) -> list[Action]:
    """An input that is kept was some forward's output, and lies between what that forward took and gave back: so a copy
    is kept."""
    return [replace(action, save=Save.COPY) if isinstance(action, Forward) and action.save is Save.INPUT else action
            for action in actions]
