"""The models that are trained here, without arrays: names, shapes, segments, and what each leaves in memory. Pure.

`nn` computes with these facts, and plans are made from them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise

from mpizero.dtypes import ITEMSIZE
from mpizero.errors import ConfigError
from mpizero.layout.divided import divided_block, divided_layers
from mpizero.layout.parts import in_parts
from mpizero.layout.spec import ActivationBytes, ModelSpec, ParamSpec, SegmentBytes, SegmentSpec
from mpizero.layout.tape import Take
from mpizero.layout.tapes import tiled
from mpizero.layout.tapes.blocks import compute_itemsize
from mpizero.layout.tapes.embedding import embedding, embedding_backward
from mpizero.layout.tapes.gpt import block_backward, block_forward, head_backward, head_forward
from mpizero.layout.tapes.loss import cross_entropy, cross_entropy_backward, cross_entropy_part
from mpizero.layout.tapes.mlp import DATA, linear_segment, linear_segment_backward
from mpizero.layout.tensor import TensorPlace, require_divides

INT64 = 8  # a token or a target
MOST_WIDE = 2**40  # beyond it no width means anything


def _require_positive(sizes: object) -> None:
    for name, size in vars(sizes).items():
        if not isinstance(size, bool | str) and size < 1:
            raise ConfigError(f"`{name}` {size} is no size: a model needs at least 1; use `{name}` 1 or more")


def parse_hidden(text: str) -> int | str:
    """`96`: a width; `64,128,256`: text with one for each hidden layer. ConfigError for what is neither."""
    widths = [part.strip() for part in text.split(",")]
    if not all(width.isascii() and width.isdigit() and 0 < int(width[:13]) < MOST_WIDE for width in widths):
        raise ConfigError(f"`hidden` {text[:40]!r} is no width, nor one for each hidden layer: give a number from 1 to "
                          "below 2^40, or several, as in 64,128,256")
    return int(text) if len(widths) == 1 else ",".join(str(int(width)) for width in widths)


@dataclass(frozen=True)
class MLPSizes:
    """`layers` Linears of widths inputs -> hidden -> ... -> hidden -> classes, ReLU between them. hidden: as text the
    width of each hidden layer (see `parse_hidden`), and then `layers` follows.

    ConfigError for a size below 1.
    """

    hidden: int | str = 96
    layers: int = 5
    inputs: int = 32
    classes: int = 16

    def __post_init__(self) -> None:
        if isinstance(self.hidden, str):
            parse_hidden(self.hidden)  # raises
            object.__setattr__(self, "layers", len(self.hidden.split(",")) + 1)
        _require_positive(self)

    @property
    def widths(self) -> list[int]:
        hidden = ([self.hidden] * (self.layers - 1) if isinstance(self.hidden, int)
                  else [int(width) for width in self.hidden.split(",")])
        return [self.inputs, *hidden, self.classes]


def mlp_spec(sizes: MLPSizes = MLPSizes(), tiles: int = 1, place: TensorPlace = TensorPlace()) -> ModelSpec:
    """A segment each Linear: layers.I.weight (in, out), layers.I.bias (out,); or each tile of its weight. Tensor
    parallel ranks divide the columns of the first, the rows of the second, and so on in turn."""
    _require_alone(tiles, place)
    params: list[ParamSpec] = []
    segments = []
    for index, (fan_in, fan_out) in enumerate(pairwise(sizes.widths)):
        name, by_columns = f"layers.{index}", index % 2 == 0
        weight = ParamSpec(f"{name}.weight", (fan_in, fan_out), tiles=tiles)
        bias = ParamSpec(f"{name}.bias", (fan_out,))
        params += [place.columns(weight), place.columns(bias)] if by_columns else [place.rows(weight), place.copy(bias)]
        if tiles == 1:
            segments.append(SegmentSpec(name, (weight.name, bias.name), sums=not by_columns and place.size > 1,
                                        sums_back=by_columns and place.size > 1))
        else:
            segments += _parts(name, (bias.name,), (name,), tiles)
    require_tiles(tiles, params)
    for width in sizes.widths[1:-1]:
        require_divides("`hidden`", width, place.size)
    require_divides("`classes`", sizes.classes, place.size)
    divided = place.size > 1 and sizes.layers % 2 == 1

    @cache
    def activations(shape: tuple[int, ...], dtype: str) -> ActivationBytes:
        """ReLU works in place, and its backward reads what it left.

        Data of another dtype than the parameters' is cast, and the cast kept.
        """
        (samples,), size = shape, ITEMSIZE[dtype]
        cast = samples * sizes.inputs * size if dtype != DATA else 0
        last = sizes.layers - 1
        inputs, layers = ITEMSIZE[DATA] * samples * sizes.inputs, list[SegmentBytes]()
        if place.size > 1:
            halves, parts = divided_layers(samples, sizes.widths, dtype, place, cast), place.size if divided else 1
            return _with_loss(inputs, samples, halves, sizes.classes // parts, dtype, place.size, parts)
        for i, (k, m) in enumerate(pairwise(sizes.widths)):
            layer = SegmentBytes(samples * m * size, cast if i == 0 else 0, keeps_input=i > 0 or not cast,
                                 keeps_output=i < last)
            if tiles == 1:
                layers.append(replace(
                    layer, forward=linear_segment(samples, k, m, dtype, first=i == 0),
                    backward=linear_segment_backward(samples, k, m, dtype, f"layers.{i}", i == 0, i == last)))
            else:
                layers += in_parts(replace(
                    layer, forward=tiled.mlp_forward(samples, k, m, dtype, tiles, i == 0),
                    backward=tiled.mlp_backward(samples, k, m, dtype, tiles, f"layers.{i}", i == 0, i == last)),
                    inputs=inputs)
        return _with_loss(inputs, samples, tuple(layers), sizes.classes, dtype)

    return ModelSpec(tuple(params), tuple(segments), activations, place.size, divided)


@dataclass(frozen=True)
class GPTConfig:
    """Sizes of a GPT. tied: the output matrix is the token embedding. ConfigError for sizes that make no model."""

    layers: int = 4
    d_model: int = 128
    heads: int = 4
    context: int = 128
    vocab: int = 256
    tied: bool = True

    def __post_init__(self) -> None:
        _require_positive(self)
        if self.d_model % self.heads:
            below = self.d_model - self.d_model % self.heads
            cure = f"{below} or {below + self.heads}" if below else f"{self.heads}"
            raise ConfigError(f"`d_model` {self.d_model} does not divide by `heads` {self.heads}: every head takes "
                              f"d_model / heads features; use `d_model` {cure}")


def gpt_spec(config: GPTConfig = GPTConfig(), tiles: int = 1, place: TensorPlace = TensorPlace()) -> ModelSpec:
    """Segments embedding, h.0, ..., head. Names and shapes of GPT-2's release: Conv1D, so (in, out). With tiles a block
    has a segment for each tile of its four matrices, in the order in which they are used, and one for the attention.
    Tensor parallel ranks divide heads, columns and vocabulary; then it has one for each of its halves.
    """
    _require_alone(tiles, place)
    c, sums = config.d_model, place.size > 1
    params = [place.rows(ParamSpec("wte.weight", (config.vocab, c))),
              place.copy(ParamSpec("wpe.weight", (config.context, c)))]
    segments = [SegmentSpec("embedding", ("wte.weight", "wpe.weight"), sums=sums)]
    for index in range(config.layers):
        name = f"h.{index}"
        block = [_part_of(ParamSpec(f"{name}.{each}", shape, tiles=tiles if len(shape) == 2 else 1), place)
                 for each, shape in block_shapes(c).items()]
        params += block
        if sums:
            segments += [SegmentSpec(f"{name}.{half}", tuple(param.name for param in block[start:start + 6]), name,
                                     sums=True, sums_back=True) for half, start in (("attn", 0), ("mlp", 6))]
        elif tiles == 1:
            segments.append(SegmentSpec(name, tuple(param.name for param in block)))
        else:
            vectors, linears = tuple(param.name for param in block if param.tiles == 1), [
                f"{name}.{each}" for each in ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")]
            segments += [*_parts(name, vectors, linears[:1], tiles), SegmentSpec(f"{name}.attn", vectors, name),
                         *_parts(name, vectors, linears[1:], tiles)]
    require_tiles(tiles, params)
    params += [place.copy(ParamSpec("ln_f.weight", (c,))), place.copy(ParamSpec("ln_f.bias", (c,)))]
    if not config.tied:
        params.append(place.rows(ParamSpec("lm_head.weight", (config.vocab, c))))
    output = "wte.weight" if config.tied else "lm_head.weight"
    segments.append(SegmentSpec("head", ("ln_f.weight", "ln_f.bias", output), sums_back=sums))
    for field, count in (("`heads`", config.heads), ("the vocabulary of", config.vocab)):
        require_divides(field, count, place.size)

    @cache
    def activations(shape: tuple[int, ...], dtype: str) -> ActivationBytes:
        """A block leaves 10 C + H + 4 numbers a token.

        They are x, qkv, attention's output, the middle x and the MLP's 4 C before GELU; and, in the compute dtype, the
        log of each head's sum and two statistics of each norm.
        """
        (batch, seq), size, wide = shape, ITEMSIZE[dtype], compute_itemsize(dtype)
        tokens = batch * seq
        flow = tokens * c * size
        first = SegmentBytes(flow, forward=embedding(batch, seq, c, dtype, place.adds),
                             backward=embedding_backward(batch, seq, c, dtype, place.adds))
        sizes, vocab = (batch, seq, c, config.heads, dtype), config.vocab // place.size
        head = SegmentBytes(tokens * vocab * size, 2 * tokens * wide,
                            forward=head_forward(tokens, c, vocab, dtype),
                            backward=head_backward(tokens, c, vocab, dtype, output))
        if sums:
            halves = [half for i in range(config.layers) for half in divided_block(*sizes, f"h.{i}", place)]
            return _with_loss(INT64 * tokens, tokens, (first, *halves, head), vocab, dtype, place.size, place.size)
        block = SegmentBytes(flow, tokens * (9 * c * size + (config.heads + 4) * wide),
                             forward=block_forward(*sizes) if tiles == 1 else tiled.block_forward(*sizes, tiles))
        blocks = list[SegmentBytes]()
        for index in range(config.layers):
            if tiles == 1:
                blocks.append(replace(block, backward=block_backward(*sizes, f"h.{index}")))
            else:
                blocks += in_parts(replace(block, backward=tiled.block_backward(*sizes, tiles, f"h.{index}")))
        return _with_loss(INT64 * tokens, tokens, (first, *blocks, head), vocab, dtype)

    return ModelSpec(tuple(params), tuple(segments), activations, place.size, sums)


def _part_of(param: ParamSpec, place: TensorPlace) -> ParamSpec:
    """Of a block's parameter. Queries, keys and values lie side by side, each head by head."""
    if "c_attn" in param.name:
        return place.columns(param, blocks=3)
    if "c_fc" in param.name:
        return place.columns(param)
    return place.rows(param) if param.name.endswith("c_proj.weight") else place.copy(param)


