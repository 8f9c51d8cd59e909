"""What the parts of a model that a tensor parallel rank computes leave in memory. See `layout.tensor`. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from mpizero.dtypes import ITEMSIZE
from mpizero.layout.spec import SegmentBytes
from mpizero.layout.tapes.blocks import compute_itemsize
from mpizero.layout.tapes.gpt import attention_half, attention_half_backward, mlp_half, mlp_half_backward
from mpizero.layout.tapes.mlp import divided_backward, linear_segment
from mpizero.layout.tensor import TensorPlace


def divided_layers(samples: int, widths: Sequence[int], dtype: str, place: TensorPlace,
                   cast: int) -> tuple[SegmentBytes, ...]:
    """The MLP's Linears, as a tensor parallel rank has them. cast: bytes of the data in the parameters' dtype, if that
    is another."""
    size, found, last = ITEMSIZE[dtype], list[SegmentBytes](), len(widths) - 2
    for i, (k, m) in enumerate(pairwise(widths)):
        by_columns, first = i % 2 == 0, i == 0
        own_k, own_m = (k, m // place.size) if by_columns else (k // place.size, m)
        relu = by_columns and i < last  # in its place, as that of x, which backward reads
        found.append(SegmentBytes(
            samples * own_m * size, cast if first else 0, keeps_input=not first or not cast, keeps_output=relu,
            forward=linear_segment(samples, own_k, own_m, dtype, first),
            backward=divided_backward(samples, own_k, own_m, dtype, f"layers.{i}", first=first, relu=relu,
                                      masks=by_columns and not first, adds=by_columns or place.adds)))
    return tuple(found)


def divided_block(batch: int, seq: int, c: int, heads: int, dtype: str, name: str,
                  place: TensorPlace) -> tuple[SegmentBytes, SegmentBytes]:
    """Both halves of a GPT's block, as a tensor parallel rank has them."""
    tokens, size, wide = batch * seq, ITEMSIZE[dtype], compute_itemsize(dtype)
    own, flow, rest = c // place.size, tokens * c * size, (place.size, place.adds)
    return (
        SegmentBytes(flow, tokens * (4 * own * size + (heads // place.size + 2) * wide),
                     forward=attention_half(batch, seq, c, heads, dtype, *rest),
                     backward=attention_half_backward(batch, seq, c, heads, dtype, name, *rest)),
        SegmentBytes(flow, tokens * (4 * own * size + 2 * wide),
                     forward=mlp_half(batch, seq, c, dtype, *rest),
                     backward=mlp_half_backward(batch, seq, c, dtype, name, *rest)))
