"""GPT-2: architecture, names and shapes of its weights (Conv1D, so (in, out)), and its initialisation.

Radford et al., "Language Models are Unsupervised Multitask Learners", sec. 2.3; names as in OpenAI's release.

Legend: B batch, T tokens, C = d_model, H heads, V vocabulary, n = B * T, r rows of a piece of n.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from mpizero.errors import ConfigError
from mpizero.layout.spec import ParamSpec
from mpizero.memory import ACTIVATION, Allocator
from mpizero.nn import functional as fn
from mpizero.nn import init
from mpizero.nn.blocks import Array, Context, compute_itemsize, spans
from mpizero.nn.gradients import Gradients
from mpizero.nn.model import Model, Stage, make_model, require_positive, rows_in

ROWS = 512  # rows of a block's forward that stay in cache from one operator to the next


@dataclass(frozen=True)
class GPTConfig:
    """Sizes of a GPT. tied: the output matrix is the token embedding. Raises ConfigError for sizes that make no model."""

    layers: int = 4
    d_model: int = 128
    heads: int = 4
    context: int = 128
    vocab: int = 256
    tied: bool = True

    def __post_init__(self) -> None:
        require_positive(layers=self.layers, d_model=self.d_model, heads=self.heads, context=self.context, vocab=self.vocab)
        if self.d_model % self.heads:
            below = self.d_model - self.d_model % self.heads
            cure = f"--d-model {below or self.heads} or {below + self.heads}" if below else f"--d-model {self.heads}"
            raise ConfigError(
                f"--d-model {self.d_model} does not divide by --heads {self.heads}: every head takes d_model / heads features; use {cure}"
            )


class EmbeddingStage(Stage):
    """tokens (B,T) -> wte[token] + wpe[position] (B,T,C). Final."""

    def __init__(self, config: GPTConfig):
        self.name, self.params, self.width = "embedding", ("wte.weight", "wpe.weight"), config.d_model

    def forward(self, params: Mapping[str, Array], x: Array, mem: Allocator) -> tuple[Array, Context]:
        return fn.embedding(x, params["wte.weight"], params["wpe.weight"], mem), (x,)

    def backward(self, params: Mapping[str, Array], context: Context, dy: Array, grads: Gradients, mem: Allocator) -> None:
        fn.embedding_backward(context[0], dy, grads, mem)

    def saved_bytes(self, batch_shape: tuple[int, ...], itemsize: int) -> int:
        return rows_in(batch_shape) * self.width * itemsize


class BlockStage(Stage):
    """A pre-norm block: x + attention(ln_1(x)), then + mlp(ln_2(.)). Final.

    Saves 10 C + H + 4 numbers per token (H and 4 in the compute dtype): x, qkv, the attention's output, the middle x, the MLP's 4 C
    before GELU, and statistics. The norms' and GELU's outputs are computed again in backward, the same bits, from what is saved anyway.
    """

    def __init__(self, index: int, config: GPTConfig):
        self.name, self.heads, self.width = f"h.{index}", config.heads, config.d_model
        self.params = tuple(f"{self.name}.{param}" for param in block_shapes(config.d_model))

    def _own(self, params: Mapping[str, Array]) -> dict[str, Array]:
        """This block's parameters without the block's name."""
        return {name.removeprefix(self.name + "."): params[name] for name in self.params}

    def forward(self, params: Mapping[str, Array], x: Array, mem: Allocator) -> tuple[Array, Context]:
        """All but the attention goes row by row, ROWS at a time: what is not saved never leaves the cache."""
        p, shape = self._own(params), x.shape
        n, c = rows_in(shape[:2]), self.width
        x = x.reshape(n, c)
        stats_1, stats_2 = fn.new_stats(n, x.dtype, mem), fn.new_stats(n, x.dtype, mem)  # (2,n)
        qkv, x_2, u, y = (mem.empty((n, width), x.dtype, ACTIVATION) for width in (3 * c, c, 4 * c, c))
        for rows in spans(n, ROWS):
            h = fn.layer_norm(x[rows], p["ln_1.weight"], p["ln_1.bias"], stats_1[:, rows], mem)  # (r,C)
            fn.linear(h, p["attn.c_attn.weight"], p["attn.c_attn.bias"], mem, out=qkv[rows])  # (r,3C)
        a, lse = fn.attention(qkv.reshape(*shape[:2], 3 * c), self.heads, mem)  # (B,T,C), (B,H,T)
        a = a.reshape(n, c)
        for rows in spans(n, ROWS):
            fn.linear(a[rows], p["attn.c_proj.weight"], p["attn.c_proj.bias"], mem, residual=x[rows], out=x_2[rows])  # (r,C)
            h = fn.layer_norm(x_2[rows], p["ln_2.weight"], p["ln_2.bias"], stats_2[:, rows], mem)  # (r,C)
            fn.linear(h, p["mlp.c_fc.weight"], p["mlp.c_fc.bias"], mem, out=u[rows])  # (r,4C)
            fn.linear(fn.gelu(u[rows], mem), p["mlp.c_proj.weight"], p["mlp.c_proj.bias"], mem, residual=x_2[rows], out=y[rows])  # (r,C)
        return y.reshape(shape), (x, stats_1, qkv, a, lse, x_2, stats_2, u)

    def backward(self, params: Mapping[str, Array], context: Context, dy: Array, grads: Gradients, mem: Allocator) -> Array:
        x, stats_1, qkv, a, lse, x_2, stats_2, u = context
        del context
        shape, dy = dy.shape, dy.reshape(x.shape)  # (B,T,C), (n,C)
        dg = mem.empty(u.shape, u.dtype, ACTIVATION)
        fn.matmul(dy, params[self.name + ".mlp.c_proj.weight"].T, dg, mem)  # y = linear(gelu(u), c_proj) + x_2
        du, g = fn.gelu_backward(u, dg, mem)  # g = gelu(u) (n,4C)
        del u, dg
        fn.linear_backward_params(g, dy, self.name + ".mlp.c_proj", grads, mem)
        del g
        dx_2 = self._norm_backward(params, "ln_2", "mlp.c_fc", x_2, stats_2, du, dy, grads, mem)  # u = linear(layer_norm(x_2), c_fc)
        del x_2, stats_2, du, dy
        da = fn.linear_backward(a, dx_2, params, self.name + ".attn.c_proj", grads, mem)  # x_2 = linear(a, c_proj) + x
        dqkv = fn.attention_backward(qkv.reshape(*shape[:2], 3 * self.width), a.reshape(shape), lse, da.reshape(shape), self.heads, mem)
        dqkv = dqkv.reshape(qkv.shape)  # a, lse = attention(qkv)
        del qkv, a, lse, da
        dx = self._norm_backward(params, "ln_1", "attn.c_attn", x, stats_1, dqkv, dx_2, grads, mem)  # qkv = linear(layer_norm(x), c_attn)
        return dx.reshape(shape)

    def _norm_backward(self, params: Mapping[str, Array], norm: str, after: str, x: Array, stats: Array, dy: Array, residual: Array,
                       grads: Gradients, mem: Allocator) -> Array:
        """Inverts y = linear(layer_norm(x), after). x, residual (n,C), dy (n,M) -> dx + residual (n,C)."""
        weight, bias = f"{self.name}.{norm}.weight", f"{self.name}.{norm}.bias"
        h = fn.layer_norm_again(x, stats, params[weight], params[bias], mem)  # (n,C)
        dh = fn.linear_backward(h, dy, params, f"{self.name}.{after}", grads, mem)  # y = linear(h, after)
        del h
        return fn.layer_norm_backward(x, stats, dh, params[weight], (weight, bias), grads, mem, residual)  # h = layer_norm(x)

    def saved_bytes(self, batch_shape: tuple[int, ...], itemsize: int) -> int:
        per_token = 10 * self.width * itemsize + (self.heads + 4) * compute_itemsize(itemsize)
        return rows_in(batch_shape) * per_token


class HeadStage(Stage):
    """Final norm and the product with the token embedding (tied) or lm_head.weight, both (V,C): x (B,T,C) -> logits (B,T,V). Final."""

    def __init__(self, config: GPTConfig):
        self.name, self.vocab = "head", config.vocab
        self.output = "wte.weight" if config.tied else "lm_head.weight"
        self.params = ("ln_f.weight", "ln_f.bias", self.output)

    def forward(self, params: Mapping[str, Array], x: Array, mem: Allocator) -> tuple[Array, Context]:
        shape = x.shape
        x = x.reshape(rows_in(shape[:2]), shape[2])  # (n,C)
        stats = fn.new_stats(len(x), x.dtype, mem)  # (2,n)
        h = fn.layer_norm(x, params["ln_f.weight"], params["ln_f.bias"], stats, mem)  # (n,C)
        logits = mem.empty((*shape[:2], self.vocab), x.dtype, ACTIVATION)
        fn.matmul(h, params[self.output].T, logits.reshape(len(x), self.vocab), mem)  # (n,C) @ (C,V) -> (n,V)
        return logits, (x, stats)

    def backward(self, params: Mapping[str, Array], context: Context, dy: Array, grads: Gradients, mem: Allocator) -> Array:
        x, stats = context
        del context
        shape, dy = dy.shape, dy.reshape(len(x), self.vocab)  # dlogits (n,V)
        h = fn.layer_norm_again(x, stats, params["ln_f.weight"], params["ln_f.bias"], mem)
        grads.add_matmul(self.output, dy.T, h, mem)  # logits = h @ output.T: doutput (V,C) = dlogits.T (V,n) @ h (n,C)
        del h
        dh = mem.empty(x.shape, x.dtype, ACTIVATION)
        fn.matmul(dy, params[self.output], dh, mem)  # dh (n,C) = dlogits (n,V) @ output (V,C)
        del dy
        dx = fn.layer_norm_backward(x, stats, dh, params["ln_f.weight"], ("ln_f.weight", "ln_f.bias"), grads, mem)  # h = layer_norm(x)
        return dx.reshape(*shape[:2], x.shape[1])

    def saved_bytes(self, batch_shape: tuple[int, ...], itemsize: int) -> int:
        return rows_in(batch_shape) * (self.vocab * itemsize + 2 * compute_itemsize(itemsize))


def block_shapes(width: int) -> dict[str, tuple[int, ...]]:
    """Parameters of a block, in order."""
    c = width
    return {
        "ln_1.weight": (c,), "ln_1.bias": (c,),
        "attn.c_attn.weight": (c, 3 * c), "attn.c_attn.bias": (3 * c,),
        "attn.c_proj.weight": (c, c), "attn.c_proj.bias": (c,),
        "ln_2.weight": (c,), "ln_2.bias": (c,),
        "mlp.c_fc.weight": (c, 4 * c), "mlp.c_fc.bias": (4 * c,),
        "mlp.c_proj.weight": (4 * c, c), "mlp.c_proj.bias": (c,),
    }  # fmt: skip


def gpt(config: GPTConfig = GPTConfig()) -> Model:
    """Stages embedding, h.0, ..., head. Forward takes int64 tokens (B,T), T <= context, and gives logits (B,T,V)."""
    c = config.d_model
    params = [ParamSpec("wte.weight", (config.vocab, c)), ParamSpec("wpe.weight", (config.context, c))]
    for index in range(config.layers):
        params += [ParamSpec(f"h.{index}.{name}", shape) for name, shape in block_shapes(c).items()]
    params += [ParamSpec("ln_f.weight", (c,)), ParamSpec("ln_f.bias", (c,))]
    if not config.tied:
        params.append(ParamSpec("lm_head.weight", (config.vocab, c)))
    stages = [EmbeddingStage(config), *(BlockStage(index, config) for index in range(config.layers)), HeadStage(config)]
    return make_model("gpt", params, stages, lambda param, seed: _draw(param, seed, config.layers))


def _draw(param: ParamSpec, seed: int, layers: int) -> Array:
    """GPT-2's: normal 0.02, the projections onto the residual stream smaller by sqrt(2 layers), biases 0, norms 1."""
    if param.name.endswith(".bias"):
        return init.constant(param.shape, 0)
    if ".ln_" in "." + param.name:
        return init.constant(param.shape, 1)
    std = 0.02 / math.sqrt(2 * layers) if param.name.endswith("c_proj.weight") else 0.02
    return init.normal(seed, param.name, param.shape, std)