def _parts(of: str, params: tuple[str, ...], linears: Iterable[str], tiles: int) -> list[SegmentSpec]:
    """A segment for each tile of the weights of `linears`, which reads `params` too."""
    return [SegmentSpec(f"{linear}[{index}]", (*params, f"{linear}.weight[{index}]"), of)
            for linear in linears for index in range(tiles)]


def _require_alone(tiles: int, place: TensorPlace) -> None:
    if tiles > 1 and place.size > 1:
        raise ConfigError(f"`tiles` {tiles} and `tensor_size` {place.size} both cut the same matrices: use one of them")


def require_tiles(tiles: int, params: Iterable[ParamSpec]) -> None:
    """ConfigError unless every weight that shall have tiles has so many rows."""
    if tiles < 1:
        raise ConfigError(f"`tiles` {tiles} is impossible: it must be at least 1, which cuts nothing")
    least = min((param for param in params if param.tiles > 1), key=lambda param: param.shape[0], default=None)
    if least is not None and least.shape[0] < tiles:
        raise ConfigError(f"`tiles` {tiles} is more than the {least.shape[0]} rows of {least.name}, and a tile has at "
                          f"least one: use `tiles` {least.shape[0]} at most")


def block_shapes(c: int) -> dict[str, tuple[int, ...]]:
    """Parameters of a GPT-2 block of width `c`, in order."""
    return {
        "ln_1.weight": (c,), "ln_1.bias": (c,),
        "attn.c_attn.weight": (c, 3 * c), "attn.c_attn.bias": (3 * c,),
        "attn.c_proj.weight": (c, c), "attn.c_proj.bias": (c,),
        "ln_2.weight": (c,), "ln_2.bias": (c,),
        "mlp.c_fc.weight": (c, 4 * c), "mlp.c_fc.bias": (4 * c,),
        "mlp.c_proj.weight": (4 * c, c), "mlp.c_proj.bias": (c,),
    }  # fmt: skip


def _with_loss(inputs: int, targets: int, segments: tuple[SegmentBytes, ...], classes: int, dtype: str,
               ranks: int = 1, parts: int = 1) -> ActivationBytes:
    """Cross-entropy keeps two numbers a target: the largest logit, and the log of the sum. ranks: those of a tensor
    parallel group. parts: how many of them divide the classes, of which each has so many; they tell each other three
    numbers a target."""
    kept, backward = 2 * targets * compute_itemsize(dtype), cross_entropy_backward(targets, classes, dtype)
    whole = ActivationBytes(inputs, INT64 * targets, segments, kept, cross_entropy(targets, classes, dtype), backward,
                            ranks=ranks)
    if parts == 1:
        return whole
    told = 3 * parts * targets * compute_itemsize(dtype)
    return replace(whole, loss=(Take(kept),), loss_parts=told,
                   loss_part=(Take(told), *cross_entropy_part(targets, classes, dtype)))
