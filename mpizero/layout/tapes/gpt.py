"""GPT-2: `nn.gpt`. B batch, T tokens, C features, V vocabulary, n = B * T, r rows of a piece of n."""

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
    """The first rows of all are the most."""
    n, size = b * t, ITEMSIZE[dtype]
    r = min(n, sizes.ROWS)
    return (
        new_stats(n, dtype), new_stats(n, dtype),
        Take(n * 3 * c * size), Take(n * c * size), Take(n * 4 * c * size), Take(n * c * size),  # qkv, x_2, u, y
        *layer_norm(r, c, dtype),  # h
        *linear(r, c, 3 * c, dtype),
        Give(r * c * size),  # h
        *attention(b, t, c, heads, dtype),
        *linear(r, c, c, dtype, residual=True),
        *layer_norm(r, c, dtype),  # h
        *linear(r, c, 4 * c, dtype),
        Give(r * c * size),  # h
        *gelu(r * 4 * c, dtype),
        *linear(r, 4 * c, c, dtype, residual=True),
        Give(r * 4 * c * size),  # gelu(u)
    )


def block_backward(b: int, t: int, c: int, heads: int, dtype: str, name: str) -> Tape:
    n, size = b * t, ITEMSIZE[dtype]
    return (
        Take(n * 4 * c * size),  # dg
        *matmul(n, c, 4 * c, dtype),
        *gelu_backward(n * 4 * c, dtype),
        *linear_backward_params(n, 4 * c, c, dtype, name + ".mlp.c_proj"),
        Give(n * 4 * c * size),  # g, in the place of u
        *_norm_backward(n, c, 4 * c, dtype, name, "ln_2", "mlp.c_fc"),  # dx_2
        Give(n * c * size), Give(2 * n * compute_itemsize(dtype)), Give(n * 4 * c * size),  # x_2, stats_2, du
        Give(n * c * size),  # dy
        *linear_backward(n, c, c, dtype, name + ".attn.c_proj"),  # da
        *attention_backward(b, t, c, heads, dtype),  # dqkv
        Give(n * 3 * c * size), Give(n * c * size), Give(b * heads * t * compute_itemsize(dtype)),  # qkv, a, lse
        Give(n * c * size),  # da
        *_norm_backward(n, c, 3 * c, dtype, name, "ln_1", "attn.c_attn"),  # dx
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
