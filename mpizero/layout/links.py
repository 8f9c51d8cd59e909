"""How moves between tiers are cut, and the workspace that they take. Pure."""

from __future__ import annotations

from mpizero.dtypes import ITEMSIZE
from mpizero.layout.rings import adder_bytes

CHUNK = 2**20  # bytes that are copied at a time


def chunk_numel(numel: int, itemsize: int) -> int:
    """Elements that are copied at a time, of so many."""
    return min(numel, max(1, CHUNK // itemsize))


def landing_bytes(numel: int, dtype: str) -> int:
    """Of what is added on arrival: a chunk, and what the addition takes."""
    width = chunk_numel(numel, ITEMSIZE[dtype])
    return width * ITEMSIZE[dtype] + adder_bytes(dtype, width)
