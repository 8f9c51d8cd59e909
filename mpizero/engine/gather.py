"""Plain data from every rank, as JSON: nothing is pickled."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from mpizero.dist import Group, all_gather, all_gather_values


def gather_data(world: Group, data: Any) -> list[Any]:
    """`data` (anything JSON can hold) of each rank, in the order of ranks, on every rank."""
    mine = np.frombuffer(json.dumps(data).encode(), np.uint8)
    sizes = all_gather_values(world, np.array([mine.size], dtype=np.float64), op="report", phase="report")[:, 0].astype(int)
    texts = np.zeros((world.size, max(sizes)), np.uint8)
    texts[world.rank, : mine.size] = mine
    all_gather(world, texts.reshape(-1), unit="", phase="report")
    return [json.loads(texts[rank, :size].tobytes()) for rank, size in enumerate(sizes)]
