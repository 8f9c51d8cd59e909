"""What operators allocate: the ledger against formulas and against tracemalloc, which knows nothing of it."""

from __future__ import annotations

import gc
import tracemalloc

import numpy as np
import pytest

from mpizero.memory import ACTIVATION, WORKSPACE, Ledger
from mpizero.nn import functional as fn
from mpizero.nn.functional import cross_entropy, cross_entropy_backward
from mpizero.nn.gpt import GPTConfig, gpt
from mpizero.nn.gradients import Gradients
from mpizero.nn.loss import cross_entropy_saved_bytes
from mpizero.nn.mlp import mlp
from tests.nn.helpers import parameters

DTYPES = [np.float16, np.float32, np.float64]

# What operators may take without the ledger's knowledge: rows and columns of an operator (bias sums, means, indices, a mask of 64 x 64),
# the casting buffers inside NumPy (8192 elements each), and Python's own objects. A temporary of the smallest operand here, a block of
# (512,128) float32, has 256 KiB: forgotten once, it shows.
UNCOUNTED_BYTES = 160 * 1024


RNG = np.random.default_rng(0)
CASES = [
    (gpt(GPTConfig(layers=2, d_model=128, heads=4, context=128, vocab=256)), *RNG.integers(0, 256, (2, 8, 128))),
    (mlp(hidden=256, layers=3, inputs=128, classes=128), RNG.standard_normal((1024, 128), np.float32), RNG.integers(0, 128, 1024)),
]


def step(model, params, x, targets, views, mem, after_forward=lambda stage: None, around_backward=lambda stage, done: None):
    """One pass as the engine runs it, with hooks. The cross-entropy counts as the stage None."""
    y, contexts = x, []
    for stage in model.stages:
        y, context = stage.forward(params, y, mem)
        contexts.append(context)
        del context
        after_forward(stage)
    _, count, context = cross_entropy(y, targets, mem)
    after_forward(None)
    del y
    dy = cross_entropy_backward(context, 1 / count, mem)
    del context
    grads = Gradients(views, set())
    for stage in reversed(model.stages):
        around_backward(stage, False)
        dy = stage.backward(params, contexts.pop(), dy, grads, mem)
        around_backward(stage, True)


def shape_of(model, x):
    """(B,T) of tokens, (n,) of the MLP's samples."""
    return x.shape if model.name == "gpt" else x.shape[:1]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", CASES, ids=["gpt", "mlp"])
def test_bytes_after_forward_are_a_function_of_shapes(case, dtype):
    model, x, targets = case
    mem, itemsize = Ledger(), np.dtype(dtype).itemsize
    params, expected = parameters(model, dtype), 0

    def after_forward(stage):
        nonlocal expected
        if stage is None:
            expected += cross_entropy_saved_bytes(targets.size, itemsize)
        else:
            expected += stage.saved_bytes(shape_of(model, x), itemsize)
        assert mem.live_bytes == mem.live[ACTIVATION] == expected

    step(model, params, x, targets, {name: np.empty_like(value) for name, value in params.items()}, mem, after_forward)
    assert mem.live_bytes == 0


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", CASES, ids=["gpt", "mlp"])
def test_ledger_against_tracemalloc(case, dtype):
    """After each stage, forward and backward: what lives, and the peak since the stage before."""
    model, x, targets = case
    params = parameters(model, dtype)
    views = {name: np.empty_like(value) for name, value in params.items()}
    mem = Ledger()
    step(model, params, x, targets, views, mem)  # warms NumPy's caches
    checks = 0

    def check(*_):
        nonlocal checks
        live, peak = (traced - start for traced in tracemalloc.get_traced_memory())
        assert 0 <= live - mem.live_bytes < 32 * 1024  # Python's objects
        assert 0 <= peak - mem.peak_bytes < UNCOUNTED_BYTES
        mem.reset_peaks()
        tracemalloc.reset_peak()
        checks += 1

    gc.collect()
    tracemalloc.start()
    try:
        mem.reset_peaks()
        start = tracemalloc.get_traced_memory()[0]
        step(model, params, x, targets, views, mem, check, check)
    finally:
        tracemalloc.stop()
    assert checks == 3 * len(model.stages) + 1


@pytest.mark.parametrize("dtype", DTYPES)
def test_backward_of_a_block_frees_what_is_used_up(dtype):
    """At its peak a block's backward holds, beyond its context and dy, the gradient of the MLP's 4 C features, and no more."""
    model, x, targets = CASES[0]
    params, mem = parameters(model, dtype), Ledger()
    hidden = x.size * 4 * 128 * np.dtype(dtype).itemsize
    before, blocks = 0, 0

    def around_backward(stage, done):
        nonlocal before, blocks
        if done and stage.name.startswith("h."):
            assert mem.peak[ACTIVATION] == before + hidden
            blocks += 1
        before = mem.live[ACTIVATION]
        mem.reset_peaks()

    views = {name: np.empty_like(value) for name, value in params.items()}
    step(model, params, x, targets, views, mem, around_backward=around_backward)
    assert blocks == 2


@pytest.mark.parametrize("tokens,limit", [(128, 2**20), (1024, 3 * 2**20)])
def test_attention_scratch_stays_small(tokens, limit):
    """Scores of a few heads and queries at a time; those of one sample would take 4 * 1024 * 1024 * 4 = 2^24 bytes."""
    mem, qkv = Ledger(), np.zeros((4, tokens, 3 * 128), np.float32)
    y, lse = fn.attention(qkv, 4, mem)
    fn.attention_backward(qkv, y, lse, y, 4, mem)
    assert mem.peak[WORKSPACE] <= limit
