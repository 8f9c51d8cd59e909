"""GPT-2: how it is computed, and its initialisation. Names, shapes and bytes are those of `layout.models.gpt_spec`.

Radford et al., "Language Models are Unsupervised Multitask Learners", sec. 2.3.

Legend: B batch, T tokens, C = d_model, H heads, V vocabulary, n = B * T, r rows of a piece of n.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import final

from mpizero.layout import sizes
from mpizero.layout.models import GPTConfig, gpt_spec
from mpizero.layout.spec import ParamSpec, SegmentSpec
from mpizero.memory.kinds import ACTIVATION
from mpizero.memory.ledger import Allocator
from mpizero.nn import functional as fn
from mpizero.nn.init import Constant, Initial, Normal
from mpizero.nn.model import Model, Segment
from mpizero.nn.ops.blocks import Array, Context, spans
from mpizero.nn.ops.gradients import Gradients


@final
class EmbeddingSegment(Segment):
    """tokens (B,T) -> wte[token] + wpe[position] (B,T,C)."""

    def forward(self, params: Mapping[str, Array], x: Array, mem: Allocator) -> tuple[Array, Context]:
        return fn.embedding(x, params["wte.weight"], params["wpe.weight"], mem), (x,)

    def backward(self, params: Mapping[str, Array], context: Context, dy: Array, grads: Gradients,
                 mem: Allocator) -> None:
        fn.embedding_backward(context[0], dy, grads, mem)


@final
class BlockSegment(Segment):
    """A pre-norm block: x + attention(ln_1(x)), then + mlp(ln_2(.)).

    Saves what `gpt_spec` counts. The norms' and GELU's outputs are computed again in backward, the same bits, from what
    is saved anyway.
    """

    def __init__(self, spec: SegmentSpec, heads: int):
        self.name, self.params, self.heads = spec.name, spec.params, heads

    def _own(self, params: Mapping[str, Array]) -> dict[str, Array]:
        """This block's parameters without the block's name."""
        return {name.removeprefix(self.name + "."): params[name] for name in self.params}

    def forward(self, params: Mapping[str, Array], x: Array, mem: Allocator) -> tuple[Array, Context]:
        """All but the attention goes row by row, ROWS at a time: what is not saved never leaves the cache."""
        p, shape = self._own(params), x.shape
        n = math.prod(shape[:2])
        x = x.reshape(n, shape[2])
        stats_1, stats_2 = fn.new_stats(n, x.dtype, mem), fn.new_stats(n, x.dtype, mem)  # (2,n)
        qkv, x_2, u, y = (mem.empty((n, len(p[name + ".bias"])), x.dtype, ACTIVATION)
                          for name in ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"))
        for rows in spans(n, sizes.ROWS):
            h = fn.layer_norm(x[rows], p["ln_1.weight"], p["ln_1.bias"], stats_1[:, rows], mem)  # (r,C)
            fn.linear(h, p["attn.c_attn.weight"], p["attn.c_attn.bias"], mem, out=qkv[rows])  # (r,3C)
            del h
        a, lse = fn.attention(qkv.reshape(*shape[:2], qkv.shape[1]), self.heads, mem)  # (B,T,C), (B,H,T)
        a = a.reshape(x.shape)
        for rows in spans(n, sizes.ROWS):
            fn.linear(a[rows], p["attn.c_proj.weight"], p["attn.c_proj.bias"], mem, residual=x[rows],
                      out=x_2[rows])  # (r,C)
            h = fn.layer_norm(x_2[rows], p["ln_2.weight"], p["ln_2.bias"], stats_2[:, rows], mem)  # (r,C)
            fn.linear(h, p["mlp.c_fc.weight"], p["mlp.c_fc.bias"], mem, out=u[rows])  # (r,4C)
            del h
            fn.linear(fn.gelu(u[rows], mem), p["mlp.c_proj.weight"], p["mlp.c_proj.bias"], mem, residual=x_2[rows],
                      out=y[rows])  # (r,C)
        return y.reshape(shape), (x, stats_1, qkv, a, lse, x_2, stats_2, u)

    def backward(self, params: Mapping[str, Array], context: Context, dy: Array, grads: Gradients,
                 mem: Allocator) -> Array:
        x, stats_1, qkv, a, lse, x_2, stats_2, u = context
        del context
        shape, dy = dy.shape, dy.reshape(x.shape)  # (B,T,C), (n,C)
        dg = mem.empty(u.shape, u.dtype, ACTIVATION)
        fn.matmul(dy, params[self.name + ".mlp.c_proj.weight"].T, dg, mem)  # y = linear(gelu(u), c_proj) + x_2
        du, g = fn.gelu_backward(u, dg, mem)  # g = gelu(u) (n,4C)
        del u, dg
        fn.linear_backward_params(g, dy, self.name + ".mlp.c_proj", grads, mem)
        del g
        # u = linear(layer_norm(x_2), c_fc)
        dx_2 = self._norm_backward(params, "ln_2", "mlp.c_fc", x_2, stats_2, du, dy, grads, mem)
        del x_2, stats_2, du, dy
        da = fn.linear_backward(a, dx_2, params, self.name + ".attn.c_proj", grads, mem)  # x_2 = linear(a, c_proj) + x
        dqkv = fn.attention_backward(qkv.reshape(*shape[:2], qkv.shape[1]), a.reshape(shape), lse, da.reshape(shape),
                                     self.heads, mem)
        dqkv = dqkv.reshape(qkv.shape)  # a, lse = attention(qkv)
        del qkv, a, lse, da
        # qkv = linear(layer_norm(x), c_attn)
        dx = self._norm_backward(params, "ln_1", "attn.c_attn", x, stats_1, dqkv, dx_2, grads, mem)
        return dx.reshape(shape)

    def _norm_backward(self, params: Mapping[str, Array], norm: str, after: str, x: Array, stats: Array, dy: Array,
                       residual: Array, grads: Gradients, mem: Allocator) -> Array:
        """Inverts y = linear(layer_norm(x), after). x, residual (n,C), dy (n,M) -> dx + residual (n,C)."""
        weight, bias = f"{self.name}.{norm}.weight", f"{self.name}.{norm}.bias"
        h = fn.layer_norm_again(x, stats, params[weight], params[bias], mem)  # (n,C)
        dh = fn.linear_backward(h, dy, params, f"{self.name}.{after}", grads, mem)  # y = linear(h, after)
        del h
        # h = layer_norm(x)
        return fn.layer_norm_backward(x, stats, dh, params[weight], (weight, bias), grads, mem, residual)


@final
class HeadSegment(Segment):
    """The last norm and the product with the output matrix (V,C): x (B,T,C) -> logits (B,T,V)."""

    def __init__(self, spec: SegmentSpec):
        self.output = spec.params[-1]

    def forward(self, params: Mapping[str, Array], x: Array, mem: Allocator) -> tuple[Array, Context]:
        shape = x.shape
        x = x.reshape(math.prod(shape[:2]), shape[2])  # (n,C)
        stats = fn.new_stats(len(x), x.dtype, mem)  # (2,n)
        h = fn.layer_norm(x, params["ln_f.weight"], params["ln_f.bias"], stats, mem)  # (n,C)
        vocab = len(params[self.output])
        logits = mem.empty((*shape[:2], vocab), x.dtype, ACTIVATION)
        fn.matmul(h, params[self.output].T, logits.reshape(len(x), vocab), mem)  # (n,C) @ (C,V) -> (n,V)
        return logits, (x, stats)

    def backward(self, params: Mapping[str, Array], context: Context, dy: Array, grads: Gradients,
                 mem: Allocator) -> Array:
        x, stats = context
        del context
        shape, dy = dy.shape, dy.reshape(len(x), dy.shape[2])  # dlogits (n,V)
        if grads.wants(self.output):
            h = fn.layer_norm_again(x, stats, params["ln_f.weight"], params["ln_f.bias"], mem)
            # logits = h @ output.T: doutput (V,C) = dlogits.T (V,n) @ h (n,C)
            grads.add_matmul(self.output, dy.T, h, mem)
            del h
        dh = mem.empty(x.shape, x.dtype, ACTIVATION)
        fn.matmul(dy, params[self.output], dh, mem)  # dh (n,C) = dlogits (n,V) @ output (V,C)
        del dy
        # h = layer_norm(x)
        dx = fn.layer_norm_backward(x, stats, dh, params["ln_f.weight"], ("ln_f.weight", "ln_f.bias"), grads, mem)
        return dx.reshape(*shape[:2], x.shape[1])


def gpt(config: GPTConfig = GPTConfig()) -> Model:
    """GPT-2 of these sizes. Forward takes int64 tokens (B,T), T <= context, and gives logits (B,T,V)."""
    spec = gpt_spec(config)
    embedding, *blocks, head = spec.segments
    segments = (EmbeddingSegment(), *(BlockSegment(block, config.heads) for block in blocks), HeadSegment(head))
    return Model("gpt", spec, segments, lambda param: _draw(param, config.layers))


def _draw(param: ParamSpec, layers: int) -> Initial:
    """GPT-2's: normal 0.02, the projections onto the residual stream smaller by sqrt(2 layers), biases 0, norms 1."""
    if param.name.endswith(".bias"):
        return Constant(0)
    if ".ln_" in "." + param.name:
        return Constant(1)
    return Normal(0.02 / math.sqrt(2 * layers) if param.name.endswith("c_proj.weight") else 0.02)
