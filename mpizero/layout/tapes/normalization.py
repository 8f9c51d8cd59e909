"""Layer normalisation: `nn.ops.normalization`. n rows, C features."""

from __future__ import annotations

from mpizero.dtypes import ITEMSIZE
from mpizero.layout.tape import Add, Take, Tape, Work
from mpizero.layout.tapes.blocks import block, compute_itemsize, staging
from mpizero.layout.tapes.casts import cast


def new_stats(n: int, dtype: str) -> Take:
    return Take(2 * n * compute_itemsize(dtype))


def layer_norm(n: int, c: int, dtype: str) -> Tape:
    """y; a block of x, where y is made. `layer_norm_again` takes the same."""
    return Take(n * c * ITEMSIZE[dtype]), Work(staging(block(n, c), dtype) + cast(block(n, c), dtype))


def layer_norm_backward(n: int, c: int, dtype: str, names: tuple[str, str]) -> Tape:
    """dx; of a block dy, x and residual; xhat and a product."""
    part = block(n, c)
    return (Take(n * c * ITEMSIZE[dtype]),
            Work(3 * staging(part, dtype) + 2 * part * compute_itemsize(dtype) + cast(part, dtype)),
            *(Add(name, 0, 0) for name in names))
