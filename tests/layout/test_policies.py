"""Units by a word: what falls together, by hand."""

from __future__ import annotations

import pytest

from mpizero.errors import ConfigError
from mpizero.layout import ModelSpec, ParamSpec, SegmentSpec, named_policy, wrap
from mpizero.layout.models import GPTConfig, gpt_spec

GPT = gpt_spec(GPTConfig(layers=2, d_model=8, heads=2, context=4))


def units(spec, text, dtype="float32", ranks=2):
    return {unit.name: [param.name for param in unit.params]
            for unit in wrap(spec, ranks, named_policy(text, spec, dtype)).units}


def spec_of(*sizes):
    return ModelSpec(tuple(ParamSpec(f"s{i}.weight", (size,)) for i, size in enumerate(sizes)),
                     tuple(SegmentSpec(f"s{i}", (f"s{i}.weight",)) for i in range(len(sizes))))


def test_layer_and_block():
    assert units(GPT, None) == units(GPT, "block") and len(units(GPT, "block")) == 4
    layers = units(GPT, "layer")
    assert layers["h.0.attn.c_attn"] == ["h.0.attn.c_attn.weight", "h.0.attn.c_attn.bias"]
    assert len(layers) == 2 + 2 * 6 + 1  # wte, wpe; of each block two norms and four matrices; ln_f
    assert layers["wte"] == ["wte.weight"]


@pytest.mark.parametrize("size, dtype, expected", [
    ("1B", "float32", [[0], [1], [2], [3]]),
    ("16B", "float32", [[0], [1, 2], [3]]),  # 4 elements, 1 + 5, 6
    ("16B", "float16", [[0, 1, 2, 3]]),  # of 2 bytes: 4 + 1 + 5 >= 8, and the 6 that are left join them
    ("1GB", "float32", [[0, 1, 2, 3]]),
])
def test_neighbours_share_a_unit_until_it_is_large_enough(size, dtype, expected):
    found = [[int(name[1]) for name in names] for names in units(spec_of(4, 1, 5, 6), size, dtype).values()]
    assert found == expected


def test_a_tied_parameter_is_of_its_first_reader():
    everything = [name for names in units(GPT, "300B").values() for name in names]
    assert sorted(everything) == sorted(param.name for param in GPT.params)
    assert "wte.weight" in next(iter(units(GPT, "300B").values()))


@pytest.mark.parametrize("text", ["layers", "", "4", "-1MB", "4MB/s"])
def test_other_words(text):
    with pytest.raises(ConfigError, match="`wrap` .* is no way to make units: give layer, block, or a size"):
        named_policy(text, GPT, "float32")
