"""What operators allocate: the ledger against layout.models and against tracemalloc, which knows nothing of it."""

from __future__ import annotations

import gc
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest

from mpizero.dtypes import ITEMSIZE, numpy_dtype
from mpizero.memory.kinds import ACTIVATION, WORKSPACE
from mpizero.memory.ledger import Ledger
from mpizero.nn import functional as fn
from mpizero.nn.functional import cross_entropy, cross_entropy_backward
from mpizero.nn.gpt import BlockSegment, GPTConfig, gpt
from mpizero.nn.mlp import mlp
from mpizero.nn.ops.gradients import Gradients
from tests.nn.helpers import forward, parameters

# What operators may take without the ledger's knowledge: rows and columns of an operator (bias sums, means, indices, a
# mask of 64 x 64), the casting buffers inside NumPy (8192 elements each), and Python's own objects. A temporary of the
# smallest operand here, a block of (512,128) float32, has 256 KiB: forgotten once, it shows.
UNCOUNTED_BYTES = 160 * 1024


@pytest.fixture(params=ITEMSIZE)
def dtype(request):
    pytest.importorskip("ml_dtypes") if request.param == "bfloat16" else None
    return numpy_dtype(request.param)


RNG = np.random.default_rng(0)
CASES = [
    (gpt(GPTConfig(layers=2, d_model=128, heads=4, context=128, vocab=256)), *RNG.integers(0, 256, (2, 8, 128))),
    (mlp(hidden=256, layers=3, inputs=128, classes=128), RNG.standard_normal((1024, 128), np.float32),
     RNG.integers(0, 128, 1024)),
]
SMALL = GPTConfig(layers=2, d_model=6, heads=3, context=5, vocab=7)
SHORT, UNTIED = RNG.integers(0, 7, (2, 3, 4)), RNG.integers(0, 7, (2, 1, 5))
EVERY_CASE = [
    *CASES, (gpt(SMALL), *SHORT), (gpt(replace(SMALL, tied=False, layers=1)), *UNTIED),
    (mlp(5, 1, 4, 3), RNG.standard_normal((6, 4), np.float32), RNG.integers(0, 3, 6)),
    (mlp(5, 3, 4, 3), RNG.standard_normal((1, 4), np.float32), RNG.integers(0, 3, 1)),
]
every_case = pytest.mark.parametrize("case", EVERY_CASE,
                                     ids=["gpt", "mlp", "short rows", "untied", "one linear", "tiny"])


def step(model, params, x, targets, views, mem, after_forward=lambda segment: None,
         around_backward=lambda segment, done: None):
    """One pass as the engine runs it, with hooks. The cross-entropy counts as the segment None."""
    y, contexts = x, []
    for segment in model.segments:
        y, context = segment.forward(params, y, mem)
        contexts.append(context)
        del context
        after_forward(segment)
    _, count, context = cross_entropy(y, targets, mem)
    after_forward(None)
    del y
    dy = cross_entropy_backward(context, 1 / count, mem)
    del context
    grads = Gradients(views, set())
    for segment in reversed(model.segments):
        around_backward(segment, False)
        dy = segment.backward(params, contexts.pop(), dy, grads, mem)
        around_backward(segment, True)


@every_case
def test_each_segment_leaves_what_its_spec_says(case, dtype):
    """Segment by segment: the bytes of y, whether x and y are kept for backward, and what is kept beside them."""
    model, y, targets = case
    facts, params = model.spec.activations(targets.shape, dtype.name), parameters(model, dtype)
    assert (y.nbytes, targets.nbytes) == (facts.inputs, facts.targets)
    for segment, said in zip(model.segments, facts.segments, strict=True):
        mem, x = Ledger(), y
        y, context = segment.forward(params, x, mem)
        assert mem.live_bytes == mem.live[ACTIVATION]
        assert (y.nbytes, mem.live_bytes) == (said.output, said.output + said.kept)
        assert any(np.may_share_memory(array, x) for array in context) == said.keeps_input
        assert any(np.may_share_memory(array, y) for array in context) == said.keeps_output
    mem = Ledger()
    context = cross_entropy(y, targets, mem)[2]
    assert mem.live_bytes == facts.loss_kept
    assert all(any(array is kept for kept in context) for array in (y, targets))


@every_case
def test_what_lives_between_forward_and_backward(case, dtype):
    """All of it, inputs and targets included, once nobody but the contexts refers to it; and nothing after backward."""
    model, x, targets = case
    mem, facts = Ledger(), model.spec.activations(targets.shape, dtype.name)
    params = parameters(model, dtype)
    x, targets = (mem.adopt(array.copy(), ACTIVATION) for array in (x, targets))
    y, contexts = forward(model, params, x, mem)
    context = cross_entropy(y, targets, mem)[2]
    del x, y, targets
    assert mem.live_bytes == mem.live[ACTIVATION] == facts.after_forward
    dy = cross_entropy_backward(context, 1.0, mem)
    del context
    grads = Gradients({name: np.empty_like(value) for name, value in params.items()}, set())
    for segment in reversed(model.segments):
        dy = segment.backward(params, contexts.pop(), dy, grads, mem)
    assert mem.live_bytes == 0


@pytest.mark.parametrize("case", CASES, ids=["gpt", "mlp"])
def test_ledger_against_tracemalloc(case, dtype):
    """After each segment, forward and backward: what lives, and the peak since the segment before."""
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
    assert checks == 3 * len(model.segments) + 1


def test_backward_of_a_block_frees_what_is_used_up(dtype):
    """At its peak a block's backward holds, beyond its context and dy, the gradient of the MLP's 4 C features alone."""
    model, x, targets = CASES[0]
    params, mem = parameters(model, dtype), Ledger()
    hidden = x.size * 4 * 128 * dtype.itemsize
    before, blocks = 0, 0

    def around_backward(segment, done):
        nonlocal before, blocks
        if done and isinstance(segment, BlockSegment):
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
