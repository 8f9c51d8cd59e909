"""What all optimizers share: any split of a slice gives the same bits, decay keeps its ranges, memory is two blocks."""

from __future__ import annotations

import gc
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpizero.dtypes import numpy_dtype
from mpizero.layout.flat import UPDATE_BLOCK
from mpizero.memory.kinds import GRAD_FP32, WORKSPACE
from mpizero.memory.ledger import Ledger
from mpizero.optim import SGD, Adam, Lion, Workers
from mpizero.optim.optimizer import within
from tests.optim.slices import EVERY, MEM, grads, states, weights

WORKERS = [Workers(number) for number in (1, 2, 3, 5)]
DECAYING = [Adam(weight_decay=0.1), Adam(weight_decay=0.1, decoupled=False), SGD(weight_decay=0.1),
            Lion(weight_decay=0.1)]


def cut(ranges, begin, end):
    """The ranges as a shard of the elements `begin` to `end` counts them."""
    return [(max(a, begin) - begin, min(b, end) - begin) for a, b in ranges if max(a, begin) < min(b, end)]


@given(st.data())
def test_no_bit_depends_on_the_split(data):
    """Into shards, blocks and threads, wherever ranges that decay begin and end; with and without master weights."""
    n = data.draw(st.integers(0, 300))
    optimizer, dtype = data.draw(st.sampled_from(EVERY)), data.draw(st.sampled_from(["float16", "float32"]))
    cuts = sorted(data.draw(st.lists(st.integers(0, n), max_size=5)))
    ends = sorted(data.draw(st.sets(st.integers(0, n), max_size=6)))
    decayed = data.draw(st.sampled_from([None, list(zip(ends[::2], ends[1::2], strict=False))]))
    block, master = data.draw(st.integers(1, 320)), data.draw(st.sampled_from(["float16", "float32"]))
    whole, split = (weights(n, dtype=master), states(optimizer, n)), (weights(n, dtype=master), states(optimizer, n))
    out_whole, out_split = np.zeros((2, n), np.float16)
    for t, g in enumerate(grads(n, 3, dtype), start=1):
        args = {"lr": 1e-3, "step": t, "factor": 0.3, "mem": MEM}
        optimizer.update(*whole, g, out=out_whole, decayed=decayed, **args)
        for a, b in zip([0, *cuts], [*cuts, n], strict=True):
            part = {name: state[a:b] for name, state in split[1].items()}
            optimizer.update(split[0][a:b], part, g[a:b], out=out_split[a:b], block=block,
                             workers=data.draw(st.sampled_from(WORKERS)),
                             decayed=None if decayed is None else cut(decayed, a, b), **args)
    pairs = [(whole[0], split[0]), (out_whole, out_split), *((whole[1][name], split[1][name]) for name in whole[1])]
    assert all(a.tobytes() == b.tobytes() for a, b in pairs)
    assert out_whole.tobytes() == whole[0].astype(np.float16).tobytes()


@pytest.mark.parametrize("optimizer", DECAYING)
def test_each_element_decays_as_its_range_says(optimizer):
    """Beside runs of all and of none: boundaries at, inside and around blocks of 8."""
    n, decayed = 50, [(0, 3), (6, 8), (13, 14), (16, 40), (49, 50)]
    inside = np.zeros(n, bool)
    for begin, end in decayed:
        inside[begin:end] = True
    results = {}
    for name, ranges in (("all", None), ("none", []), ("some", decayed)):
        w, kept = weights(n), states(optimizer, n)
        for t, g in enumerate(grads(n, 3), start=1):
            optimizer.update(w, kept, g, lr=1e-2, step=t, factor=1.0, mem=MEM, decayed=ranges, block=8)
        results[name] = w
    assert (results["all"] != results["none"]).all()
    np.testing.assert_array_equal(results["some"], np.where(inside, results["all"], results["none"]))


@given(st.sets(st.integers(0, 40), max_size=8), st.integers(0, 40), st.integers(0, 40))
def test_ranges_within_a_part(ends, start, stop):
    ranges = list(zip(sorted(ends)[::2], sorted(ends)[1::2], strict=False))
    inside = [i - start for i in range(start, stop) if any(a <= i < b for a, b in ranges)]
    assert [i for piece in within(ranges, slice(start, stop)) for i in range(piece.start, piece.stop)] == inside


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("optimizer", EVERY)
def test_without_master_weights(optimizer, dtype):
    """The 16-bit weights are taken as float32, updated as always, and rounded once."""
    if dtype == "bfloat16":
        pytest.importorskip("ml_dtypes")
    n, kind = 90, numpy_dtype(dtype)
    w, kept, book = weights(n, dtype=dtype), states(optimizer, n), states(optimizer, n)
    for t, g in enumerate(grads(n, 4, dtype), start=1):
        args = {"lr": 1e-2 / t, "step": t, "factor": 0.25, "mem": MEM}
        wide = w.astype(np.float32)
        optimizer.update(wide, book, g, **args)
        optimizer.update(w, kept, g, block=32, **args)
        assert w.dtype == kind and w.tobytes() == wide.astype(kind).tobytes()
    assert all(kept[name].tobytes() == book[name].tobytes() for name in book)


def test_float16_swallows_small_updates():
    """0.5 + 1e-4 == 0.5: without master weights a thousand such updates do nothing."""
    alone, master, out = np.full(3, 0.5, np.float16), np.full(3, 0.5, np.float32), np.empty(3, np.float16)
    for _ in range(1000):
        args = {"lr": 1e-4, "step": 1, "factor": 1.0, "mem": MEM}
        SGD(0.0).update(alone, {}, np.full(3, -1, np.float16), **args)
        SGD(0.0).update(master, {}, np.full(3, -1, np.float16), out=out, **args)
    assert (alone == 0.5).all() and np.abs(out - 0.6).max() < 2.0**-11


@pytest.mark.parametrize("workers", WORKERS[:3], ids=lambda workers: str(workers.number))
@pytest.mark.parametrize("master", ["float32", "float16"])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("n", [0, 1, 100, UPDATE_BLOCK, 3 * UPDATE_BLOCK + 5])
@pytest.mark.parametrize("optimizer", DECAYING)
def test_memory_is_two_blocks_whatever_the_size(optimizer, n, dtype, master, workers):
    """Three where there are no master weights; of all threads together."""
    ledger = Ledger()
    w, kept, (g,), out = weights(n, dtype=master), states(optimizer, n), grads(n, 1, dtype), np.empty(n, np.float16)
    before = g.copy()
    gc.collect()
    tracemalloc.start()
    optimizer.update(w, kept, g, lr=1e-3, step=1, factor=0.5, mem=ledger, out=out, workers=workers)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    block_bytes, blocks = min(n, UPDATE_BLOCK) * 4, 2 if master == "float32" else 3
    assert ledger.peak[GRAD_FP32] == block_bytes and ledger.peak[WORKSPACE] == (blocks - 1) * block_bytes
    assert ledger.peak_bytes == blocks * block_bytes and ledger.live_bytes == 0
    # and NumPy itself took no more than its buffer for converting float16, in each thread
    assert peak < blocks * block_bytes + 2**16 * workers.number
    assert g.tobytes() == before.tobytes()
