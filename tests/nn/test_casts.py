"""Casts: the bits of NumPy's own, for every float16 and around every rounding boundary of float32."""

from __future__ import annotations

import numpy as np
import pytest

from mpizero.layout import sizes
from mpizero.memory.ledger import Uncounted
from mpizero.nn.ops.casts import cast

MEM = Uncounted()
HALVES = np.arange(65536, dtype=np.uint16).view(np.float16)
FINITE = HALVES[np.isfinite(HALVES)]


@pytest.fixture(autouse=True)
def always_by_blocks(monkeypatch):
    """Never NumPy's cast because an array is small."""
    monkeypatch.setattr(sizes, "SMALL_WIDEN", 0)
    monkeypatch.setattr(sizes, "SMALL_ROUND", 0)


def assert_round(values, shape=None):
    values = values.astype(np.float32)
    with np.errstate(over="ignore"):
        right = values.astype(np.float16)
    out = np.empty(values.shape, np.float16)
    cast(values, out, MEM)
    nan = np.isnan(values)
    assert np.array_equal(out.view(np.uint16)[~nan], right.view(np.uint16)[~nan])
    assert np.isnan(out[nan]).all()


def boundaries():
    """Finite float16 values, their midpoints, and the float32 neighbours of both."""
    steps = np.sort(FINITE.astype(np.float32))
    middle = ((steps[1:].astype(np.float64) + steps[:-1]) / 2).astype(np.float32)
    exact = np.concatenate([steps, middle])
    above, below = np.nextafter(exact, np.float32(np.inf)), np.nextafter(exact, np.float32(-np.inf))
    return np.concatenate([exact, above, below, -np.zeros(1, np.float32)])


@pytest.mark.parametrize("values", [HALVES, FINITE, HALVES[:5000], HALVES[:0]], ids=["all", "finite", "few", "none"])
def test_widen_every_half(values):
    out = np.empty(values.shape, np.float32)
    cast(values, out, MEM)
    assert np.array_equal(out.view(np.uint32), values.astype(np.float32).view(np.uint32))


def test_round_at_every_boundary():
    assert_round(boundaries())


@pytest.mark.parametrize("limit", [0x33800000, 0x38800000, 0x47800000, 0x7F800000, 2**32],
                         ids=["tiny", "subnormal", "normal", "finite", "any"])
def test_round_random_bits(limit):
    bits = np.random.default_rng(limit).integers(0, limit, 300_000).astype(np.uint32)
    bits[::2] |= np.uint32(1 << 31)
    assert_round(bits.view(np.float32))


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan, 65504, 65519.996, 65520, 65536, -1e30])
def test_round_beyond_the_range(bad):
    values = np.linspace(-1, 1, 1000, dtype=np.float32)
    values[77] = bad
    assert_round(values)


def test_no_warning_for_overflow():
    with np.errstate(all="raise", under="ignore"):
        cast(np.full(3000, 1e9, np.float32), np.empty(3000, np.float16), MEM)


@pytest.mark.parametrize("narrow", [np.float16, np.float32])
def test_views_and_transposes(narrow):
    """Rows, columns and transposes of larger arrays, both ways; nothing beside the view is touched."""
    wide = np.float32 if narrow == np.float16 else np.float64
    base = np.random.default_rng(0).standard_normal((301, 200)).astype(narrow)
    views = [lambda a: a[3:300, 5:190], lambda a: a.T, lambda a: a[7], lambda a: a[:, 7],
             lambda a: a.reshape(7, 43, 200).swapaxes(0, 1)]
    for view in views:
        for source_type, out_type in ((narrow, wide), (wide, narrow)):
            source, out = base.astype(source_type), np.full(base.shape, 77, out_type)
            cast(view(source), view(out), MEM)
            right = np.full(base.shape, 77, out_type)
            view(right)[...] = view(source).astype(out_type)
            assert np.array_equal(out, right)


def test_large_rows_are_split():
    wide = np.random.default_rng(0).standard_normal((3, sizes.CAST_BLOCK * 2 + 5)).astype(np.float32)
    assert_round(wide[:, 1:])
