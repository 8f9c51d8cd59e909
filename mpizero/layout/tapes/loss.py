"""Cross-entropy: `nn.ops.loss`. n rows, V classes."""

from __future__ import annotations

from mpizero.layout.tape import Take, Tape, Work
from mpizero.layout.tapes.blocks import block, compute_itemsize, staging
from mpizero.layout.tapes.casts import cast


def cross_entropy(n: int, v: int, dtype: str) -> Tape:
    """The largest logit of each row and the log of its sum; a block of logits, and their exponentials."""
    wide = compute_itemsize(dtype)
    return Take(2 * n * wide), Work(staging(block(n, v), dtype) + block(n, v) * wide)


def cross_entropy_part(n: int, v: int, dtype: str) -> Tape:
    """A block of logits, and their exponentials; what it finds has its storage already."""
    return (Work(staging(block(n, v), dtype) + block(n, v) * compute_itemsize(dtype)),)


def cross_entropy_backward(n: int, v: int, dtype: str) -> Tape:
    """In the place of the logits; a block of them."""
    return (Work(staging(block(n, v), dtype) + cast(block(n, v), dtype)),)
