"""Models without arrays: a bare number of parameters, GPT-2's shapes, the MLP, and the lecture's blocks."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from mpizero.layout import ActivationBytes, ModelSpec, ParamSpec, SegmentBytes, SegmentSpec, freeze, wrap
from mpizero.layout.models import GPTConfig, MLPSizes, gpt_spec, mlp_spec
from mpizero.layout.parts import in_parts
from mpizero.layout.tensor import TensorPlace
from mpizero.papers.activations import pytorch
from mpizero.text import counted

GRAIN = 1024  # elements: equal units are multiples of it, so that few are padded
UNITS = 32  # of a model of which only the size is known
OURS, FLASH, EAGER = "mpizero", "pytorch", "pytorch-eager"
PROGRAMS = {  # whose activations a plan can count -> in words
    FLASH: "PyTorch's with flash attention, no dropout: an estimate",
    EAGER: "PyTorch's with eager attention and dropout: an estimate",
    OURS: "mpizero's own, exact",
}


@dataclass(frozen=True)
class PlannedModel:
    """A model as a plan knows it. gpt: its sizes, where it is one, so that samples are texts. cut: the same in another
    number of units, where its units are a mere assumption. divide: the same as one of so many tensor parallel ranks has
    it, the first, which needs most: it adds what is added once. None where no shapes are known, or it is a part. parts:
    what their number must divide."""

    name: str
    spec: ModelSpec
    gpt: GPTConfig | None = None
    cut: Callable[[int], PlannedModel] | None = None
    divide: Callable[[int], PlannedModel] | None = None
    parts: int = 1

    @property
    def context(self) -> int:
        """Tokens of a sample."""
        return 1 if self.gpt is None else self.gpt.context

    def shape(self, batch_size: int) -> tuple[int, ...]:
        """Of a microbatch: (samples,) or (samples, tokens)."""
        return (batch_size,) if self.gpt is None else (batch_size, self.gpt.context)

    @property
    def programs(self) -> tuple[str, ...]:
        """Of which the activations are known, the usual one first; none where only a size is."""
        if self.spec.activations is None:
            return ()
        return (OURS,) if self.gpt is None else tuple(PROGRAMS)

    def activations(self, program: str, batch_size: int, dtype: str, fused_loss: bool = False) -> ActivationBytes:
        """What a microbatch leaves in `program`, one of `programs`. fused_loss: PyTorch's; ours always is."""
        assert program in self.programs, f"{program} of {self.name}"
        if program != OURS and self.gpt is not None:
            table = pytorch(self.gpt, self.shape(batch_size), dtype, eager=program == EAGER, fused_loss=fused_loss,
                            parts=self.spec.tensor_size)
            return table if table.ranks > 1 else replace(table, segments=tuple(self._in_parts(table.segments)))
        assert self.spec.activations is not None
        return self.spec.activations(self.shape(batch_size), dtype)

    def _in_parts(self, computations: Iterable[SegmentBytes]) -> Iterator[SegmentBytes]:
        """Those of this model's segments, of which several may be parts of one."""
        groups = itertools.groupby(self.spec.segments, key=lambda segment: segment.of or segment.name)
        for computation, (_, parts) in zip(computations, groups, strict=True):
            yield from in_parts(computation, len(list(parts)))

    @functools.cached_property
    def forward_flops(self) -> tuple[int, ...]:
        """Operations per token of each segment's forward.

        2 a parameter, of which a tied one counts where it is used last, as a lookup is free; and 4 context h for the
        scores of a block's attention and their sums (6 psi + 12 L h s a step: PaLM, arXiv:2204.02311, appendix B). Of a
        tensor parallel rank what it has of them.
        """
        sizes = self._products(self.spec.pieces)
        if self.gpt is not None:
            places = {segment.name: index for index, segment in enumerate(self.spec.segments)}
            for block in (f"h.{index}" for index in range(self.gpt.layers)):
                width = self.gpt.d_model // self.spec.tensor_size
                sizes[places.get(f"{block}.attn", places.get(block, 0))] += 4 * self.gpt.context * width
        return tuple(sizes)

    @functools.cached_property
    def backward_flops(self) -> tuple[int, ...]:
        """The same of a backward: twice those of the forward, but for frozen parameters no gradient is computed."""
        frozen = self._products(param for param in self.spec.pieces if param.frozen)
        return tuple(2 * forward - less for forward, less in zip(self.forward_flops, frozen, strict=True))

    def _products(self, params: Iterable[ParamSpec]) -> list[int]:
        """Of each segment, with those of `params` that it uses last."""
        last = {name: index for index, segment in enumerate(self.spec.segments) for name in segment.params}
        sizes = [0] * len(self.spec.segments)
        for param in params:
            sizes[last[param.name]] += 2 * param.numel
        return sizes

    @property
    def largest_unit(self) -> int:
        """Elements of the largest unit, where a segment is one."""
        return max(unit.numel for unit in wrap(self.spec, 1).units)

    @property
    def largest_leaf(self) -> int:
        """Elements of the largest leaf module: the parameters whose names differ in their last part alone."""
        leaves: dict[str, int] = {}
        for param in self.spec.params:
            leaf = param.name.rpartition(".")[0]
            leaves[leaf] = leaves.get(leaf, 0) + param.numel
        return max(leaves.values())


