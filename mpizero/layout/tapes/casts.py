"""Casts: `nn.ops.casts`."""

from __future__ import annotations

from mpizero.dtypes import ITEMSIZE
from mpizero.layout import sizes


def cast(numel: int, dtype: str) -> int:
    """Of float32 values to `dtype`. The casts to the compute dtype take nothing."""
    rounds = dtype == "float16" and numel > sizes.SMALL_ROUND
    return 2 * min(numel, sizes.CAST_BLOCK) * ITEMSIZE["float32"] if rounds else 0
