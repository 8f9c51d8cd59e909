"""Adam against the textbook in float64, and against itself under every split."""

from __future__ import annotations

import gc
import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpizero.dtypes import numpy_dtype
from mpizero.errors import ConfigError
from mpizero.layout.flat import UPDATE_BLOCK
from mpizero.memory.kinds import GRAD_FP32, WORKSPACE
from mpizero.memory.ledger import Ledger, Uncounted
from mpizero.optim import Adam, adam_update

MEM = Uncounted()
HYPERS = [Adam(), Adam((0.8, 0.95), eps=1e-6), Adam(betas=(0.0, 0.0)), Adam(weight_decay=0.1),
          Adam(weight_decay=0.1, decoupled=False)]


def textbook(hyper, w, m, v, g, lr, t):
    """Kingma & Ba algorithm 1, Loshchilov & Hutter algorithm 2, one element at a time in Python floats."""
    b1, b2 = hyper.betas
    for i in range(len(w)):
        gi = g[i] if hyper.decoupled else g[i] + hyper.weight_decay * w[i]
        if hyper.decoupled:
            w[i] -= lr * hyper.weight_decay * w[i]
        m[i] = b1 * m[i] + (1 - b1) * gi
        v[i] = b2 * v[i] + (1 - b2) * gi * gi
        m_hat, v_hat = m[i] / (1 - b1**t), v[i] / (1 - b2**t)
        w[i] -= lr * m_hat / (math.sqrt(v_hat) + hyper.eps)


def state(n, seed=0):
    rng = np.random.default_rng(seed)
    w = rng.standard_normal(n).astype(np.float32)
    return w, np.zeros(n, np.float32), np.zeros(n, np.float32)


def grads(n, steps, dtype="float32", seed=1):
    rng = np.random.default_rng(seed)
    size = 10.0 ** rng.uniform(-4, 1, n)
    return [(rng.standard_normal(n) * size).astype(numpy_dtype(dtype)) for _ in range(steps)]


