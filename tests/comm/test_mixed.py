"""Reductions whose messages or sums are of another dtype than the gradients: all ranks in one process."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpizero.comm import mixed
from mpizero.layout import rings
from mpizero.memory.ledger import Ledger
from tests.comm.network import Network, run, run_ring

BFLOAT16 = pytest.importorskip("ml_dtypes").bfloat16
F16, BF16, F32 = np.dtype(np.float16), np.dtype(BFLOAT16), np.dtype(np.float32)
# dtypes of the gradient, of messages, of sums: a ring of another dtype, then sums that are wider than messages
RINGS = [(F16, F32, F32), (BF16, F32, F32), (F16, BF16, BF16), (F32, BF16, BF16)]
STRAIGHT = [(F16, F16, F32), (BF16, BF16, F32), (F16, BF16, F32), (F32, BF16, F32), (F32, F16, F32)]
kinds = pytest.mark.parametrize("kind", RINGS + STRAIGHT, ids=lambda kind: "-".join(dtype.name for dtype in kind))
ranks, numels, seeds = st.integers(1, 7), st.integers(0, 60), st.integers(0, 2**32)


@pytest.fixture(autouse=True)
def constants(monkeypatch):
    """Tests set them as they like."""
    for module, name in ((rings, "SEGMENT_BYTES"), (rings, "DEPTH"), (rings, "BLOCK")):
        monkeypatch.setattr(module, name, getattr(module, name))


def gradients(size, numel, dtype, seed=0):
    return [np.random.default_rng([seed, rank]).standard_normal(numel).astype(dtype) for rank in range(size)]


def by_hand(flats, wire, sums, before=None):
    """((x[c+1] + x[c+2]) + ...) + x[c] for each chunk c, in `sums`; each x rounded to `wire`, by NumPy's casts."""
    size, numel = len(flats), flats[0].size
    parts = []
    for c in range(size):
        part = rings.chunk(numel, c, size)
        order = [flats[(c + 1 + step) % size][part].astype(wire).astype(sums) for step in range(size)]
        total = order[0]
        for values in order[1:]:
            total = total + values
        parts.append(total if before is None else before[part] + total)
    return np.concatenate(parts)


def reduce_scatter(flats, wire, sums, accumulate=False, seed=0):
    """The sums of all chunks together, and what each rank waited for. Into threes."""
    size, numel = len(flats), flats[0].size
    outs = [np.full(numel, 3, sums)[rings.chunk(numel, rank, size)].copy() for rank in range(size)]
    waits = run_ring(mixed.reduce_scatter, [flat.copy() for flat in flats], outs, [accumulate] * size, [wire] * size,
                     seed=seed)
    return np.concatenate(outs), waits


@kinds
@settings(max_examples=25)
@given(size=ranks, numel=numels, seed=seeds, segment=st.sampled_from([1, 8, 40, 2**20]), depth=st.integers(1, 4),
       block=st.sampled_from([3, 16384]), accumulate=st.booleans())
def test_sums_are_those_made_by_hand(kind, size, numel, seed, segment, depth, block, accumulate):
    """Bit for bit, however chunks are cut and messages come."""
    dtype, wire, sums = kind
    rings.SEGMENT_BYTES, rings.DEPTH, rings.BLOCK = segment, depth, block
    flats = gradients(size, numel, dtype, seed)
    got, _ = reduce_scatter(flats, wire, sums, accumulate, seed)
    assert got.dtype == sums
    assert got.tobytes() == by_hand(flats, wire, sums, np.full(numel, 3, sums) if accumulate else None).tobytes()


@kinds
@settings(max_examples=25)
@given(size=ranks, numel=numels, seed=seeds, accumulate=st.booleans())
def test_all_reduce_gives_every_rank_the_same_sums(kind, size, numel, seed, accumulate):
    dtype, wire, sums = kind
    flats, outs = gradients(size, numel, dtype, seed), [np.full(numel, 3, sums) for _ in range(size)]
    want = by_hand(flats, wire, sums, outs[0] if accumulate else None)
    run_ring(mixed.all_reduce, flats, outs, [accumulate] * size, [wire] * size, seed=seed)
    assert all(out.tobytes() == want.tobytes() for out in outs)


@pytest.mark.parametrize("wire", [F16, BF16])
@settings(max_examples=25)
@given(size=ranks, numel=numels, seed=seeds)
def test_all_reduce_in_place(wire, size, numel, seed):
    """Float32 sums of shards, across replicas: each is rounded to be sent, the owner's too; sums are not."""
    flats = gradients(size, numel, F32, seed)
    want = by_hand(flats, wire, F32)
    run_ring(mixed.all_reduce, flats, flats, [False] * size, [wire] * size, seed=seed)
    assert all(flat.tobytes() == want.tobytes() for flat in flats)


