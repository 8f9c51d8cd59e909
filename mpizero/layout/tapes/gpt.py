"""GPT-2: `nn.gpt` and `nn.block`. B batch, T tokens, C features, V vocabulary, n = B * T, r rows of a piece of n."""

from __future__ import annotations

from mpizero.dtypes import ITEMSIZE
from mpizero.layout import sizes
from mpizero.layout.tape import Give, Take, Tape, Wanted
from mpizero.layout.tapes.activation import gelu, gelu_backward
from mpizero.layout.tapes.attention import attention, attention_backward
from mpizero.layout.tapes.blocks import compute_itemsize
from mpizero.layout.tapes.gradients import add_matmul
from mpizero.layout.tapes.linear import linear, linear_backward, linear_backward_params
from mpizero.layout.tapes.matmul import matmul
from mpizero.layout.tapes.normalization import layer_norm, layer_norm_backward, new_stats


def block_forward(b: int, t: int, c: int, heads: int, dtype: str) -> Tape:
    return *attention_half(b, t, c, heads, dtype), *mlp_half(b, t, c, dtype)


def attention_half(b: int, t: int, c: int, heads: int, dtype: str, parts: int = 1, adds: bool = True) -> Tape:
    """The first rows of all are the most. parts: ranks that divide the heads."""
    n, size, own = b * t, ITEMSIZE[dtype], c // parts
    r = min(n, sizes.ROWS)
    return (
        new_stats(n, dtype), Take(n * 3 * own * size), Take(n * c * size),  # qkv, y
        *layer_norm(r, c, dtype),  # h
        *linear(r, c, 3 * own, dtype),
        Give(r * c * size),  # h
        *attention(b, t, own, heads // parts, dtype),
        *linear(r, own, c, dtype, residual=adds),
    )


def mlp_half(b: int, t: int, c: int, dtype: str, parts: int = 1, adds: bool = True) -> Tape:
    n, size, own = b * t, ITEMSIZE[dtype], 4 * c // parts
    r = min(n, sizes.ROWS)
    return (
        new_stats(n, dtype), Take(n * own * size), Take(n * c * size),  # u, y
        *layer_norm(r, c, dtype),  # h
        *linear(r, c, own, dtype),
        Give(r * c * size),  # h
        *gelu(r * own, dtype),
        *linear(r, own, c, dtype, residual=adds),
        Give(r * own * size),  # gelu(u)
    )


def block_backward(b: int, t: int, c: int, heads: int, dtype: str, name: str) -> Tape:
    return (
        *mlp_half_backward(b, t, c, dtype, name),  # dx_2
        Give(b * t * c * ITEMSIZE[dtype]),  # dy
        *attention_half_backward(b, t, c, heads, dtype, name),
    )


def mlp_half_backward(b: int, t: int, c: int, dtype: str, name: str, parts: int = 1, adds: bool = True) -> Tape:
    n, size, own = b * t, ITEMSIZE[dtype], 4 * c // parts
    return (
        Take(n * own * size),  # dg
        *matmul(n, c, own, dtype),
        *gelu_backward(n * own, dtype),
        *linear_backward_params(n, own, c, dtype, name + ".mlp.c_proj", bias=adds),
        Give(n * own * size),  # g, in the place of u
        *_norm_backward(n, c, own, dtype, name, "ln_2", "mlp.c_fc"),  # dx
        Give(n * c * size), Give(2 * n * compute_itemsize(dtype)), Give(n * own * size),  # x, stats, du
    )


def attention_half_backward(b: int, t: int, c: int, heads: int, dtype: str, name: str, parts: int = 1,
                            adds: bool = True) -> Tape:
    n, size, own = b * t, ITEMSIZE[dtype], c // parts
    return (
        *linear_backward(n, own, c, dtype, name + ".attn.c_proj", bias=adds),  # da
        *attention_backward(b, t, own, heads // parts, dtype),  # dqkv
        Give(n * 3 * own * size), Give(n * own * size),  # qkv, a
        Give(b * heads // parts * t * compute_itemsize(dtype)), Give(n * own * size),  # lse, da
        *_norm_backward(n, c, 3 * own, dtype, name, "ln_1", "attn.c_attn"),  # dx
    )


def _norm_backward(n: int, c: int, m: int, dtype: str, name: str, norm: str, after: str) -> Tape:
    h = dh = Give(n * c * ITEMSIZE[dtype])
    return (
        *layer_norm(n, c, dtype),  # h
        *linear_backward(n, c, m, dtype, f"{name}.{after}"),  # dh
        h,
        *layer_norm_backward(n, c, dtype, (f"{name}.{norm}.weight", f"{name}.{norm}.bias")),
        dh,
    )


def head_forward(n: int, c: int, v: int, dtype: str) -> Tape:
    return (
        new_stats(n, dtype),
        *layer_norm(n, c, dtype),  # h
        Take(n * v * ITEMSIZE[dtype]),  # logits
        *matmul(n, c, v, dtype),
        Give(n * c * ITEMSIZE[dtype]),  # h
    )


def head_backward(n: int, c: int, v: int, dtype: str, output: str) -> Tape:
    h, dlogits = Give(n * c * ITEMSIZE[dtype]), Give(n * v * ITEMSIZE[dtype])
    return (
        Wanted((output,), (*layer_norm(n, c, dtype), *add_matmul(output, v, n, c, dtype), h)),
        Take(n * c * ITEMSIZE[dtype]),  # dh
        *matmul(n, v, c, dtype),
        dlogits,
        *layer_norm_backward(n, c, dtype, ("ln_f.weight", "ln_f.bias")),
    )
