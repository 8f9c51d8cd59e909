"""GELU: `nn.ops.activation`."""

from __future__ import annotations

from mpizero.dtypes import ITEMSIZE
from mpizero.layout import sizes
from mpizero.layout.tape import Take, Tape, Work
from mpizero.layout.tapes.blocks import compute_itemsize, staging
from mpizero.layout.tapes.casts import cast


def gelu(numel: int, dtype: str) -> Tape:
    """y; x and y of a block."""
    block = min(numel, sizes.BLOCK)
    return Take(numel * ITEMSIZE[dtype]), Work(2 * staging(block, dtype) + cast(block, dtype))


def gelu_backward(numel: int, dtype: str) -> Tape:
    """In the place of its operands; x and dy of a block, and three factors."""
    block = min(numel, sizes.BLOCK)
    return (Work(2 * staging(block, dtype) + 3 * block * compute_itemsize(dtype) + cast(block, dtype)),)