@pytest.mark.parametrize("dtype", [F16, BF16])
@settings(max_examples=25)
@given(size=ranks, width=st.integers(0, 20), seed=seeds)
def test_a_float32_wire_and_float32_sums_are_the_same_bits(dtype, size, width, seed):
    """At twice the bytes."""
    flats = gradients(size, size * width, dtype, seed)
    (wide, more), (sums, less) = (reduce_scatter(flats, wire, F32, seed=seed) for wire in (F32, dtype))
    assert wide.tobytes() == sums.tobytes()
    for long, short in zip(more, less, strict=True):
        assert sum(each.bytes_sent for each in long) == 2 * sum(each.bytes_sent for each in short)


@kinds
@settings(max_examples=25)
@given(size=ranks, width=st.integers(1, 20), seed=seeds)
def test_traffic_is_the_formulas(kind, size, width, seed):
    """(N-1)/N * numel elements of what is sent, in N-1 messages; to gather, as many of the sums."""
    dtype, wire, sums = kind
    flats, outs = gradients(size, size * width, dtype, seed), [np.empty(size * width, sums) for _ in range(size)]
    _, reducing = reduce_scatter(flats, wire, sums, seed=seed)
    reducing_and_gathering = run_ring(mixed.all_reduce, flats, outs, [False] * size, [wire] * size, seed=seed)
    for waits, nbytes, messages in ((reducing, wire.itemsize, 1),
                                    (reducing_and_gathering, wire.itemsize + sums.itemsize, 2)):
        for yielded in waits:
            assert len(set(map(id, yielded))) == len(yielded)  # each is yielded once
            assert sum(requests.bytes_sent for requests in yielded) == (size - 1) * width * nbytes
            assert sum(requests.bytes_received for requests in yielded) == (size - 1) * width * nbytes
            assert sum(requests.messages for requests in yielded) == messages * (size - 1)


@pytest.mark.parametrize("kind, far", [((F16, F32, F32), False), ((F16, F16, F32), True)])
def test_who_gets_the_messages(kind, far):
    """A ring sends to the right alone; where sums are wider, each owner gets its chunk."""
    dtype, wire, sums = kind
    network = Network(5)
    channels, flats = network.channels(), gradients(5, 50, dtype)
    outs = [np.empty(10, sums) for _ in range(5)]
    run(network, [mixed.reduce_scatter(channel, flat, out, False, wire)
                  for channel, flat, out in zip(channels, flats, outs, strict=True)], 0)
    there = {(source, dest) for source, dest in network.queues}
    assert there == {(rank, (rank + step) % 5) for rank in range(5) for step in (range(1, 5) if far else (1,))}


def test_gradients_of_another_dtype_are_only_read():
    for dtype, wire, sums in RINGS + STRAIGHT:
        flats = gradients(3, 30, dtype)
        before = [flat.copy() for flat in flats]
        outs = [np.empty(10, sums) for _ in range(3)]
        run_ring(mixed.reduce_scatter, flats, outs, [True] * 3, [wire] * 3)
        assert all(np.array_equal(flat, old) for flat, old in zip(flats, before, strict=True))


@pytest.mark.parametrize("kind, size, accumulate, want", [
    # a block of float32, its scratch left out where casts need none, beside chunks of 40,000 elements:
    ((F16, F32, F32), 4, False, 4 * (2 * 40_000 + 16_384)),  # two chunks in turn
    ((F16, F32, F32), 2, False, 4 * (40_000 + 16_384)),  # one, since sums are made in the result
    ((F16, F32, F32), 2, True, 4 * (2 * 40_000 + 16_384)),
    ((F16, F16, F32), 4, False, 2 * 2 * 10_000 + 4 * 2 * 10_000),  # segments of 10,000 elements: two come in
    ((F16, F16, F32), 4, True, 2 * 2 * 10_000 + 4 * 3 * 10_000),  # and a sum that is to be added
    ((F32, BF16, F32), 4, False, 2 * 2 * 10_000 * 2 + (2 + 4 + 4) * 10_000),  # two go out, cast
])
def test_workspace_is_chunks_segments_and_blocks(kind, size, accumulate, want):
    dtype, wire, sums = kind
    rings.SEGMENT_BYTES = 20_000
    network, ledgers = Network(size), [Ledger() for _ in range(size)]
    channels, flats = network.channels(), gradients(size, size * 40_000, dtype)
    for channel, ledger in zip(channels, ledgers, strict=True):
        channel.mem = ledger
    outs = [np.empty(40_000, sums) for _ in range(size)]
    run(network, [mixed.reduce_scatter(channel, flat, out, accumulate, wire)
                  for channel, flat, out in zip(channels, flats, outs, strict=True)], 0)
    assert [ledger.peak["workspace"] for ledger in ledgers] == [want] * size
    assert all(ledger.live_bytes == 0 for ledger in ledgers)


