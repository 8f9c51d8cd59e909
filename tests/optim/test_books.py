"""Every optimizer against its paper or PyTorch's pseudocode in float64, and Adam's finer points."""

from __future__ import annotations

import math

import numpy as np
import pytest

from mpizero.errors import ConfigError
from mpizero.layout import OPTIMIZERS
from mpizero.optim import SGD, Adam, Lion
from tests.optim.slices import EVERY, MEM, adam, by_the_book, grads, states, weights


@pytest.mark.parametrize("optimizer", EVERY)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_equals_the_book(optimizer, dtype):
    if dtype == "bfloat16":
        pytest.importorskip("ml_dtypes")
    n, steps, factor = 211, 30, 0.25
    w, kept = weights(n), states(optimizer, n)
    tw, book = [float(x) for x in w], {name: [0.0] * n for name in kept}
    largest = 0.0  # of the gradients so far
    for t, g in enumerate(grads(n, steps, dtype), start=1):
        lr = 1e-2 / t
        optimizer.update(w, kept, g, lr=lr, step=t, factor=factor, mem=MEM, block=64)
        by_the_book(optimizer, tw, book, [float(x) * factor for x in g], lr, t)
        largest = max(largest, float(np.abs(g.astype(float)).max()))
    # float32 rounding, 6e-8 relative, a few times a step: against the largest values that entered, since sums cancel
    np.testing.assert_allclose(w, tw, rtol=0, atol=steps * 4e-7)
    for name in kept:
        bound = {"rtol": 3e-6} if name == "exp_avg_sq" else {"rtol": 0, "atol": 2e-6 * max(largest, 1.0)}
        np.testing.assert_allclose(kept[name], book[name], **bound)


@pytest.mark.parametrize("step", [1, 2, 1000, 10_001, 10**7])
def test_bias_correction_is_float64(step):
    """At step 1 the moments are corrected by 1/(1 - 0.999): taken in float32 that alone would be wrong by 2e-5."""
    w, kept = weights(50), states(Adam(), 50)
    kept["exp_avg"][:], kept["exp_avg_sq"][:] = 0.03, 0.002
    tw, book = [float(x) for x in w], {name: [float(x) for x in array] for name, array in kept.items()}
    (g,) = grads(50, 1)
    before = w.copy()
    Adam().update(w, kept, g, lr=1.0, step=step, factor=1.0, mem=MEM)
    adam(Adam(), tw, book, [float(x) for x in g], 1.0, step)
    change = np.array(tw) - before
    # 3 ulp of the largest update
    np.testing.assert_allclose(w.astype(float) - before, change, rtol=0, atol=4e-7 * np.abs(change).max())


def one_step(optimizer, w, g, lr=0.1):
    """The weights after a first step, and the states."""
    w, kept = np.array(w, np.float32), states(optimizer, len(w))
    optimizer.update(w, kept, np.array(g, np.float32), lr=lr, step=1, factor=1.0, mem=MEM)
    return w, kept


def test_first_step_of_adam_by_hand():
    """m_hat = g and v_hat = g^2, so the first update is -lr * sign(g)."""
    w, kept = one_step(Adam(), [1, 1, 1], [0.5, -3, 0])
    np.testing.assert_allclose(w, [0.9, 1.1, 1.0], rtol=1e-6)
    np.testing.assert_allclose(kept["exp_avg"], [0.05, -0.3, 0], rtol=1e-6)
    np.testing.assert_allclose(kept["exp_avg_sq"], [0.00025, 0.009, 0], rtol=1e-5)


def test_first_step_of_lion_by_hand():
    """As long whatever the gradient is; none where it is 0; decay beside it."""
    w, kept = one_step(Lion(weight_decay=0.5), [1, 1, 1, -2], [0.5, -3e-7, 0, 0])
    np.testing.assert_allclose(w, [0.85, 1.05, 0.95, -1.9], rtol=1e-6)
    np.testing.assert_allclose(kept["exp_avg"], [0.005, -3e-9, 0, 0], rtol=1e-5)


def test_steps_of_sgd_by_hand():
    w, kept = one_step(SGD(0.9, weight_decay=0.5), [1, 1, 1], [0.5, -3, 0])
    np.testing.assert_allclose(kept["momentum_buffer"], [1.0, -2.5, 0.5], rtol=1e-6)
    np.testing.assert_allclose(w, [0.9, 1.25, 0.95], rtol=1e-6)
    SGD(0.9).update(w, kept, np.zeros(3, np.float32), lr=0.1, step=2, factor=1.0, mem=MEM)
    np.testing.assert_allclose(w, [0.81, 1.475, 0.905], rtol=1e-6)
    assert one_step(SGD(0.0), [1], [0.5]) == (np.float32(0.95), {})


@pytest.mark.parametrize("optimizer", EVERY)
def test_what_is_declared(optimizer):
    """Its name, and the states of that name; of SGD without momentum none."""
    declared = OPTIMIZERS[optimizer.spec.name]
    assert optimizer.spec.name == {Adam: "adamw" if optimizer.decoupled else "adam", SGD: "sgd",
                                   Lion: "lion"}[type(optimizer)]
    assert optimizer.spec.states == (() if getattr(optimizer, "momentum", 1) == 0 else declared.states)


@pytest.mark.parametrize("kind", [Adam, SGD, Lion])
@pytest.mark.parametrize("wrong", [{"betas": (1.0, 0.999)}, {"betas": (0.9, -0.1)}, {"betas": (0.9, math.nan)},
                                   {"momentum": 1.0}, {"momentum": -0.1}, {"eps": 0.0}, {"eps": math.nan},
                                   {"weight_decay": -1.0}, {"weight_decay": math.inf}])
def test_impossible_hyperparameters(kind, wrong):
    (name,) = wrong
    if not hasattr(kind(), name):
        pytest.skip(f"{kind.__name__} has no {name}")
    with pytest.raises(ConfigError, match=name):
        kind(**wrong)
