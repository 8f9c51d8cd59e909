"""A step of a strategy on a mesh, as the planner wants it: the very list that ranks run, and its geometry."""

from __future__ import annotations

from typing import Any

from mpizero.layout import ModelSpec, wrap
from mpizero.planner import Geometry
from mpizero.schedule import STRATEGIES, Lists, training_lists


def step_of(spec: ModelSpec, stage: str, ranks: int, shards: int | None = None, **passes: Any) -> tuple[Lists, Geometry]:
    """In float16. shards: all ranks unless given; at stage 0 one. passes: what `training_lists` takes."""
    shards = 1 if stage == "0" else shards or ranks
    wrapping = wrap(spec, ranks)
    lists = training_lists(STRATEGIES[stage], wrapping, ranks // shards, shards, **passes)
    return lists, Geometry(wrapping, STRATEGIES[stage].placement, ranks // shards, shards, "float16")
