"""Matrix products: `nn.ops.matmul`. a (p,q) @ b (q,r)."""

from __future__ import annotations

from mpizero.layout import sizes
from mpizero.layout.tape import Tape, Work
from mpizero.layout.tapes.blocks import compute_itemsize, staging
from mpizero.layout.tapes.casts import cast


def matmul(p: int, q: int, r: int, dtype: str) -> Tape:
    return (Work(product(p, q, r, dtype)),)


def product(p: int, q: int, r: int, dtype: str) -> int:
    """Of a whole product: what BLAS does alone takes nothing."""
    return tiles(p, q, r, dtype) + cast(tile(p, r), dtype) if staging(1, dtype) else 0


def tiles(p: int, q: int, r: int, dtype: str) -> int:
    """A tile of the product, a second one where it is a sum of several, and a tile of each operand that is cast."""
    sums = 2 if q > sizes.TILE else 1
    return (sums * tile(p, r) * compute_itemsize(dtype)
            + staging(min(p, sizes.TILE) * min(q, sizes.TILE), dtype) + staging(tile(q, r), dtype))


def tile(rows: int, columns: int) -> int:
    """Elements of a tile of a product, and of its right operand."""
    return min(rows, sizes.TILE) * min(columns, sizes.WIDE)
