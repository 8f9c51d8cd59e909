"""Initial values: keyed by (seed, name) and place, made range by range."""

from __future__ import annotations

import hashlib
import math

import numpy as np
import pytest

from mpizero.layout import ParamSpec
from mpizero.memory.kinds import WORKSPACE
from mpizero.memory.ledger import Ledger, Uncounted
from mpizero.nn.gpt import GPTConfig, gpt
from mpizero.nn.init import Constant, Normal
from mpizero.nn.mlp import mlp

MASK = 2**64 - 1


def drawn(seed, name, begin, count, std=1.0, mem=Uncounted()):
    out = np.full(count, np.nan, np.float32)
    Normal(std).fill(seed, name, begin, out, mem)
    return out


def philox(key, counter):
    """Four words of Philox4x64-10, from the paper: Salmon et al., Parallel Random Numbers, SC 2011, sec. 3.3."""
    words, keys = [counter, 0, 0, 0], [key & MASK, key >> 64]
    for _ in range(10):
        high, low = divmod(0xD2E7470EE14C6C93 * words[0], 2**64)
        other, last = divmod(0xCA5A826395121157 * words[2], 2**64)
        words = [other ^ words[1] ^ keys[0], last, high ^ words[3] ^ keys[1], low]
        keys = [(keys[0] + 0x9E3779B97F4A7C15) & MASK, (keys[1] + 0xBB67AE8584CAA73B) & MASK]
    return words


def test_philox_is_the_papers():
    """Known answers of its authors (Random123, kat_vectors)."""
    assert philox(0, 0) == [0x16554D9ECA36314C, 0xDB20FE9D672D0FDC, 0xD7E772CEE186176B, 0x7E68B68AEC7BA23B]


@pytest.mark.parametrize("begin", [0, 10**12])
def test_values_are_box_and_mullers(begin):
    """By Python's integers and logarithm, cosine and sine of the C library, rounded to float32."""
    key = int.from_bytes(hashlib.blake2b(b"3/h.0.w", digest_size=16).digest(), "little")
    expected = []
    for counter in range(begin // 8 + 1, begin // 8 + 251):  # NumPy counts up before it draws
        for word in philox(key, counter):
            radius = math.sqrt(-2 * math.log(((word >> 32) + 0.5) / 2**32))
            angle = 2 * math.pi * (word & 2**32 - 1) / 2**32
            expected += [0.02 * radius * math.cos(angle), 0.02 * radius * math.sin(angle)]
    assert np.array_equal(drawn(3, "h.0.w", begin, 2000, 0.02), np.float32(expected))


def test_bits_are_the_same_on_every_processor():
    """No library's logarithm is in them."""
    found = hashlib.sha256(drawn(0, "wte.weight", 0, 100_000).astype("<f4").tobytes()).hexdigest()
    assert found == "8460c808e160ec67e3164674c11064607506123076b88925d1dbf88654c5bca4"


def test_any_range_is_part_of_the_whole():
    """Wherever it begins and ends in a pair (2 numbers) and in the words of a counter (8)."""
    whole = drawn(5, "w", 0, 600)
    for begin in (*range(20), 333, 598):
        for count in range(min(20, 601 - begin)):
            assert drawn(5, "w", begin, count).tobytes() == whole[begin : begin + count].tobytes()
    for step in (1, 7, 64):
        cut = [drawn(5, "w", at, min(step, 600 - at)) for at in range(0, 600, step)]
        assert np.concatenate(cut).tobytes() == whole.tobytes()


def test_values_are_normal():
    """Shares below some deviations, and neighbours that know nothing of each other; 5 standard errors."""
    values = drawn(7, "w", 0, 400_000).astype(np.float64)
    assert np.isfinite(values).all()
    for bound in (-3, -2, -1, -0.5, 0, 0.25, 1, 2.5, 4):
        share = math.erfc(-bound / math.sqrt(2)) / 2
        assert abs((values < bound).mean() - share) < 5 * math.sqrt(share * (1 - share) / values.size)
    for apart in (1, 2, 8):
        for powers in (values, values**2 - 1):
            assert abs(np.corrcoef(powers[:-apart], powers[apart:])[0, 1]) < 5 / math.sqrt(values.size)


def test_workspace_is_counted():
    ledger = Ledger()
    drawn(1, "w", 0, 4000, mem=ledger)
    assert ledger.peak[WORKSPACE] == ledger.peak_bytes == 20 * 4000 and ledger.live_bytes == 0


def test_equal_shapes_start_different():
    for model, names in ((mlp(), ["layers.1.weight", "layers.2.weight", "layers.3.weight"]),
                         (gpt(), [f"h.{i}.mlp.c_fc.weight" for i in range(4)])):  # fmt: skip
        values = [model.initial(name, 0) for name in names]
        for i, first in enumerate(values):
            assert all(abs(np.corrcoef(first.ravel(), other.ravel())[0, 1]) < 0.05 for other in values[i + 1 :])


def test_a_value_depends_on_seed_and_name_only():
    assert np.array_equal(mlp().initial("layers.2.weight", 5), mlp().initial("layers.2.weight", 5))
    assert not np.array_equal(mlp().initial("layers.2.weight", 5), mlp().initial("layers.2.weight", 6))
    # the same name in models of other depth or width: the same stream
    assert np.array_equal(mlp(layers=4).initial("layers.1.weight", 5), mlp(layers=9).initial("layers.1.weight", 5))
    narrow, wide = (gpt(GPTConfig(vocab=vocab)).initial("wte.weight", 5) for vocab in (100, 200))
    assert np.array_equal(narrow, wide[:100])


def test_seed_and_name_do_not_run_together():
    assert not np.array_equal(drawn(1, "1/a", 0, 8), drawn(11, "/a", 0, 8))


def test_a_model_describes():
    """What a parameter starts from is told without a value."""
    model = gpt(GPTConfig(layers=2))
    assert model.draw(ParamSpec("h.1.attn.c_proj.weight", (2**40, 2**40))) == Normal(0.01)
    assert model.draw(ParamSpec("h.1.attn.c_proj.bias", (2**40,))) == Constant(0)


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
