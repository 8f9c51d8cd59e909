"""Models without arrays: a bare number of parameters, GPT-2's shapes, the MLP, and the lecture's blocks."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal, InvalidOperation

from mpizero.errors import ConfigError
from mpizero.layout import ModelSpec, ParamSpec, SegmentSpec
from mpizero.layout.models import GPTConfig, MLPSizes, gpt_spec, mlp_spec

GRAIN = 1024  # elements: equal units are multiples of it, so that few are padded
UNITS = 32  # of a model of which only the size is known
COUNTS = {"": 0, "K": 3, "M": 6, "B": 9, "T": 12}  # powers of ten
LARGEST = 10**18


@dataclass(frozen=True)
class PlannedModel:
    """A model as a plan knows it. gpt: its sizes, where it is one, so that samples are texts."""

    name: str
    spec: ModelSpec
    gpt: GPTConfig | None = None

    @property
    def context(self) -> int:
        """Tokens of a sample."""
        return 1 if self.gpt is None else self.gpt.context

    def shape(self, batch_size: int) -> tuple[int, ...]:
        """Of a microbatch: (samples,) or (samples, tokens)."""
        return (batch_size,) if self.gpt is None else (batch_size, self.gpt.context)

    @property
    def largest_leaf(self) -> int:
        """Elements of the largest leaf module: the parameters whose names differ in their last part alone."""
        leaves: dict[str, int] = {}
        for param in self.spec.params:
            leaf = param.name.rpartition(".")[0]
            leaves[leaf] = leaves.get(leaf, 0) + param.numel
        return max(leaves.values())


def parse_count(text: str) -> int:
    """`7.5e9`, `7.5B` or `7500000000` -> 7500000000. K, M, B, T are powers of 1000."""
    word = text.strip().upper()
    suffix = word[-1:] if word[-1:] in COUNTS else ""
    try:
        value = Decimal(word.removesuffix(suffix)).scaleb(COUNTS[suffix])
    except InvalidOperation:
        raise ConfigError(f"{text!r} is no number of parameters: write it as in 7.5e9, 7.5B or 7500000000") from None
    if not (value.is_finite() and 1 <= value <= LARGEST and value == value.to_integral_value()):
        raise ConfigError(f"{text!r} parameters make no model: give a whole number from 1 to {LARGEST:.0e}, as in "
                          "7.5e9 or 7.5B")
    return int(value)


def flat(psi: int, units: int = UNITS) -> PlannedModel:
    """A model of which only the size is known, in at most `units` equal units; the last one takes what is left over."""
    size = -(-psi // units)
    size = -(-size // GRAIN) * GRAIN
    sizes = [size] * (psi // size) + ([psi % size] if psi % size else [])
    params = tuple(ParamSpec(f"unit.{i}.weight", (numel,)) for i, numel in enumerate(sizes))
    return PlannedModel(f"a model of {len(sizes)} equal units", ModelSpec(params, _one_segment_each(params)))


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
