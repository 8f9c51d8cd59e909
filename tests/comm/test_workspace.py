"""What rings take is what `layout.rings` says: counted on a ledger, on every rank, whatever is summed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpizero.comm import mixed, ring
from mpizero.layout import rings
from mpizero.layout.rings import Dtypes, all_reduce_bytes, chunk, reduce_bytes, reduce_scatter_bytes
from mpizero.memory.ledger import Ledger
from tests.comm.network import Network
from tests.comm.test_mixed import BF16, F16, F32, RINGS, STRAIGHT

KINDS = [(F32, F32, F32), (F16, F16, F16), (BF16, BF16, BF16), *RINGS, *STRAIGHT]
kinds = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: "-".join(dtype.name for dtype in kind))
sizes, widths = st.integers(1, 5), st.sampled_from([0, 1, 5, 39, 40, 41, 200])
cuts = st.tuples(st.sampled_from([8, 80, 2**20]), st.sampled_from([3, 50, 16384]), st.sampled_from([1, 40, 8192]))


@pytest.fixture(autouse=True)
def constants(monkeypatch):
    for name in ("SEGMENT_BYTES", "BLOCK", "SMALL"):
        monkeypatch.setattr(rings, name, getattr(rings, name))


def taken(size, made) -> list[int]:
    """Of each rank, before its ring has sent anything. made: (channel) -> its ring."""
    found = []
    for rank, channel in enumerate(Network(size).channels()):
        channel.mem = ledger = Ledger()
        steps = made(rank, channel)
        assert ledger.live_bytes == ledger.live["workspace"]
        found.append(ledger.live_bytes)
        del steps
    return found


@kinds
@settings(max_examples=40)
@given(size=sizes, width=widths, cut=cuts, accumulate=st.booleans(), in_place=st.booleans())
def test_of_a_reduce_scatter(kind, size, width, cut, accumulate, in_place):
    rings.SEGMENT_BYTES, rings.BLOCK, rings.SMALL = cut
    (source, wire, sums), numel = kind, size * width
    in_place &= source == sums and not accumulate

    def made(rank, channel):
        flat = np.zeros(numel, source)
        out = flat[chunk(numel, rank, size)] if in_place else np.zeros(width, sums)
        return mixed.reduce_scatter(channel, flat, out, accumulate, wire)

    said = reduce_scatter_bytes(numel, size, Dtypes(*(dtype.name for dtype in kind)), accumulate,
                                in_place and width > 0)
    assert taken(size, made) == [said] * size


@kinds
@settings(max_examples=40)
@given(size=sizes, width=widths, cut=cuts, accumulate=st.booleans(), in_place=st.booleans())
def test_of_an_all_reduce(kind, size, width, cut, accumulate, in_place):
    rings.SEGMENT_BYTES, rings.BLOCK, rings.SMALL = cut
    (source, wire, sums), numel = kind, size * width
    in_place &= source == sums and not accumulate

    def made(rank, channel):
        flat = np.zeros(numel, source)
        return mixed.all_reduce(channel, flat, flat if in_place else np.zeros(numel, sums), accumulate, wire)

    said = all_reduce_bytes(numel, size, Dtypes(*(dtype.name for dtype in kind)), accumulate, in_place and width > 0)
    assert taken(size, made) == [said] * size


@kinds
@settings(max_examples=40)
@given(size=sizes, width=widths, cut=cuts, accumulate=st.booleans(), data=st.data())
def test_of_a_reduction_to_one_rank(kind, size, width, cut, accumulate, data):
    rings.SEGMENT_BYTES, rings.BLOCK, rings.SMALL = cut
    (source, wire, sums), numel, root = kind, size * width, data.draw(st.integers(0, size - 1))

    def made(rank, channel):
        out = np.zeros(numel if rank == root else 0, sums)
        return mixed.reduce(channel, np.zeros(numel, source), out, root, accumulate, wire)

    dtypes = Dtypes(*(dtype.name for dtype in kind))
    assert taken(size, made) == [reduce_bytes(numel, size, dtypes, accumulate, rank == root) for rank in range(size)]


def test_gathers_and_broadcasts_take_nothing():
    flat = np.zeros(24, np.float32)
    assert taken(3, lambda rank, channel: list(zip(ring.all_gather(channel, flat), range(1)))) == [0] * 3
    assert taken(3, lambda rank, channel: list(zip(ring.broadcast(channel, flat, 0), range(1)))) == [0] * 3
