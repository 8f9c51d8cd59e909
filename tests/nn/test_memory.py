"""What operators allocate: the ledger against formulas and against tracemalloc, which knows nothing of it."""

from __future__ import annotations

import gc
import tracemalloc

import numpy as np
import pytest

from mpizero.memory import ACTIVATION, Ledger
from mpizero.nn.functional import cross_entropy, cross_entropy_backward
from mpizero.nn.gpt import GPTConfig, gpt
from mpizero.nn.gradients import Gradients
from mpizero.nn.loss import cross_entropy_saved_bytes
from mpizero.nn.mlp import mlp
from tests.nn.helpers import parameters

NUMPY_DOMAIN = np.lib.tracemalloc_domain
DTYPES = [np.float16, np.float32, np.float64]

# What operators may take without the ledger's knowledge: rows and columns of an operator (bias sums, means, indices), the casting
# buffers inside NumPy (8192 elements each) and, for attention, a mask and scaled queries of a block. A float32 array of the smallest
# activation here, (n,C), has 512 KiB; so one forgotten temporary of that size fails.
UNCOUNTED_BYTES = 320 * 1024


def cases():
    config = GPTConfig(layers=2, d_model=128, heads=4, context=128, vocab=256)
    rng = np.random.default_rng(0)
    yield gpt(config), rng.integers(0, 256, (8, 128)), rng.integers(0, 256, (8, 128))
    yield mlp(hidden=256, layers=3, inputs=128, classes=128), rng.standard_normal((1024, 128), np.float32), rng.integers(0, 128, 1024)


def step(model, params, x, targets, views, mem, seen):
    """One pass as the engine runs it; `seen(stage)` is called after each forward and before each backward."""
    y, contexts = x, []
    for stage in model.stages:
        y, context = stage.forward(params, y, mem)
        contexts.append(context)
        del context
        seen(stage)
    _, count, context = cross_entropy(y, targets, mem)
    seen(None)
    del y
    dy = cross_entropy_backward(context, 1 / count, mem)
    del context
    grads = Gradients(views, set())
    for stage in reversed(model.stages):
        dy = stage.backward(params, contexts.pop(), dy, grads, mem)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", list(cases()), ids=["gpt", "mlp"])
def test_bytes_after_forward_are_a_function_of_shapes(case, dtype):
    model, x, targets = case
    mem, itemsize = Ledger(), np.dtype(dtype).itemsize
    shape = x.shape if model.name == "gpt" else x.shape[:1]
    params = parameters(model, dtype)
    expected = 0

    def seen(stage):
        nonlocal expected
        rows = targets.size
        expected += cross_entropy_saved_bytes(rows, itemsize) if stage is None else stage.saved_bytes(shape, itemsize)
        assert mem.live_bytes == mem.live[ACTIVATION] == expected

    step(model, params, x, targets, {name: np.empty_like(value) for name, value in params.items()}, mem, seen)
    assert mem.live_bytes == 0


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", list(cases()), ids=["gpt", "mlp"])
def test_ledger_against_tracemalloc(case, dtype):
    model, x, targets = case
    params = parameters(model, dtype)
    views = {name: np.empty_like(value) for name, value in params.items()}
    mem = Ledger()
    step(model, params, x, targets, views, mem, lambda stage: None)  # warms NumPy's caches
    mem.reset_peaks()
    gc.collect()
    tracemalloc.start()
    try:
        before = numpy_bytes()
        peak = 0

        def seen(stage):
            nonlocal peak
            assert abs(numpy_bytes() - before - mem.live_bytes) < 4096

        step(model, params, x, targets, views, mem, seen)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert mem.peak_bytes <= peak < mem.peak_bytes + UNCOUNTED_BYTES


def numpy_bytes():
    """Bytes of NumPy arrays alive now."""
    snapshot = tracemalloc.take_snapshot().filter_traces([tracemalloc.DomainFilter(True, NUMPY_DOMAIN)])
    return sum(trace.size for trace in snapshot.traces)


@pytest.mark.parametrize("dtype", DTYPES)
def test_backward_frees_what_is_used_up(dtype):
    """The last block's backward peaks below what the whole model's forward left plus one block's own."""
    model, x, targets = next(iter(cases()))
    params = parameters(model, dtype)
    mem, after_forward = Ledger(), 0

    def seen(stage):
        nonlocal after_forward
        after_forward = mem.live_bytes
        mem.reset_peaks()

    step(model, params, x, targets, {name: np.empty_like(value) for name, value in params.items()}, mem, seen)
    block = model.stages[1].saved_bytes(x.shape, np.dtype(dtype).itemsize)
    assert mem.peak[ACTIVATION] < after_forward + block
