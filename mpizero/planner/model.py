"""Models without arrays: a bare number of parameters, GPT-2's shapes, the MLP, and the lecture's blocks."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

from mpizero.dtypes import ITEMSIZE
from mpizero.layout import ModelSpec, ParamSpec, SegmentSpec
from mpizero.layout.models import GPTConfig, MLPSizes, gpt_spec, mlp_spec
from mpizero.papers.activations import recompute_working_memory
from mpizero.planner.activations import recomputed_bytes

GRAIN = 1024  # elements: equal units are multiples of it, so that few are padded
UNITS = 32  # of a model of which only the size is known


@dataclass(frozen=True)
class PlannedModel:
    """A model as a plan knows it. gpt: its sizes, where it is one, so that samples are texts. cut: the same in another
    number of units, where its units are a mere assumption."""

    name: str
    spec: ModelSpec
    gpt: GPTConfig | None = None
    cut: Callable[[int], PlannedModel] | None = None

    @property
    def context(self) -> int:
        """Tokens of a sample."""
        return 1 if self.gpt is None else self.gpt.context

    def shape(self, batch_size: int) -> tuple[int, ...]:
        """Of a microbatch: (samples,) or (samples, tokens)."""
        return (batch_size,) if self.gpt is None else (batch_size, self.gpt.context)

    def recomputed(self, batch_size: int, dtype: str) -> int | None:
        """Bytes of activations, an estimate, when every block keeps its input alone; None where shapes are not known.

        Of a GPT's block, what is computed again is ZeRO-Infinity's closed form, scores of attention included.
        """
        if self.spec.activations is None:
            return None
        table = self.spec.activations(self.shape(batch_size), dtype)
        working = max(segment.kept + segment.output for segment in table.segments)
        if self.gpt is not None:
            sizes = self.gpt.d_model, self.gpt.heads, batch_size, self.gpt.context
            working = recompute_working_memory(*sizes) * ITEMSIZE[dtype] // 2
        return recomputed_bytes(table, working)

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
    return PlannedModel(f"a model of {len(sizes)} equal units", spec, cut=functools.partial(flat, psi))


def gpt(layers: int, d_model: int, heads: int, vocab: int, context: int = 1024, tied: bool = True) -> PlannedModel:
    """GPT-2's parameters and segments, as they are trained."""
    config = GPTConfig(layers, d_model, heads, context, vocab, tied)
    name = f"GPT-2 of {layers} layers, width {d_model}, {heads} heads, {vocab:,} tokens"
    return PlannedModel(name, gpt_spec(config), config)


def mlp(hidden: int = 96, layers: int = 5, inputs: int = 32, classes: int = 16) -> PlannedModel:
    """Linears of widths inputs -> hidden -> ... -> classes, as they are trained."""
    return PlannedModel(f"MLP of {layers} Linears, width {hidden}", mlp_spec(MLPSizes(hidden, layers, inputs, classes)))


def blocks(layers: int = 40, d_model: int = 5120, vocab: int = 32_000) -> PlannedModel:
    """Transformer blocks of 12 d_model^2 parameters each and an embedding; by default the lecture's 13B model."""
    params = (ParamSpec("embedding.weight", (vocab, d_model)),
              *(ParamSpec(f"block.{i}.weight", (12, d_model, d_model)) for i in range(layers)))
    spec = ModelSpec(params, _one_segment_each(params))
    return PlannedModel(f"{layers} blocks of 12 x {d_model}^2 and an embedding of {vocab:,} x {d_model}", spec)


def _one_segment_each(params: tuple[ParamSpec, ...]) -> tuple[SegmentSpec, ...]:
    return tuple(SegmentSpec(param.name.rpartition(".")[0], (param.name,)) for param in params)