@pytest.mark.parametrize("hyper", HYPERS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_equals_the_textbook(hyper, dtype):
    if dtype == "bfloat16":
        pytest.importorskip("ml_dtypes")
    n, steps, factor = 211, 30, 0.25
    w, m, v = state(n)
    tw, tm, tv = ([float(x) for x in array] for array in (w, m, v))
    for t, g in enumerate(grads(n, steps, dtype), start=1):
        lr = 1e-2 / t
        adam_update(hyper, w, m, v, g, lr=lr, step=t, factor=factor, mem=MEM, block=64)
        textbook(hyper, tw, tm, tv, [float(x) * factor for x in g], lr, t)
    # float32 rounding, 6e-8 relative, a few times a step: against the largest values that entered, since moments cancel
    np.testing.assert_allclose(w, tw, rtol=0, atol=steps * 4e-7)
    np.testing.assert_allclose(v, tv, rtol=3e-6)
    np.testing.assert_allclose(m, tm, rtol=0, atol=2e-6 * np.sqrt(np.array(tv) + 1e-30).max())


@pytest.mark.parametrize("step", [1, 2, 1000, 10_001, 10**7])
def test_bias_correction_is_float64(step):
    """At step 1 the moments are corrected by 1/(1 - 0.999): taken in float32 that alone would be wrong by 2e-5."""
    w, m, v = state(50)
    m[:], v[:] = 0.03, 0.002
    tw, tm, tv = ([float(x) for x in array] for array in (w, m, v))
    (g,) = grads(50, 1)
    before = w.copy()
    adam_update(Adam(), w, m, v, g, lr=1.0, step=step, factor=1.0, mem=MEM)
    textbook(Adam(), tw, tm, tv, [float(x) for x in g], 1.0, step)
    change = np.array(tw) - before
    # 3 ulp of the largest update
    np.testing.assert_allclose(w.astype(float) - before, change, rtol=0, atol=4e-7 * np.abs(change).max())


def test_first_step_by_hand():
    """m_hat = g and v_hat = g^2, so the first update is -lr * sign(g)."""
    w, m, v = np.array([1, 1, 1], np.float32), *np.zeros((2, 3), np.float32)
    adam_update(Adam(), w, m, v, np.array([0.5, -3, 0], np.float32), lr=0.1, step=1, factor=1.0, mem=MEM)
    np.testing.assert_allclose(w, [0.9, 1.1, 1.0], rtol=1e-6)
    np.testing.assert_allclose(m, [0.05, -0.3, 0], rtol=1e-6)
    np.testing.assert_allclose(v, [0.00025, 0.009, 0], rtol=1e-5)


@pytest.mark.parametrize("hyper", HYPERS)
def test_the_optimizer_is_its_function_on_the_states_it_declares(hyper):
    """`Optimizer.update`, which training calls: every argument arrives, each state in its place, under its own name."""
    assert hyper.spec.name == ("adamw" if hyper.decoupled else "adam")
    (w, m, v), (right_w, right_m, right_v), outs = state(90), state(90), np.zeros((2, 90), np.float16)
    states = dict(zip((declared.name for declared in hyper.spec.states), (m, v), strict=True))
    for t, g in enumerate(grads(90, 3, "float16"), start=1):
        args = {"lr": 1e-2 / t, "step": t, "factor": 0.25, "mem": MEM}
        hyper.update(w, states, g, out=outs[0], **args)
        adam_update(hyper, right_w, right_m, right_v, g, out=outs[1], **args)
    for ours, right in ((w, right_w), (m, right_m), (v, right_v), outs):
        assert right.any() and ours.tobytes() == right.tobytes()


@given(st.data())
def test_no_bit_depends_on_the_split(data):
    n = data.draw(st.integers(0, 300))
    hyper = data.draw(st.sampled_from(HYPERS))
    dtype = data.draw(st.sampled_from(["float16", "float32"]))
    cuts = sorted(data.draw(st.lists(st.integers(0, n), max_size=5)))
    block = data.draw(st.integers(1, 320))
    whole, split = state(n), state(n)
    out_whole, out_split = np.zeros((2, n), np.float16)
    for t, g in enumerate(grads(n, 3, dtype), start=1):
        args = {"lr": 1e-3, "step": t, "factor": 0.3, "mem": MEM}
        adam_update(hyper, *whole, g, out=out_whole, **args)
        for a, b in zip([0, *cuts], [*cuts, n], strict=True):
            adam_update(hyper, *(x[a:b] for x in split), g[a:b], out=out_split[a:b], block=block, **args)
    assert all(a.tobytes() == b.tobytes() for a, b in zip((*whole, out_whole), (*split, out_split), strict=True))
    assert out_whole.tobytes() == whole[0].astype(np.float16).tobytes()


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("n", [0, 1, 100, UPDATE_BLOCK, 3 * UPDATE_BLOCK + 5])
def test_memory_is_two_blocks_whatever_the_size(n, dtype):
    ledger = Ledger()
    arrays, (g,), out = state(n), grads(n, 1, dtype), np.empty(n, np.float16)
    kept = g.copy()
    gc.collect()
    tracemalloc.start()
    adam_update(Adam(weight_decay=0.1), *arrays, g, lr=1e-3, step=1, factor=0.5, mem=ledger, out=out)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    block_bytes = min(n, UPDATE_BLOCK) * 4
    assert ledger.peak[GRAD_FP32] == block_bytes == ledger.peak[WORKSPACE]
    assert ledger.peak_bytes == 2 * block_bytes and ledger.live_bytes == 0
    assert peak < 2 * block_bytes + 2**16  # and NumPy itself took no more than its buffer for converting float16
    assert g.tobytes() == kept.tobytes()


@pytest.mark.parametrize("wrong", [{"betas": (1.0, 0.999)}, {"betas": (0.9, -0.1)}, {"eps": 0.0}, {"eps": math.nan},
                                   {"weight_decay": -1.0}, {"weight_decay": math.inf}])
def test_impossible_hyperparameters(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        Adam(**wrong)
