"""The ring generators, all ranks in one process, messages in random order: right sums, exact traffic, no deadlock."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpizero.comm import ring
from mpizero.layout import rings
from tests.comm.network import Network, run, run_ring

ranks = st.integers(1, 7)
numels = st.integers(0, 60)
seeds = st.integers(0, 2**32)
segment_bytes = st.sampled_from([1, 8, 12, 40, 2**20])
depths = st.integers(1, 4)


def inputs(size, numel, dtype="int64", seed=0):
    return [np.random.default_rng([seed, rank]).integers(-100, 100, numel).astype(dtype) for rank in range(size)]


@pytest.fixture(autouse=True)
def constants(monkeypatch):
    """Tests set the ring's constants as they like.

    hypothesis repeats inside one call, so the fixture restores only at the end.
    """
    for name in ("SEGMENT_BYTES", "GATHER_SEGMENT_BYTES", "DEPTH", "NEAR_DEPTH"):
        monkeypatch.setattr(rings, name, getattr(rings, name))


def set_sizes(segment, depth):
    rings.SEGMENT_BYTES = rings.GATHER_SEGMENT_BYTES = segment
    rings.DEPTH, rings.NEAR_DEPTH = depth, depth // 2 + 1


def reduce_scatter(flats, seed=0, accumulate=False, own_chunk=False):
    """The outs and waits of a simulated reduce-scatter of copies of `flats`."""
    size, numel = len(flats), flats[0].size
    flats = [flat.copy() for flat in flats]
    chunks = [rings.chunk(numel, rank, size) for rank in range(size)]
    outs = [flat[own] if own_chunk else np.full(own.stop - own.start, 7, flat.dtype)
            for flat, own in zip(flats, chunks, strict=True)]
    return outs, run_ring(ring.reduce_scatter, flats, outs, [accumulate] * size, seed=seed)


def all_reduce(flats, seed=0):
    flats = [flat.copy() for flat in flats]
    return flats, run_ring(ring.all_reduce, flats, seed=seed)


def all_gather(shares, seed=0):
    """Of flat arrays of which each rank knows its own chunk only."""
    size, numel = len(shares), shares[0].size
    flats = []
    for rank, share in enumerate(shares):
        own = rings.chunk(numel, rank, size)
        flats.append(np.full_like(share, -1))
        flats[-1][own] = share[own]
    return flats, run_ring(ring.all_gather, flats, seed=seed)


def check_reduce_scatter(flats, **options):
    total = sum(flats)
    outs, waits = reduce_scatter(flats, **options)
    for rank, out in enumerate(outs):
        want = total[rings.chunk(total.size, rank, len(flats))]
        assert np.array_equal(out, want + 7 if options.get("accumulate") else want)
    return waits


@given(numel=st.integers(0, 1000), size=st.integers(1, 40))
def test_chunks_cover_everything_once(numel, size):
    parts = [rings.chunk(numel, rank, size) for rank in range(size)]
    assert [i for part in parts for i in range(part.start, part.stop)] == list(range(numel))
    assert all(part.stop - part.start <= -(-numel // size) for part in parts)


@given(ranks, numels, seeds, segment_bytes, depths, st.booleans())
def test_reduce_scatter(size, numel, seed, segment, depth, accumulate):
    set_sizes(segment, depth)
    check_reduce_scatter(inputs(size, numel), seed=seed, accumulate=accumulate)


@given(ranks, numels, seeds, segment_bytes, depths)
def test_reduce_scatter_into_own_chunk(size, numel, seed, segment, depth):
    set_sizes(segment, depth)
    check_reduce_scatter(inputs(size, numel), seed=seed, own_chunk=True)


@given(ranks, numels, seeds, segment_bytes, depths)
def test_all_gather(size, numel, seed, segment, depth):
    set_sizes(segment, depth)
    [whole] = inputs(1, numel)
    flats, _ = all_gather([whole] * size, seed)
    assert all(np.array_equal(flat, whole) for flat in flats)


@given(ranks, numels, seeds, segment_bytes, depths)
def test_all_reduce(size, numel, seed, segment, depth):
    set_sizes(segment, depth)
    flats = inputs(size, numel)
    outs, _ = all_reduce(flats, seed)
    assert all(np.array_equal(out, sum(flats)) for out in outs)


@given(ranks, numels, seeds, segment_bytes, st.data())
def test_broadcast(size, numel, seed, segment, data):
    set_sizes(segment, 2)
    root = data.draw(st.integers(0, size - 1))
    flats = inputs(size, numel)
    want = flats[root].copy()
    run_ring(ring.broadcast, flats, [root] * size, seed=seed)
    assert all(np.array_equal(flat, want) for flat in flats)


@given(st.integers(1, 9), seeds)
def test_barrier_lets_nobody_go_before_all_have_come(size, seed):
    network = Network(size)
    come = []

    def rank_steps(channel):
        come.append(channel.rank)
        yield from ring.barrier(channel)
        assert len(come) == size

    run(network, [rank_steps(channel) for channel in network.channels()], seed)


@given(ranks, st.integers(0, 30), seeds, st.sampled_from([np.float16, np.float32]))
def test_order_of_additions_depends_on_chunk_and_group_only(size, width, seed, dtype):
    """((x[c+1] + x[c+2]) + ...) + x[c], bit for bit, in a reduce-scatter as in an all-reduce, however they are cut."""
    flats = [np.random.default_rng([seed, rank]).standard_normal(width * size).astype(dtype) for rank in range(size)]
    want = []
    for c in range(size):
        order = [flats[(c + 1 + step) % size][rings.chunk(width * size, c, size)] for step in range(size)]
        total = order[0]
        for values in order[1:]:
            total = total + values
        want.append(total)
    for segment, depth in ((4, 1), (12, 2), (2**20, 2)):
        set_sizes(segment, depth)
        outs, _ = reduce_scatter(flats, seed)
        assert all(out.tobytes() == total.tobytes() for out, total in zip(outs, want, strict=True))
        assert all(flat.tobytes() == np.concatenate(want).tobytes() for flat in all_reduce(flats, seed)[0])


@given(ranks, st.integers(0, 20), seeds)
def test_traffic_is_the_formulas(size, width, seed):
    """(N-1)/N * numel elements, N-1 messages a rank for a reduce-scatter or all-gather; for an all-reduce twice."""
    flats = inputs(size, width * size, "float32")
    nbytes = width * 4 * (size - 1)
    for times, collective in ((1, reduce_scatter), (1, all_gather), (2, all_reduce)):
        _, waits = collective(flats, seed)
        for yielded in waits:
            assert len(set(map(id, yielded))) == len(yielded)  # each exchange is yielded once
            assert sum(requests.bytes_sent for requests in yielded) == times * nbytes
            assert sum(requests.bytes_received for requests in yielded) == times * nbytes
            assert sum(requests.messages for requests in yielded) == times * (size - 1)


@pytest.mark.parametrize("ring_", [ring.reduce_scatter, ring.all_gather])
def test_sends_are_begun_before_receives(ring_):
    """See [Note: send first]: all of a rank's own messages, before the first receive."""
    set_sizes(8, 2)
    network = Network(3)
    for channel in network.channels():
        flat = np.zeros(12)
        steps = ring_(channel, flat) if ring_ is ring.all_gather else ring_(channel, flat, np.zeros(4))
        next(steps)
        assert network.begun[channel.rank][:5] == ["send"] * 4 + ["receive"]


