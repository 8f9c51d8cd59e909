"""What all ranks do for a checkpoint succeeds on all, or fails on all with one sentence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mpizero.checkpoint.files import unwritable
from mpizero.comm import Group
from mpizero.engine.gather import gather_data
from mpizero.errors import CheckpointError, MpizeroError


def together(world: Group, act: Callable[[], Any], only: int | None = None) -> list[Any]:
    """What `act` returns on each rank (anything JSON can hold), on every rank. CheckpointError on all ranks where it
    fails on one. Collective. only: the rank that acts; the others have None."""
    result, problem = None, ""
    if only in (None, world.rank):
        try:
            result = act()
        except MpizeroError as error:
            problem = str(error)
        except OSError as error:
            problem = str(unwritable(error.filename, error))
    every = gather_data(world, [result, problem])
    for _, sentence in every:
        if sentence:
            raise CheckpointError(sentence)
    return [each for each, _ in every]
