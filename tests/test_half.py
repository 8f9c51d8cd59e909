"""Our float16 conversions against NumPy's own, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest

from mpizero.half import narrow, widen

EVERY_HALF = np.arange(2**16, dtype=np.uint16).view(np.float16)
FINITE = EVERY_HALF[np.isfinite(EVERY_HALF)]


def same_bits(ours, numpys):
    return ours.dtype == numpys.dtype and ours.tobytes() == numpys.tobytes()


def narrowed(values):
    out, before = np.full(values.size, 7, np.float16), values.copy()
    narrow(values, out, *np.full((2, values.size), np.nan, np.float32))
    assert same_bits(values, before)
    return out


@pytest.mark.parametrize("half", [FINITE, EVERY_HALF, FINITE[:0], FINITE[:1], FINITE[::-1], FINITE[::3]])
def test_widen(half):
    out = np.full(half.size, 7, np.float32)
    widen(half, out)
    assert same_bits(out, half.astype(np.float32))


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan, -np.nan, *EVERY_HALF[~np.isfinite(EVERY_HALF)][::97]])
def test_widen_with_one_value_that_is_not_finite(bad):
    half = np.array([1.5, bad, -2.0], np.float16)
    out = np.empty(3, np.float32)
    widen(half, out)
    assert same_bits(out, half.astype(np.float32))


def test_narrow_every_value_and_every_tie():
    """Each float16, the points half way between neighbours (ties), and the float32 numbers next to both."""
    exact = FINITE.astype(np.float32)
    ties = np.sort(exact)
    ties = (ties[:-1] + ties[1:]) / 2
    points = np.concatenate([exact, ties])
    above, below = (np.nextafter(points, np.float32(side)) for side in (np.inf, -np.inf))
    points = np.concatenate([points, above, below])
    assert np.abs(points).max() < 65520
    assert same_bits(narrowed(points), points.astype(np.float16))


@pytest.mark.parametrize("seed", range(5))
def test_narrow_random_bits(seed):
    """All of float32 below float16's limit: normal, subnormal, vanishing, denormal, and both zeros."""
    words = np.random.default_rng(seed).integers(0, 2**32, 100_000, dtype=np.uint32)
    edges = np.float32([0.0, -0.0, 65519.996, -65519.996, 6e-8, 2.9802322e-8, 2.9802326e-8, 1e-45])
    values = np.concatenate([words.view(np.float32), edges])
    values = values[np.abs(values) < 65520]
    assert values.size > 20_000 and same_bits(narrowed(values), values.astype(np.float16))


@pytest.mark.parametrize("bad", [65520.0, -65520.0, 1e30, np.inf, -np.inf, np.nan])
@pytest.mark.filterwarnings("error")
def test_narrow_beyond_the_range(bad):
    values = np.array([1.0, bad, 1e-7, -3.3], np.float32)
    with np.errstate(over="ignore"):
        expected = values.astype(np.float16)
    assert same_bits(narrowed(values), expected)


@pytest.mark.parametrize("n", [0, 1, 2, 3, 15, 16, 17])
def test_narrow_any_size(n):
    values = np.linspace(-2, 2, n).astype(np.float32) / 3
    assert same_bits(narrowed(values), values.astype(np.float16))


@pytest.mark.parametrize("bad", [65536.0, -65537.0, 70_000.0, 99_999.0, -131_071.0, 131_072.0])
def test_narrow_just_beyond_the_range(bad):
    """Where the significand alone would make a NaN."""
    values = np.array([1.0, bad, -2.5], np.float32)
    assert same_bits(narrowed(values), np.array([1.0, np.copysign(np.inf, bad), -2.5], np.float16))