def test_large_chunks_go_in_segments():
    rings.SEGMENT_BYTES, rings.GATHER_SEGMENT_BYTES = 40, 80  # 5 and 10 of int64
    flats = inputs(3, 3 * 21)
    for messages, collective in ((2 * 5, reduce_scatter), (2 * 3, all_gather), (2 * 8, all_reduce)):
        _, waits = collective(flats)
        assert [sum(requests.messages for requests in yielded) for yielded in waits] == [messages] * 3


def test_a_chunk_below_256_kib_is_one_message():
    assert rings.SEGMENT_BYTES >= 256 * 1024 and rings.GATHER_SEGMENT_BYTES >= 256 * 1024


def test_workspace_is_bounded():
    """As many segments as are received ahead, or nothing at all where two ranks exchange into a result of its own."""
    taken = []

    class Counting:
        def empty(self, shape, dtype, kind):
            assert kind == "workspace"
            taken.append(shape)
            return np.empty(shape, dtype)

    rings.SEGMENT_BYTES = 80
    ahead = 10 * rings.DEPTH  # also of a neighbour on this host, so that a plan need not know who shares one
    for size, own_chunk, want in ((2, False, 0), (2, True, ahead), (3, False, ahead), (3, True, ahead)):
        channels, flats = Network(size).channels(), inputs(size, 100 * size)
        for channel in channels:
            channel.mem = Counting()
        outs = [flat[rings.chunk(flat.size, rank, size)] if own_chunk else np.empty(100, flat.dtype)
                for rank, flat in enumerate(flats)]
        taken_in_order_of_rank = []
        for arguments in zip(channels, flats, outs, strict=True):
            taken.clear()
            steps = ring.reduce_scatter(*arguments)
            taken_in_order_of_rank += taken  # before anything is sent
            assert next(steps) is not None and len(taken) == 1
        assert taken_in_order_of_rank == [want] * size