def flat(psi: int, units: int = UNITS) -> PlannedModel:
    """A model of which only the size is known, in at most `units` equal units; the last one takes what is left over."""
    size = -(-psi // units)
    size = -(-size // GRAIN) * GRAIN
    sizes = [size] * (psi // size) + ([psi % size] if psi % size else [])
    params = tuple(ParamSpec(f"unit.{i}.weight", (numel,)) for i, numel in enumerate(sizes))
    spec = ModelSpec(params, _one_segment_each(params))
    return PlannedModel(f"a model of {counted(len(sizes), 'equal unit')}", spec, cut=functools.partial(flat, psi))


def gpt(layers: int, d_model: int, heads: int, vocab: int, context: int = 1024, tied: bool = True,
        tiles: int = 1) -> PlannedModel:
    """GPT-2's parameters and segments, as they are trained."""
    config = GPTConfig(layers, d_model, heads, context, vocab, tied)
    name = f"GPT-2 of {layers} layers, width {d_model}, {heads} heads, {vocab:,} tokens"
    return _divisible(name, functools.partial(gpt_spec, config), tiles, math.gcd(heads, vocab), config)


def mlp(hidden: int = 96, layers: int = 5, inputs: int = 32, classes: int = 16, tiles: int = 1) -> PlannedModel:
    """Linears of widths inputs -> hidden -> ... -> classes, as they are trained."""
    sizes = MLPSizes(hidden, layers, inputs, classes)
    return _divisible(f"MLP of {layers} Linears, width {hidden}", functools.partial(mlp_spec, sizes), tiles,
                      math.gcd(*sizes.widths[1:]))


def _divisible(name: str, spec: Callable[[int, TensorPlace], ModelSpec], tiles: int, parts: int,
               config: GPTConfig | None = None) -> PlannedModel:
    """A model with shapes."""
    def divide(size: int) -> PlannedModel:
        return PlannedModel(f"{name}, divided among {counted(size, 'tensor parallel rank')}",
                            spec(tiles, TensorPlace(0, size)), config)

    cut = f", matrices in {tiles} tiles" if tiles > 1 else ""
    return PlannedModel(name + cut, spec(tiles, TensorPlace()), config, divide=divide, parts=1 if tiles > 1 else parts)


def frozen(model: PlannedModel, patterns: Sequence[str]) -> PlannedModel:
    """`model` with the parameters frozen whose names match one of `patterns`; see `layout.freeze`."""
    divide = model.divide
    return replace(model, spec=freeze(model.spec, patterns), cut=None,  # other units would have other names
                   divide=divide and (lambda size: frozen(divide(size), patterns)))


def blocks(layers: int = 40, d_model: int = 5120, vocab: int = 32_000) -> PlannedModel:
    """Transformer blocks of 12 d_model^2 parameters each and an embedding; by default the lecture's 13B model."""
    params = (ParamSpec("embedding.weight", (vocab, d_model)),
              *(ParamSpec(f"block.{i}.weight", (12, d_model, d_model)) for i in range(layers)))
    spec = ModelSpec(params, _one_segment_each(params))
    return PlannedModel(f"{layers} blocks of 12 x {d_model}^2 and an embedding of {vocab:,} x {d_model}", spec)


def _one_segment_each(params: tuple[ParamSpec, ...]) -> tuple[SegmentSpec, ...]:
    return tuple(SegmentSpec(param.name.rpartition(".")[0], (param.name,)) for param in params)