# -- what it is for ---------------------------------------------------------------------------------------------------


def test_float16_sums_overflow_and_float32_sums_do_not():
    """4e4 on 4 ranks: 1.6e5 is beyond float16's 65,504."""
    flats = [np.full(8, 4e4, np.float16) for _ in range(4)]
    narrow, _ = reduce_scatter(flats, F16, F16)
    assert np.isinf(narrow).all()
    for wire in (F16, F32):
        assert (reduce_scatter(flats, wire, F32)[0] == 4 * np.float32(np.float16(4e4))).all()
    assert np.abs(reduce_scatter(flats, BF16, BF16)[0].astype(float) / 1.6e5 - 1).max() < 2**-8


def test_a_mean_made_before_the_sum_underflows_unless_it_is_scaled():
    """1e-7 on 8 ranks, divided by 8 before it is summed: float16 ends at 6e-8. A loss scale, or another wire, helps."""
    for scale, wire, sums, tolerance in ((1, F16, F16, None), (1, F16, F32, None), (2**16, F16, F16, 2**-9),
                                         (2**16, F16, F32, 2**-10), (1, BF16, F32, 2**-8), (1, F32, F32, 1e-6)):
        flats = [np.full(16, scale * 1e-7 / 8, np.float32).astype(F16 if wire == F16 else F32) for _ in range(8)]
        got, _ = reduce_scatter(flats, wire, sums)
        mean = got.astype(np.float64) / scale
        if tolerance is None:
            assert not mean.any()
        else:
            assert np.abs(mean / 1e-7 - 1).max() < tolerance


def error(wire, sums, size):
    """Of the sum of `size` positive float32 gradients, relative, root mean square over elements."""
    flats = [np.random.default_rng(rank).uniform(0.5, 1.5, 256).astype(F32) for rank in range(size)]
    got, _ = reduce_scatter(flats, wire, sums)
    want = np.sum([flat.astype(np.float64) for flat in flats], axis=0)
    return float(np.sqrt(np.mean((got.astype(np.float64) / want - 1) ** 2)))


def test_the_error_of_16_bit_sums_grows_with_ranks_and_that_of_float32_sums_does_not(capsys):
    """All are sent in bfloat16. With float32 sums each is rounded once, and the more there are the more that evens out;
    a ring of 16 bits rounds every partial sum as well."""
    sizes = (2, 4, 8, 16, 32, 64)
    narrow, wide = ([error(BF16, sums, size) for size in sizes] for sums in (BF16, F32))
    with capsys.disabled():
        print("\nranks, relative error of bfloat16 sums, and of float32 sums, of bfloat16 messages")
        print(*(f"{size:>5}  {one:.1e}  {other:.1e}" for size, one, other in zip(sizes, narrow, wide)), sep="\n")
    assert narrow[-1] > 2.5 * narrow[0] and all(more > less for less, more in itertools.pairwise(narrow[1:]))
    assert max(wide) == wide[0] < 2**-9 and wide[-1] < wide[0] / 3
    assert narrow[-1] > 15 * wide[-1]


# -- mutations: the checks above must be able to fail -----------------------------------------------------------------


def test_messages_overwritten_before_they_have_left_are_noticed(monkeypatch):
    """The network copies when a message moves: `DEPTH` slots that are one."""
    rings.SEGMENT_BYTES = 8
    flats = gradients(4, 160, F32)
    want = by_hand(flats, BF16, F32).tobytes()
    assert all(reduce_scatter(flats, BF16, F32, seed=seed)[0].tobytes() == want for seed in range(5))

    class OneSlot(Ledger):
        def empty(self, shape, dtype, kind):
            slot = super().empty(shape, dtype, kind)
            return slot if dtype != BF16 else np.lib.stride_tricks.as_strided(slot, (shape,), (0,))

    monkeypatch.setattr("tests.comm.network.Uncounted", OneSlot)
    assert any(reduce_scatter(flats, BF16, F32, seed=seed)[0].tobytes() != want for seed in range(5))
