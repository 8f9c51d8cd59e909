"""Token and position embedding: `nn.ops.embedding`. B batch, T tokens, C features, n = B * T."""

from __future__ import annotations

from mpizero.dtypes import ITEMSIZE
from mpizero.layout.tape import Add, Take, Tape, Work
from mpizero.layout.tapes.blocks import block, compute_itemsize, staging
from mpizero.layout.tapes.casts import cast
from mpizero.layout.tapes.gradients import add_rows


def embedding(b: int, t: int, c: int, dtype: str, adds: bool = True) -> Tape:
    """y; a sample of it, and the positions, if it adds them."""
    work = (Work(2 * staging(t * c, dtype) + cast(t * c, dtype)),) if adds else ()
    return Take(b * t * c * ITEMSIZE[dtype]), *work


def embedding_backward(b: int, t: int, c: int, dtype: str, adds: bool = True) -> Tape:
    positions, tokens = add_over_batch(t, c, dtype), scatter_add(b * t, c, dtype)
    return *([Add("wpe.weight", positions, positions)] if adds else []), Add("wte.weight", tokens, tokens)


def add_over_batch(t: int, c: int, dtype: str) -> int:
    """The sum and a sample, while the sum is added."""
    return t * c * compute_itemsize(dtype) + staging(t * c, dtype) + add_rows(t, c, dtype)


def scatter_add(n: int, c: int, dtype: str) -> int:
    """Of a block the rows, as stored and as computed with, and their sums."""
    part = block(n, c)
    return part * (ITEMSIZE[dtype] + compute_itemsize(dtype)) + staging(part, dtype) + cast(part, dtype)
