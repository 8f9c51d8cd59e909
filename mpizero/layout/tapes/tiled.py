"""Linears cut into tiles of rows, and the computations that use these one after the other: `nn.ops.tiled`,
`nn.tiled_gpt`, `nn.mlp`.

K = rows of a tile; else as in `tapes.gpt` and `tapes.mlp`.
"""

from __future__ import annotations

from collections.abc import Sequence

from mpizero.dtypes import ITEMSIZE
from mpizero.layout.spec import tile_rows
from mpizero.layout.tape import Add, Give, Part, Take, Tape, Work
from mpizero.layout.tapes.activation import gelu, gelu_backward
from mpizero.layout.tapes.attention import attention, attention_backward
from mpizero.layout.tapes.blocks import compute_itemsize
from mpizero.layout.tapes.gradients import add_matmul, add_product
from mpizero.layout.tapes.linear import column_sums, linear, relu_backward
from mpizero.layout.tapes.matmul import matmul
from mpizero.layout.tapes.mlp import stored
from mpizero.layout.tapes.normalization import layer_norm, layer_norm_backward, new_stats

Rows = Sequence[int]  # of each tile


def rows_of(k: int, tiles: int) -> list[int]:
    return [part.stop - part.start for part in tile_rows(k, tiles)]


def tile_forward(n: int, k: int, m: int, dtype: str, first: bool, residual: bool = False) -> Tape:
    """Without its output."""
    return linear(n, k, m, dtype, residual) if first else (Work(add_product(n, k, m, dtype)),)


def tile_backward(n: int, k: int, m: int, dtype: str, name: str, index: int) -> Tape:
    """The gradients alone."""
    sums = column_sums(n, m, dtype)
    bias = () if index else (Add(name + ".bias", sums, sums),)
    return *add_matmul(f"{name}.weight[{index}]", k, n, m, dtype), *bias


def linear_in_tiles(n: int, rows: Rows, m: int, dtype: str, residual: bool = False) -> Tape:
    return tuple(event for index, k in enumerate(rows)
                 for event in (Part(), *tile_forward(n, k, m, dtype, not index, residual)))


def linear_backward_in_tiles(n: int, rows: Rows, m: int, dtype: str, name: str, data: bool = False) -> Tape:
    """data: whether x is data, which has no gradient."""
    return tuple(event for index, k in reversed(list(enumerate(rows)))
                 for event in (Part(), *(() if data else matmul(n, m, k, dtype)),
                               *tile_backward(n, k, m, dtype, name, index)))


# -- the MLP ----------------------------------------------------------------------------------------------------------


def mlp_forward(n: int, k: int, m: int, dtype: str, tiles: int, first: bool) -> Tape:
    begun = stored(n * k, dtype) if first else ()
    return *begun, Take(n * m * ITEMSIZE[dtype]), *linear_in_tiles(n, rows_of(k, tiles), m, dtype)


def mlp_backward(n: int, k: int, m: int, dtype: str, tiles: int, name: str, first: bool, last: bool) -> Tape:
    y = dy = Give(n * m * ITEMSIZE[dtype])
    relu = () if last else (*relu_backward(n, m, dtype), dy, y)
    dx = () if first else (Take(n * k * ITEMSIZE[dtype]),)
    return *relu, *dx, *linear_backward_in_tiles(n, rows_of(k, tiles), m, dtype, name, data=first)


# -- GPT-2 ------------------------------------------------------------------------------------------------------------


def block_forward(b: int, t: int, c: int, heads: int, dtype: str, tiles: int) -> Tape:
    n, size = b * t, ITEMSIZE[dtype]
    narrow, wide = rows_of(c, tiles), rows_of(4 * c, tiles)
    h = Give(n * c * size)
    return (
        new_stats(n, dtype),
        *layer_norm(n, c, dtype),  # h
        Take(n * 3 * c * size),  # qkv
        *linear_in_tiles(n, narrow, 3 * c, dtype),
        h,
        Part(),
        *attention(b, t, c, heads, dtype),
        Take(n * c * size),  # x_2
        *linear_in_tiles(n, narrow, c, dtype, residual=True),
        new_stats(n, dtype),
        *layer_norm(n, c, dtype),  # h
        Take(n * 4 * c * size),  # u
        *linear_in_tiles(n, narrow, 4 * c, dtype),
        h,
        Take(n * c * size),  # y
        *(event for index, k in enumerate(wide)
          for event in (Part(), Take(n * k * size),  # some columns of u
                        *gelu(n * k, dtype), Give(n * k * size),
                        *tile_forward(n, k, c, dtype, not index, residual=True), Give(n * k * size))),  # g
    )


def block_backward(b: int, t: int, c: int, heads: int, dtype: str, tiles: int, name: str) -> Tape:
    n, size = b * t, ITEMSIZE[dtype]
    narrow, wide = rows_of(c, tiles), rows_of(4 * c, tiles)
    return (
        *(event for index, k in reversed(list(enumerate(wide)))
          for event in (Part(), Take(n * k * size), Take(n * k * size),  # some columns of u, and dg
                        *matmul(n, c, k, dtype), *gelu_backward(n * k, dtype),
                        *tile_backward(n, k, c, dtype, name + ".mlp.c_proj", index),
                        Give(n * k * size), Give(n * k * size))),
        *_norm_backward(n, narrow, 4 * c, dtype, name, "ln_2", "mlp.c_fc"),  # dx_2
        Give(n * c * size), Give(2 * n * compute_itemsize(dtype)), Give(n * 4 * c * size),  # x_2, stats_2, du
        Give(n * c * size),  # dy
        Take(n * c * size),  # da
        *linear_backward_in_tiles(n, narrow, c, dtype, name + ".attn.c_proj"),
        Part(),
        *attention_backward(b, t, c, heads, dtype),  # dqkv
        Give(n * 3 * c * size), Give(n * c * size), Give(b * heads * t * compute_itemsize(dtype)),  # qkv, a, lse
        Give(n * c * size),  # da
        *_norm_backward(n, narrow, 3 * c, dtype, name, "ln_1", "attn.c_attn"),  # dx
    )


def _norm_backward(n: int, rows: Rows, m: int, dtype: str, name: str, norm: str, after: str) -> Tape:
    c = sum(rows)
    h = dh = Give(n * c * ITEMSIZE[dtype])
    return (
        *layer_norm(n, c, dtype),  # h
        Take(n * c * ITEMSIZE[dtype]),  # dh
        *linear_backward_in_tiles(n, rows, m, dtype, f"{name}.{after}"),
        h,
        *layer_norm_backward(n, c, dtype, (f"{name}.{norm}.weight", f"{name}.{norm}.bias")),
        dh,
    )
