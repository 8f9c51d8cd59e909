"""GPT-2: how it is computed, and its initialisation. Names, shapes and bytes are those of `layout.models.gpt_spec`.

Radford et al., "Language Models are Unsupervised Multitask Learners", sec. 2.3.

Legend: B batch, T tokens, C = d_model, H heads, V vocabulary, n = B * T.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import final

from mpizero.layout.models import GPTConfig, gpt_spec
from mpizero.layout.spec import ParamSpec, SegmentSpec
from mpizero.layout.tensor import TensorPlace
from mpizero.memory.kinds import ACTIVATION
from mpizero.memory.ledger import Allocator
from mpizero.nn import functional as fn
from mpizero.nn.block import ATTENDED, attention_half, attention_half_backward, mlp_half, mlp_half_backward
from mpizero.nn.init import Constant, Initial, Normal
from mpizero.nn.model import Model, Segment
from mpizero.nn.ops.blocks import Array, Context
from mpizero.nn.ops.gradients import Gradients
from mpizero.nn.parts import parts_of
from mpizero.nn.tiled_gpt import TiledBlock


@final
class EmbeddingSegment(Segment):
    """tokens (B,T) -> wte[token] + wpe[position] (B,T,C). A tensor parallel rank has some rows of wte, and gives a
    summand."""

    def __init__(self, vocab: int, place: TensorPlace = TensorPlace()):
        self.first, self.adds = place.range(vocab)[0], place.adds
        self.vocab = vocab if place.size > 1 else None

    def forward(self, params: Mapping[str, Array], x: Array, mem: Allocator) -> tuple[Array, Context]:
        y = fn.embedding(x, params["wte.weight"], params["wpe.weight"], mem, self.first, self.vocab, self.adds)
        return y, (x,)

    def backward(self, params: Mapping[str, Array], context: Context, dy: Array, grads: Gradients,
                 mem: Allocator) -> None:
        fn.embedding_backward(context[0], dy, grads, mem, self.first, self.adds)


@final
class BlockSegment(Segment):
    """A pre-norm block, both halves of it (`nn.block`).

    Saves what `gpt_spec` counts. The norms' and GELU's outputs are computed again in backward, the same bits, from what
    is saved anyway.
    """

    def __init__(self, name: str, heads: int):
        self.name, self.heads = name, heads

    def forward(self, params: Mapping[str, Array], x: Array, mem: Allocator) -> tuple[Array, Context]:
        x, attention = attention_half(params, self.name, self.heads, x, mem)
        y, mlp = mlp_half(params, self.name, x, mem)
        return y, (*attention, *mlp)

    def backward(self, params: Mapping[str, Array], context: Context, dy: Array, grads: Gradients,
                 mem: Allocator) -> Array:
        halves = [context[:ATTENDED], context[ATTENDED:]]
        del context
        dy = mlp_half_backward(params, self.name, halves.pop(), dy, grads, mem)
        return attention_half_backward(params, self.name, self.heads, halves.pop(), dy, grads, mem)


@final
class AttentionSegment(Segment):
    """The first half of a block, of a tensor parallel rank's heads: y is a summand."""

    def __init__(self, block: str, heads: int, place: TensorPlace):
        self.block, self.heads, self.adds = block, heads // place.size, place.adds

    def forward(self, params: Mapping[str, Array], x: Array, mem: Allocator) -> tuple[Array, Context]:
        return attention_half(params, self.block, self.heads, x, mem, self.adds)

    def backward(self, params: Mapping[str, Array], context: Context, dy: Array, grads: Gradients,
                 mem: Allocator) -> Array:
        contexts = [context]
        del context
        return attention_half_backward(params, self.block, self.heads, contexts.pop(), dy, grads, mem, self.adds)


@final
class MLPSegment(Segment):
    """The second half, of its columns of the MLP."""

    def __init__(self, block: str, place: TensorPlace):
        self.block, self.adds = block, place.adds

    def forward(self, params: Mapping[str, Array], x: Array, mem: Allocator) -> tuple[Array, Context]:
        return mlp_half(params, self.block, x, mem, self.adds)

    def backward(self, params: Mapping[str, Array], context: Context, dy: Array, grads: Gradients,
                 mem: Allocator) -> Array:
        contexts = [context]
        del context
        return mlp_half_backward(params, self.block, contexts.pop(), dy, grads, mem, self.adds)


@final
class HeadSegment(Segment):
    """The last norm and the product with the output matrix (V,C): x (B,T,C) -> logits (B,T,V). Of a tensor parallel
    rank's rows of the matrix, logits of these; the gradient of x is a summand."""

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


def gpt(config: GPTConfig = GPTConfig(), tiles: int = 1, place: TensorPlace = TensorPlace()) -> Model:
    """GPT-2 of these sizes. Forward takes int64 tokens (B,T), T <= context, and gives logits (B,T,V). tiles: of each
    matrix of a block, used one after the other. place: of the tensor parallel rank whose part it is."""
    spec = gpt_spec(config, tiles, place)
    _, *parts, head = spec.segments
    blocks: list[Segment] = [BlockSegment(block.name, config.heads) for block in parts]
    if place.size > 1:
        blocks = [half for i in range(config.layers)
                  for half in (AttentionSegment(f"h.{i}", config.heads, place), MLPSegment(f"h.{i}", place))]
    if tiles > 1:
        blocks = [part for i in range(config.layers)
                  for part in parts_of(TiledBlock(f"h.{i}", config.d_model, config.heads, tiles), 4 * tiles + 1)]
    return Model("gpt", spec, (EmbeddingSegment(config.vocab, place), *blocks, HeadSegment(head)),
                 lambda param: _draw(param, config.layers))


def _draw(param: ParamSpec, layers: int) -> Initial:
    """GPT-2's: normal 0.02, the projections onto the residual stream smaller by sqrt(2 layers), biases 0, norms 1."""
    if param.name.endswith(".bias"):
        return Constant(0)
    if ".ln_" in "." + param.name:
        return Constant(1)
    return Normal(0.02 / math.sqrt(2 * layers) if param.name.endswith("c_proj.weight") else 0.02)
