"""Where operators leave the gradients of parameters: `nn.ops.gradients`."""

from __future__ import annotations

from mpizero.layout import sizes
from mpizero.layout.tape import Add, Tape
from mpizero.layout.tapes.blocks import block, staging
from mpizero.layout.tapes.casts import cast
from mpizero.layout.tapes.matmul import product, tiles


def add_matmul(name: str, p: int, q: int, r: int, dtype: str) -> Tape:
    """A first product is stored by itself; of another, tiles are added."""
    more = tiles(p, q, r, dtype) + add_rows(min(p, sizes.TILE), min(r, sizes.WIDE), dtype)
    return (Add(name, product(p, q, r, dtype), more),)


def add_rows(rows: int, width: int, dtype: str) -> int:
    """A block of the sum and one of what is added, where these are cast."""
    return 2 * staging(block(rows, width), dtype) + cast(block(rows, width), dtype)
