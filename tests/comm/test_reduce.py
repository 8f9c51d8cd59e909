"""Reductions to one rank: the bits of a reduce-scatter; all ranks in one process, then real ones."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpizero.comm import all_reduce, begin_broadcast, chunk, mixed, reduce, reduce_scatter
from mpizero.comm.mpi import reference
from mpizero.layout import rings
from mpizero.memory.ledger import Ledger
from tests.comm.network import Network, run, run_ring
from tests.comm.test_collectives import total, whole_numbers
from tests.comm.test_mixed import BF16, F16, F32, RINGS, STRAIGHT, by_hand, gradients

KINDS = [(F32, F32, F32), (F16, F16, F16), (BF16, BF16, BF16), *RINGS, *STRAIGHT]
ranks, numels, seeds = st.integers(1, 7), st.integers(0, 60), st.integers(0, 2**32)


@pytest.fixture(autouse=True)
def constants(monkeypatch):
    """Tests set them as they like."""
    for module, name in ((rings, "SEGMENT_BYTES"), (rings, "DEPTH"), (rings, "SMALL")):
        monkeypatch.setattr(module, name, getattr(module, name))


def reduced(flats, wire, sums, root, accumulate=False, seed=0):
    """What the root holds, and what each rank waited for. Into threes."""
    size, numel = len(flats), flats[0].size
    outs = [np.full(numel if rank == root else 0, 3, sums) for rank in range(size)]
    waits = run_ring(mixed.reduce, [flat.copy() for flat in flats], outs, [root] * size, [accumulate] * size,
                     [wire] * size, seed=seed)
    return outs[root], waits


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: "-".join(dtype.name for dtype in kind))
@settings(max_examples=30)
@given(size=ranks, numel=numels, seed=seeds, segment=st.sampled_from([1, 8, 40, 2**20]), depth=st.integers(1, 4),
       accumulate=st.booleans(), data=st.data())
def test_sums_are_those_of_a_reduce_scatter(kind, size, numel, seed, segment, depth, accumulate, data):
    """((x[c+1] + x[c+2]) + ...) + x[c] for each chunk c, whoever the root is."""
    dtype, wire, sums = kind
    rings.SEGMENT_BYTES, rings.DEPTH, rings.SMALL = segment, depth, 4
    flats, root = gradients(size, numel, dtype, seed), data.draw(st.integers(0, size - 1))
    got, _ = reduced(flats, wire, sums, root, accumulate, seed)
    assert got.tobytes() == by_hand(flats, wire, sums, np.full(numel, 3, sums) if accumulate else None).tobytes()


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: "-".join(dtype.name for dtype in kind))
@pytest.mark.parametrize("size, root", [(1, 0), (2, 1), (4, 2)])
def test_traffic_is_the_formulas(kind, size, root):
    """(N-1)/N of what is sent, and 1/N of the sums by all but the root: into the root twice (N-1)/N."""
    dtype, wire, sums = kind
    _, waits = reduced(gradients(size, size * 12, dtype), wire, sums, root)
    for rank, yielded in enumerate(waits):
        assert len(set(map(id, yielded))) == len(yielded)  # each is yielded once
        home = 12 * sums.itemsize * (size - 1 if rank == root else -1)
        moved = (size - 1) * 12 * wire.itemsize
        assert sum(requests.bytes_sent for requests in yielded) == moved - min(home, 0)
        assert sum(requests.bytes_received for requests in yielded) == moved + max(home, 0)
        assert sum(requests.messages for requests in yielded) == size - 1 + (rank != root)


@pytest.mark.parametrize("kind, accumulate, root_takes, another_takes", [
    ((F32, F32, F32), False, 4 * 2 * 5000, 4 * 2 * 5000),  # the ring's; the sum lies in the result, or in `flat`
    ((F32, F32, F32), True, 4 * (2 * 5000 + 2 * 5000), 4 * 2 * 5000),  # two segments come in, to be added
    ((F16, F32, F32), False, 4 * (2 * 10_000 + 10_000), 4 * (3 * 10_000 + 10_000)),  # its chunk of the sum
])
def test_workspace_is_segments(kind, accumulate, root_takes, another_takes):
    dtype, wire, sums = kind
    rings.SEGMENT_BYTES, network, ledgers = 20_000, Network(3), [Ledger() for _ in range(3)]
    channels, flats = network.channels(), gradients(3, 30_000, dtype)
    outs = [np.zeros(30_000 if rank == 1 else 0, sums) for rank in range(3)]
    for channel, ledger in zip(channels, ledgers, strict=True):
        channel.mem = ledger
        channel.is_near = lambda rank: True
    made = [mixed.reduce(channel, flat, out, 1, accumulate, wire)
            for channel, flat, out in zip(channels, flats, outs, strict=True)]
    taken = [ledger.live["workspace"] for ledger in ledgers]  # all of it before the first message
    run(network, made, 0)
    assert [ledger.peak["workspace"] for ledger in ledgers] == taken
    assert taken[0] == taken[2] == another_takes and taken[1] == root_takes


def test_on_real_ranks(group):
    """Beside MPI's own, and beside our reduce-scatter, bit for bit."""
    for numel in (0, 1, 5, 24 * group.size, 50_001):
        for root in range(group.size):
            mine = numel if group.rank == root else 0
            out, theirs = np.full(mine, 3, np.float32), np.empty(mine, np.float32)
            reduce(group, whole_numbers(group.rank, numel), out, root)
            reference.mpi_reduce(group, whole_numbers(group.rank, numel), theirs, root)
            assert np.array_equal(out, theirs)
            reduce(group, whole_numbers(group.rank, numel), out, root, accumulate=True)
            assert np.array_equal(out, 2 * total(group, numel)[:mine])
    flat = np.random.default_rng(group.rank).standard_normal(8 * group.size).astype(np.float32)
    out, part = np.empty(flat.size if group.rank == 0 else 0, np.float32), np.empty(8, np.float32)
    reduce_scatter(group, flat.copy(), part)
    reduce(group, flat, out, 0)
    assert group.rank or np.array_equal(out[:8], part)
    assert group.log.records[-1].op == "reduce"


