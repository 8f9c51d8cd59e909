"""Blocks, in the dtype that is stored or in the one that is computed with: `nn.ops.blocks`."""

from __future__ import annotations

from mpizero.dtypes import ITEMSIZE
from mpizero.layout.sizes import row_step


def compute_itemsize(dtype: str) -> int:
    """Bytes of the type that operators compute in: float32 for the 16-bit types, otherwise the stored type itself."""
    return max(ITEMSIZE[dtype], 4)


def block(rows: int, width: int) -> int:
    """Elements of a block of rows."""
    return min(rows, row_step(width)) * width


def staging(numel: int, dtype: str) -> int:
    """Bytes of a buffer in the compute dtype; 0 where the stored dtype is the same."""
    return numel * compute_itemsize(dtype) if ITEMSIZE[dtype] < compute_itemsize(dtype) else 0
