"""GPT-2's block in two halves, each added to its input: x + attention(ln_1(x)), and then x + mlp(ln_2(x)).

Legend as in `nn.gpt`; C' and 4 C', the features of this rank's heads and of its part of the MLP: all of them, unless
tensor parallel ranks divide them.

[Note: Parts] Tensor parallel ranks have some heads each, and some columns of the MLP (Megatron-LM, arXiv:1909.08053,
sec. 3). What a half gives is a sum over its features, so each rank has a part of it, and ranks add these up. What is
added to that sum, x and the last bias, `adds` lets one of them add. Backward is linear in dy, hence the same: each rank
goes all the way back to x with its own features, and ranks add up the gradients of x, and those of norms and of the
last bias, which all of them hold.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from mpizero.layout import sizes
from mpizero.memory.kinds import ACTIVATION
from mpizero.memory.ledger import Allocator
from mpizero.nn import functional as fn
from mpizero.nn.ops.blocks import Array, Context, spans
from mpizero.nn.ops.gradients import Gradients

Params = Mapping[str, Array]
ATTENDED = 5  # arrays that the first half saves


def attention_half(p: Params, name: str, heads: int, x: Array, mem: Allocator, adds: bool = True) -> tuple[Array,
                                                                                                           Context]:
    """x (B,T,C) -> x + linear(attention(linear(ln_1(x), c_attn)), c_proj). What is a function of a row goes ROWS of
    them at a time: what is not saved never leaves the cache. `name` stands before the names of parameters."""
    shape, n = x.shape, math.prod(x.shape[:2])
    x = x.reshape(n, shape[2])
    stats = fn.new_stats(n, x.dtype, mem)  # (2,n)
    qkv = mem.empty((n, len(p[name + ".attn.c_attn.bias"])), x.dtype, ACTIVATION)
    y = mem.empty(x.shape, x.dtype, ACTIVATION)
    for rows in spans(n, sizes.ROWS):
        h = fn.layer_norm(x[rows], p[name + ".ln_1.weight"], p[name + ".ln_1.bias"], stats[:, rows], mem)  # (r,C)
        fn.linear(h, p[name + ".attn.c_attn.weight"], p[name + ".attn.c_attn.bias"], mem, out=qkv[rows])  # (r,3C')
        del h
    a, lse = fn.attention(qkv.reshape(*shape[:2], qkv.shape[1]), heads, mem)  # (B,T,C'), (B,H,T)
    a = a.reshape(n, a.shape[2])
    for rows in spans(n, sizes.ROWS):
        _add(a[rows], p, name + ".attn.c_proj", x[rows] if adds else None, y[rows], mem)
    return y.reshape(shape), (x, stats, qkv, a, lse)


def mlp_half(p: Params, name: str, x: Array, mem: Allocator, adds: bool = True) -> tuple[Array, Context]:
    """x (B,T,C) -> x + linear(gelu(linear(ln_2(x), c_fc)), c_proj)."""
    shape, n = x.shape, math.prod(x.shape[:2])
    x = x.reshape(n, shape[2])
    stats = fn.new_stats(n, x.dtype, mem)  # (2,n)
    u = mem.empty((n, len(p[name + ".mlp.c_fc.bias"])), x.dtype, ACTIVATION)
    y = mem.empty(x.shape, x.dtype, ACTIVATION)
    for rows in spans(n, sizes.ROWS):
        h = fn.layer_norm(x[rows], p[name + ".ln_2.weight"], p[name + ".ln_2.bias"], stats[:, rows], mem)  # (r,C)
        fn.linear(h, p[name + ".mlp.c_fc.weight"], p[name + ".mlp.c_fc.bias"], mem, out=u[rows])  # (r,4C')
        del h
        g = fn.gelu(u[rows], mem)  # (r,4C')
        _add(g, p, name + ".mlp.c_proj", x[rows] if adds else None, y[rows], mem)
        del g
    return y.reshape(shape), (x, stats, u)


def _add(x: Array, p: Params, linear: str, residual: Array | None, out: Array, mem: Allocator) -> None:
    """The bias goes with the residual: see [Note: Parts]."""
    bias = None if residual is None else p[linear + ".bias"]
    fn.linear(x, p[linear + ".weight"], bias, mem, residual=residual, out=out)


def attention_half_backward(p: Params, name: str, heads: int, context: Context, dy: Array, grads: Gradients,
                            mem: Allocator, adds: bool = True) -> Array:
    """dy (B,T,C) -> dx (B,T,C)."""
    x, stats, qkv, a, lse = context
    del context
    shape, dy = dy.shape, dy.reshape(x.shape)  # (n,C)
    # y = linear(a, c_proj) + x
    da = fn.linear_backward(a, dy, p, name + ".attn.c_proj", grads, mem, bias=adds)
    dqkv = fn.attention_backward(qkv.reshape(*shape[:2], qkv.shape[1]), a.reshape(*shape[:2], a.shape[1]), lse,
                                 da.reshape(*shape[:2], a.shape[1]), heads, mem)
    dqkv = dqkv.reshape(qkv.shape)  # a, lse = attention(qkv)
    del qkv, a, lse, da
    # qkv = linear(layer_norm(x), c_attn)
    dx = _norm_backward(p, name, "ln_1", "attn.c_attn", x, stats, dqkv, dy if adds else None, grads, mem)
    return dx.reshape(shape)


def mlp_half_backward(p: Params, name: str, context: Context, dy: Array, grads: Gradients, mem: Allocator,
                      adds: bool = True) -> Array:
    """dy (B,T,C) -> dx (B,T,C)."""
    x, stats, u = context
    del context
    shape, dy = dy.shape, dy.reshape(x.shape)  # (n,C)
    dg = mem.empty(u.shape, u.dtype, ACTIVATION)
    fn.matmul(dy, p[name + ".mlp.c_proj.weight"].T, dg, mem)  # y = linear(gelu(u), c_proj) + x
    du, g = fn.gelu_backward(u, dg, mem)  # g = gelu(u) (n,4C')
    del u, dg
    fn.linear_backward_params(g, dy, name + ".mlp.c_proj", grads, mem, bias=adds)
    del g
    # u = linear(layer_norm(x), c_fc)
    dx = _norm_backward(p, name, "ln_2", "mlp.c_fc", x, stats, du, dy if adds else None, grads, mem)
    return dx.reshape(shape)


def _norm_backward(p: Params, name: str, norm: str, after: str, x: Array, stats: Array, dy: Array,
                   residual: Array | None, grads: Gradients, mem: Allocator) -> Array:
    """Inverts y = linear(layer_norm(x), after). x, residual (n,C), dy (n,M) -> dx + residual (n,C)."""
    weight, bias = f"{name}.{norm}.weight", f"{name}.{norm}.bias"
    h = fn.layer_norm_again(x, stats, p[weight], p[bias], mem)  # (n,C)
    dh = fn.linear_backward(h, dy, p, f"{name}.{after}", grads, mem)  # y = linear(h, after)
    del h
    # h = layer_norm(x)
    return fn.layer_norm_backward(x, stats, dh, p[weight], (weight, bias), grads, mem, residual)
