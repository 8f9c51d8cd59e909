"""Initial values: keyed by (seed, name)."""

from __future__ import annotations

import numpy as np
import pytest

from mpizero.nn import init
from mpizero.nn.gpt import GPTConfig, gpt
from mpizero.nn.mlp import mlp


def test_equal_shapes_start_different():
    for model, names in ((mlp(), ["layers.1.weight", "layers.2.weight", "layers.3.weight"]),
                         (gpt(), [f"h.{i}.mlp.c_fc.weight" for i in range(4)])):  # fmt: skip
        drawn = [model.initial(name, 0) for name in names]
        for i, first in enumerate(drawn):
            assert all(abs(np.corrcoef(first.ravel(), other.ravel())[0, 1]) < 0.05 for other in drawn[i + 1 :])


def test_a_value_depends_on_seed_and_name_only():
    assert np.array_equal(mlp().initial("layers.2.weight", 5), mlp().initial("layers.2.weight", 5))
    assert not np.array_equal(mlp().initial("layers.2.weight", 5), mlp().initial("layers.2.weight", 6))
    # the same name in models of other depth or width: the same stream
    assert np.array_equal(mlp(layers=4).initial("layers.1.weight", 5), mlp(layers=9).initial("layers.1.weight", 5))
    narrow, wide = (gpt(GPTConfig(vocab=vocab)).initial("wte.weight", 5) for vocab in (100, 200))
    assert np.array_equal(narrow, wide[:100])


def test_seed_and_name_do_not_run_together():
    assert not np.array_equal(init.normal(1, "1/a", (8,), 1.0), init.normal(11, "/a", (8,), 1.0))


@pytest.mark.parametrize("model", [mlp(), gpt(GPTConfig(tied=False))], ids=["mlp", "gpt"])
def test_shapes_and_types(model):
    for param in model.spec.params:
        value = model.initial(param.name, 0)
        assert value.shape == param.shape and value.dtype == np.float32 and value.flags.c_contiguous
    with pytest.raises(KeyError):
        model.initial("nobody", 0)


def test_gpt2_scales():
    """Radford et al. 2019, sec. 2.3, and OpenAI's code.

    0.02, residual projections / sqrt(2 layers), biases 0, norms 1.
    """
    model = gpt(GPTConfig(layers=8))
    for name, std in {"wte.weight": 0.02, "wpe.weight": 0.02, "h.3.attn.c_attn.weight": 0.02,
                      "h.3.mlp.c_fc.weight": 0.02, "h.3.attn.c_proj.weight": 0.005,
                      "h.7.mlp.c_proj.weight": 0.005}.items():  # fmt: skip
        value = model.initial(name, 1)
        # the standard error of a standard deviation of n values is std / sqrt(2 n): five of them
        assert value.std() == pytest.approx(std, rel=5 / np.sqrt(2 * value.size))
        assert abs(value.mean()) < 5 * std / np.sqrt(value.size)
    assert not model.initial("h.0.attn.c_proj.bias", 1).any() and not model.initial("h.0.ln_1.bias", 1).any()
    assert (model.initial("h.0.ln_2.weight", 1) == 1).all() and (model.initial("ln_f.weight", 1) == 1).all()


def test_he_scale():
    value = mlp().initial("layers.1.weight", 1)
    assert value.std() == pytest.approx(np.sqrt(2 / 96), rel=0.05)
    assert not mlp().initial("layers.1.bias", 1).any()
