"""The models' names, shapes and segments. What they leave in memory is compared with the operators in tests/nn."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mpizero.errors import ConfigError
from mpizero.layout import SegmentBytes
from mpizero.layout.models import GPTConfig, MLPSizes, gpt_spec, mlp_spec
from mpizero.layout.tapes.blocks import compute_itemsize

SMALL = GPTConfig(layers=2, d_model=6, heads=3, context=5, vocab=7)
UNTIED = GPTConfig(layers=2, d_model=6, heads=3, context=5, vocab=7, tied=False)


@pytest.mark.parametrize("spec", [mlp_spec(), mlp_spec(MLPSizes(layers=1)), gpt_spec(SMALL), gpt_spec(UNTIED)],
                         ids=["mlp", "one linear", "tied", "untied"])
def test_every_name_is_one_parameter_and_is_read(spec):
    names = [param.name for param in spec.params]
    assert len(set(names)) == len(names)
    assert {name for segment in spec.segments for name in segment.params} == set(names)
    assert len({segment.name for segment in spec.segments}) == len(spec.segments)


def test_mlp():
    """psi 32,656, units [3168, 9312, 9312, 9312, 1552]."""
    spec = mlp_spec()
    sizes = {param.name: param.numel for param in spec.params}
    assert spec.psi == 32_656
    units = [sum(sizes[name] for name in segment.params) for segment in spec.segments]
    assert units == [3168, 9312, 9312, 9312, 1552]
    assert [segment.name for segment in spec.segments] == [f"layers.{i}" for i in range(5)]
    assert [(param.name, param.shape) for param in spec.params[:2]] == [("layers.0.weight", (32, 96)),
                                                                        ("layers.0.bias", (96,))]
    assert [param.shape for param in spec.params[-2:]] == [(96, 16), (16,)]


@pytest.mark.parametrize(("sizes", "psi", "tensors"), [
    (GPTConfig(layers=12, d_model=768, heads=12, context=1024, vocab=50257), 124_439_808, 148),
    (GPTConfig(layers=24, d_model=1024, heads=16, context=1024, vocab=50257), 354_823_168, 292),
], ids=["small", "medium"])  # fmt: skip
def test_gpt2_has_the_published_size(sizes, psi, tensors):
    """The checkpoints that OpenAI released."""
    spec = gpt_spec(sizes)
    assert spec.psi == psi and len(spec.params) == tensors


def test_gpt2_names_and_shapes():
    """As in the release: Conv1D, so (in, out)."""
    shapes = {param.name: param.shape for param in gpt_spec(GPTConfig(2, 768, 12, 1024, 50257)).params}
    block = {"ln_1.weight": (768,), "ln_1.bias": (768,), "attn.c_attn.weight": (768, 2304), "attn.c_attn.bias": (2304,),
             "attn.c_proj.weight": (768, 768), "attn.c_proj.bias": (768,), "ln_2.weight": (768,), "ln_2.bias": (768,),
             "mlp.c_fc.weight": (768, 3072), "mlp.c_fc.bias": (3072,), "mlp.c_proj.weight": (3072, 768),
             "mlp.c_proj.bias": (768,)}
    assert shapes == {"wte.weight": (50257, 768), "wpe.weight": (1024, 768),
                      **{f"h.{i}.{name}": shape for i in range(2) for name, shape in block.items()},
                      "ln_f.weight": (768,), "ln_f.bias": (768,)}


def test_gpt_segments():
    tied, untied = gpt_spec(SMALL), gpt_spec(UNTIED)
    for spec in (tied, untied):
        assert [segment.name for segment in spec.segments] == ["embedding", "h.0", "h.1", "head"]
        assert all(name.startswith("h.1.") for name in spec.segments[2].params) and len(spec.segments[2].params) == 12
    assert tied.segments[-1].params == ("ln_f.weight", "ln_f.bias", "wte.weight")
    assert untied.segments[-1].params == ("ln_f.weight", "ln_f.bias", "lm_head.weight")
    assert (untied.params[-1].name, untied.params[-1].shape) == ("lm_head.weight", (7, 6))
    assert untied.psi == tied.psi + 7 * 6


@pytest.mark.parametrize(("bad", "words"), [
    (dict(d_model=10, heads=4), "`d_model` 10 does not divide by `heads` 4.*use `d_model` 8 or 12"),
    (dict(d_model=3, heads=4), "`d_model` 3 does not divide.*use `d_model` 4"),
    (dict(layers=0), "`layers` 0"), (dict(d_model=0), "`d_model` 0"), (dict(heads=-1), "`heads` -1"),
    (dict(context=0), "`context` 0"), (dict(vocab=0), "`vocab` 0"),
])  # fmt: skip
def test_gpt_sizes_that_make_no_model(bad, words):
    with pytest.raises(ConfigError, match=words):
        GPTConfig(**bad)


@pytest.mark.parametrize("name", ["hidden", "layers", "inputs", "classes"])
def test_mlp_sizes_that_make_no_model(name):
    with pytest.raises(ConfigError, match=f"`{name}` 0 is no size.*use `{name}` 1 or more"):
        MLPSizes(**{name: 0})


def test_compute_itemsize():
    assert [compute_itemsize(dtype) for dtype in ("float16", "bfloat16", "float32", "float64")] == [4, 4, 4, 8]


@pytest.mark.parametrize(("dtype", "cast"), [("float16", 2), ("bfloat16", 2), ("float32", 0), ("float64", 8)])
def test_mlp_activations_by_hand(dtype, cast):
    """3 samples of 4 features, widths 4 -> 5 -> 2. float32 data is cast unless the parameters are float32 as well."""
    facts = mlp_spec(MLPSizes(hidden=5, layers=2, inputs=4, classes=2)).activations((3,), dtype)
    size, wide = {"float16": (2, 4), "bfloat16": (2, 4), "float32": (4, 4), "float64": (8, 8)}[dtype]
    assert (facts.inputs, facts.targets, facts.loss_kept) == (3 * 4 * 4, 3 * 8, 2 * 3 * wide)
    left = tuple(replace(segment, forward=(), backward=()) for segment in facts.segments)
    assert left == (SegmentBytes(3 * 5 * size, 3 * 4 * cast, keeps_input=not cast, keeps_output=True),
                    SegmentBytes(3 * 2 * size, 0, keeps_input=True, keeps_output=False))
    x = 3 * 4 * (cast or 4)  # the cast, or the data itself
    assert facts.after_forward == x + 3 * 5 * size + 3 * 2 * size + 2 * 3 * wide + 3 * 8


@pytest.mark.parametrize(("dtype", "size", "wide"), [
    ("float16", 2, 4), ("bfloat16", 2, 4), ("float32", 4, 4), ("float64", 8, 8),
])  # fmt: skip
def test_gpt_activations_by_hand(dtype, size, wide):
    """A block of width C and H heads keeps 10 C + H + 4 numbers a token, x included: here 60, 3 and 4."""
    facts, tokens = gpt_spec(SMALL).activations((2, 4), dtype), 8
    block = tokens * (60 * size + (3 + 4) * wide)
    head = tokens * (6 * size + 2 * wide)  # x, and statistics
    logits, loss = tokens * 7 * size, tokens * 2 * wide
    assert facts.after_forward == tokens * 8 + 2 * block + head + logits + loss + tokens * 8
