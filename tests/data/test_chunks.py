from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpizero.data.chunks import KEY, chunks
from mpizero.data.split import hold_out
from tests.data.texts import prose

MEAN, QUIET = 512, 100


def cut(data, size=10**9, mean=MEAN, quiet=QUIET):
    """Chunks with their keys; the bytes come in blocks of `size`."""
    blocks = [data[begin:begin + size] for begin in range(0, len(data), size)]
    stops, keys = chunks(iter(blocks), mean, quiet)
    assert len(stops) == len(keys)
    return [(data[a:b], int(key)) for (a, b), key in zip(itertools.pairwise([0, *stops.tolist()]), keys, strict=True)]


@pytest.mark.parametrize("size", [1, 7, 64, 1000, 262_144])
def test_blocks_do_not_matter(size):
    data = prose(min(20_000, 2_000 * size))
    pieces = cut(data)
    assert b"".join(piece for piece, _ in pieces) == data and cut(data, size) == pieces
    assert len(data) / 1200 < len(pieces) < len(data) / 300 and all(len(piece) >= QUIET for piece, _ in pieces[1:-1])


@given(st.integers(0, 300), st.integers(0, 5))
def test_a_shifted_or_embedded_text_is_cut_alike(shift, seed):
    data, around = prose(20_000, seed), prose(600, 99)
    pieces, other = cut(data), cut(around[:shift] + data + around[shift:])
    inner = [piece for piece in pieces[1:-1] if piece in other]  # with its key
    assert len(inner) >= len(pieces) - 4
    ends = dict(zip(itertools.accumulate(len(piece) for piece, _ in other), (key for _, key in other), strict=True))
    first, key = pieces[0]
    assert len(first) < QUIET + KEY or ends[shift + len(first)] == key  # though what stands in front differs


def test_equal_chunks_have_equal_keys_and_others_others():
    twice = cut(prose(30_000) + b"\n---\n" + prose(30_000))
    keys = dict(twice)
    assert all(keys[piece] == key for piece, key in twice) and len(keys) < 0.6 * len(twice)
    assert len(set(keys.values())) == len(keys) - 1  # the first and what holds it the second time: see above


@pytest.mark.parametrize("data", [b"", b"x", b"ab" * 40, bytes(100_000), b" " * 100_000, b"line\n" * 20_000,
                                  bytes(range(256)) * 400], ids=lambda data: str(data[:8]))
def test_short_and_repetitive_bytes_have_few_chunks(data):
    pieces = cut(data)
    assert b"".join(piece for piece, _ in pieces) == data and len(pieces) <= 1 + len(data) / QUIET
    assert len({key for _, key in pieces}) <= 2


# -- what is held out --------------------------------------------------------------------------------------------------


def test_a_share_is_held_out_and_keys_go_together():
    rng = np.random.default_rng(0)
    keys, sizes = rng.integers(0, 300, 2000).astype(np.uint32), rng.integers(1, 100, 2000)
    held_out = hold_out(keys, sizes, 0.05, np.ones(2000, bool))
    assert 0.05 <= sizes[held_out].sum() / sizes.sum() < 0.06
    assert set(keys[held_out]).isdisjoint(keys[~held_out])
    assert max(keys[held_out]) < min(keys[~held_out])  # a matter of the key alone


def test_what_repeats_all_over_is_not_held_out_while_something_else_can_be():
    keys, sizes = np.array([1, 2, 1, 1, 1, 3], np.uint64), np.ones(6, int)
    assert hold_out(keys, sizes, 0.1, sizes > 0).tolist() == [False, True, False, False, False, False]
    assert hold_out(keys[:1], sizes[:1], 0.1, sizes[:1] > 0).tolist() == [True]  # everything
    assert not hold_out(keys, sizes, 0.1, sizes < 0).any()