def test_a_broadcast_can_be_begun(group):
    flat, root = whole_numbers(group.rank, 100), group.size - 1
    begun = begin_broadcast(group, flat, root, unit="h.0")
    assert np.array_equal(flat, whole_numbers(group.rank, 100))  # nothing moves before somebody drives it
    begun.finish()
    assert np.array_equal(flat, whole_numbers(root, 100)) and group.log.records[-1].unit == "h.0"


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_parts_are_summed_as_if_each_was_alone(group, dtype):
    """Two parts of a chunk a rank: the order of additions is that of each. No parts: no message."""
    flat = np.random.default_rng(group.rank).standard_normal(2 * 3 * group.size).astype(dtype)
    alone = [part.copy() for part in np.split(flat, 2)]
    for part in alone:
        all_reduce(group, part)
    all_reduce(group, flat, parts=2)
    assert flat.tobytes() == b"".join(part.tobytes() for part in alone)
    out = np.ones(2 * 3 * group.size, np.float32)
    flat = np.concatenate(alone)
    all_reduce(group, flat.copy(), out, parts=2, wire=np.dtype(dtype), accumulate=True)
    assert np.array_equal(out, _added(group, flat))
    all_reduce(group, np.empty(0, dtype), parts=0)
    assert (group.log.records[-1].messages, group.log.records[-1].op) == (0, "all_reduce")


def _added(group, flat):
    out = np.ones(flat.size, np.float32)
    for part, target in zip(np.split(flat, 2), np.split(out, 2), strict=True):
        all_reduce(group, part.copy(), target, wire=flat.dtype, accumulate=True)
    return out


def test_impossible_roots_and_results(group):
    with pytest.raises(ValueError, match="not a rank"):
        reduce(group, np.zeros(2), np.zeros(2), group.size)
    with pytest.raises(ValueError, match="out has 3 elements of float64, on this rank the sum has [02] of float64"):
        reduce(group, np.zeros(2), np.zeros(3), 0)
    assert chunk(4, 0, 1) == slice(0, 4)
