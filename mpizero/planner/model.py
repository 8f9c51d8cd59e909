"""Models without arrays: a bare number of parameters, GPT-2's shapes, the MLP, and the transformer blocks of the lecture."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation

from mpizero.errors import ConfigError
from mpizero.layout import ModelSpec, ParamSpec, StageSpec
from mpizero.planner.activations import ModelBytes, gpt_bytes, mlp_bytes

GRAIN = 1024  # elements: equal units are multiples of it, so that few are padded
UNITS = 32  # of a model of which only the size is known
COUNTS = {"": 0, "K": 3, "M": 6, "B": 9, "T": 12}  # powers of ten
LARGEST = 10**18


@dataclass(frozen=True)
class PlannedModel:
    """A model as a plan knows it. activations: (samples, tokens of a sample, dtype) -> bytes; None where only a size is known."""

    name: str
    spec: ModelSpec
    activations: Callable[[int, int, str], ModelBytes] | None = None
    context: int = 1  # tokens of a sample
    transformer: tuple[int, int, int] | None = None  # layers, width, heads

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
        raise ConfigError(f"{text!r} parameters make no model: give a whole number from 1 to {LARGEST:.0e}, as in 7.5e9 or 7.5B")
    return int(value)


def flat(psi: int, units: int = UNITS) -> PlannedModel:
    """A model of which only the number of parameters is known, in at most `units` equal units; the last one takes what is left over."""
    size = -(-psi // units)
    size = -(-size // GRAIN) * GRAIN
    sizes = [size] * (psi // size) + ([psi % size] if psi % size else [])
    params = tuple(ParamSpec(f"unit.{i}.weight", (numel,)) for i, numel in enumerate(sizes))
    return PlannedModel(f"a model of {len(sizes)} equal units", ModelSpec(params, _one_stage_each(params)))


def gpt(layers: int, d_model: int, heads: int, vocab: int, context: int = 1024, tied: bool = True) -> PlannedModel:
    """GPT-2's parameters and stages, as `nn.gpt` has them."""
    if d_model % heads:
        raise ConfigError(f"--gpt: d_model {d_model} does not divide by {heads} heads: every head takes d_model / heads features; "
                          f"use d_model {d_model - d_model % heads or heads} or {d_model - d_model % heads + heads}")
    params = [ParamSpec("wte.weight", (vocab, d_model)), ParamSpec("wpe.weight", (context, d_model))]
    stages = [StageSpec("embedding", ("wte.weight", "wpe.weight"))]
    for index in range(layers):
        block = [ParamSpec(f"h.{index}.{name}", shape) for name, shape in _block(d_model).items()]
        params += block
        stages.append(StageSpec(f"h.{index}", tuple(param.name for param in block)))
    params += [ParamSpec("ln_f.weight", (d_model,)), ParamSpec("ln_f.bias", (d_model,))]
    if not tied:
        params.append(ParamSpec("lm_head.weight", (vocab, d_model)))
    stages.append(StageSpec("head", ("ln_f.weight", "ln_f.bias", "wte.weight" if tied else "lm_head.weight")))
    name = f"GPT-2 of {layers} layers, width {d_model}, {heads} heads, {vocab:,} tokens"
    return PlannedModel(name, ModelSpec(tuple(params), tuple(stages)),
                        lambda batch, seq, dtype: gpt_bytes(layers, d_model, heads, vocab, batch, seq, dtype),
                        context, (layers, d_model, heads))


def mlp(hidden: int = 96, layers: int = 5, inputs: int = 32, classes: int = 16) -> PlannedModel:
    """`nn.mlp`: Linears of widths inputs -> hidden -> ... -> classes."""
    widths = [inputs, *[hidden] * (layers - 1), classes]
    params, stages = [], []
    for index in range(layers):
        weight = ParamSpec(f"layers.{index}.weight", (widths[index], widths[index + 1]))
        bias = ParamSpec(f"layers.{index}.bias", (widths[index + 1],))
        params += [weight, bias]
        stages.append(StageSpec(f"layers.{index}", (weight.name, bias.name)))
    return PlannedModel(f"MLP of {layers} Linears, width {hidden}", ModelSpec(tuple(params), tuple(stages)),
                        lambda samples, _, dtype: mlp_bytes(hidden, layers, inputs, classes, samples, dtype))


def blocks(layers: int = 40, d_model: int = 5120, vocab: int = 32_000) -> PlannedModel:
    """Transformer blocks of 12 d_model^2 parameters each and an embedding. The defaults are the lecture's 13B model: 12,746,752,000."""
    params = (ParamSpec("embedding.weight", (vocab, d_model)),
              *(ParamSpec(f"block.{i}.weight", (12, d_model, d_model)) for i in range(layers)))
    spec = ModelSpec(params, _one_stage_each(params))
    return PlannedModel(f"{layers} blocks of 12 x {d_model}^2 and an embedding of {vocab:,} x {d_model}", spec)


def _one_stage_each(params: tuple[ParamSpec, ...]) -> tuple[StageSpec, ...]:
    return tuple(StageSpec(param.name.rpartition(".")[0], (param.name,)) for param in params)


def _block(c: int) -> dict[str, tuple[int, ...]]:
    """A GPT-2 block's parameters, in order."""
    linears = {"attn.c_attn": (c, 3 * c), "attn.c_proj": (c, c), "mlp.c_fc": (c, 4 * c), "mlp.c_proj": (4 * c, c)}
    shapes: dict[str, tuple[int, ...]] = {}
    for norm, names in (("ln_1", ("attn.c_attn", "attn.c_proj")), ("ln_2", ("mlp.c_fc", "mlp.c_proj"))):
        shapes |= {f"{norm}.weight": (c,), f"{norm}.bias": (c,)}
        for name in names:
            shapes |= {f"{name}.weight": linears[name], f"{name}.bias": linears[name][1:]}
    return shapes