# -- mutations: the checks above must be able to fail ----------------------------------------------------------------

@pytest.mark.parametrize("fault", ["one addition skipped", "one addition done twice", "a step skipped"])
def test_mutated_reduction_is_noticed(monkeypatch, fault):
    calls = []

    def add(a, b, out):
        calls.append(out.size)
        if fault == "one addition skipped" and len(calls) == 2:
            np.copyto(out, a)
        elif fault == "one addition done twice" and len(calls) == 2:
            np.add(np.add(a, b), b, out=out)
        else:
            np.add(a, b, out=out)

    flats = inputs(3, 30)
    check_reduce_scatter(flats)
    if fault == "a step skipped":  # what is received is passed on without this rank's values
        monkeypatch.setattr(ring, "adder", lambda *_: lambda a, b, out: np.copyto(out, a))
    else:
        monkeypatch.setattr(ring, "adder", lambda *_: add)
    with pytest.raises(AssertionError):
        check_reduce_scatter(flats)


def test_buffer_reused_before_its_time_is_noticed(monkeypatch):
    """More receives under way than there is workspace for."""
    flats = inputs(4, 400)
    set_sizes(40, 3)
    for seed in range(5):
        check_reduce_scatter(flats, seed=seed)
    landing = ring._landing
    monkeypatch.setattr(
        ring, "_landing", lambda channel, flat, through, depth, *how: landing(channel, flat, through, depth - 1, *how))
    with pytest.raises(AssertionError):
        for seed in range(5):
            check_reduce_scatter(flats, seed=seed)


def test_touching_a_sent_array_is_noticed():
    """The network copies when a message moves, so it sees what a rank does to an array that is on its way."""
    network = Network(2)
    sent, got = np.arange(3), np.zeros(3, int)

    def sender(channel):
        requests = channel.send(sent, 1)
        sent[:] = 9
        yield requests

    def receiver(channel):
        yield channel.receive(got, 0)

    first, second = network.channels()
    run(network, [sender(first), receiver(second)], 0)
    assert not np.array_equal(got, np.arange(3))


def test_deadlock_is_noticed():
    network = Network(2)
    with pytest.raises(AssertionError, match="deadlock"):
        run(network, [ring.barrier(network.channels()[0]), iter(())], 0)
