"""Causal multi-head attention: `nn.ops.attention`. B batch, T tokens, C features, H heads."""

from __future__ import annotations

from mpizero.dtypes import ITEMSIZE
from mpizero.layout import sizes
from mpizero.layout.sizes import attention_group
from mpizero.layout.tape import Take, Tape, Work
from mpizero.layout.tapes.blocks import compute_itemsize, staging
from mpizero.layout.tapes.casts import cast


def attention(b: int, t: int, c: int, heads: int, dtype: str) -> Tape:
    """y and lse. Of a group of samples qkv and y; of a block of queries the scores, and the queries scaled."""
    group, rows, wide = attention_group(b, heads, t), min(t, sizes.QUERIES), compute_itemsize(dtype)
    return (Take(b * t * c * ITEMSIZE[dtype]), Take(b * heads * t * wide),
            Work(staging(group * t * 4 * c, dtype) + group * rows * (heads * t + c) * wide
                 + cast(group * t * c, dtype)))


def attention_backward(b: int, t: int, c: int, heads: int, dtype: str) -> Tape:
    """dqkv. Of a group of samples qkv, y, dy, dqkv, scaled queries and a product; of a block of keys p and dp."""
    group, rows, wide = attention_group(b, heads, t), min(t, sizes.QUERIES), compute_itemsize(dtype)
    return (Take(b * t * 3 * c * ITEMSIZE[dtype]),
            Work(staging(group * t * 8 * c, dtype) + 2 * group * t * (heads * rows + c) * wide
                 + cast(group * t * 3 * c, dtype)))
