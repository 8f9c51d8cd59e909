"""The fast float16 addition against NumPy's, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest

from mpizero.comm import addition
from mpizero.comm.addition import adder
from mpizero.layout.rings import BLOCK, SMALL
from mpizero.memory.ledger import Ledger, Uncounted

ALL = np.arange(2**16, dtype=np.uint16).view(np.float16)  # every float16


def check(a, b):
    add = adder(a.dtype, a.size, Uncounted())
    got = np.empty_like(a)
    add(a, b, got)
    with np.errstate(all="ignore"):
        want = a + b
    nan = np.isnan(want)
    assert np.array_equal(np.isnan(got), nan)
    assert np.array_equal(got.view(np.uint16)[~nan], want.view(np.uint16)[~nan])  # the sign of zero too


@pytest.mark.parametrize("seed", range(20))
def test_every_float16_with_random_partners(seed):
    """Subnormals, both zeros, infinities and NaN among them.

    Where a block holds none of the last two, the fast path runs.
    """
    check(ALL, np.random.default_rng(seed).permutation(ALL))


@pytest.mark.parametrize("scale", [1e-7, 1e-5, 1.0, 1e3, 6e4])
def test_finite_values_of_all_sizes(scale):
    dice = np.random.default_rng(3)
    a, b = ((dice.standard_normal(200_003) * scale).clip(-65504, 65504).astype(np.float16) for _ in range(2))
    check(a, b)


def test_ties_go_to_even():
    one = np.ones(4 * SMALL, np.float16)
    eps = np.float16(2**-11)  # half a unit in the last place of 1
    for first in (1, 1 + 2**-10, -1, -1 - 2**-10):
        check(one * np.float16(first), one * eps)
        check(one * np.float16(first), -one * eps)


def test_in_place():
    for size in (SMALL, BLOCK - 1, BLOCK, 3 * BLOCK + 5):
        a, b = (np.random.default_rng([size, i]).standard_normal(size).astype(np.float16) for i in range(2))
        add, want = adder(a.dtype, size, Uncounted()), a + b
        first, second = a.copy(), b.copy()
        add(first, b, first)
        add(a, second, second)
        assert np.array_equal(first, want) and np.array_equal(second, want)


@pytest.mark.parametrize("kinds", [("inf", "plain", "tiny", "plain"), ("tiny", "nan", "large", "tiny"), ("plain",) * 4])
def test_every_block_is_added_by_itself(kinds):
    """Blocks of other values in every block, the last one short: nothing of one block may show in the next."""
    dice = np.random.default_rng(11)
    blocks = {
        "plain": lambda: dice.standard_normal(BLOCK),
        "tiny": lambda: dice.integers(-1023, 1024, BLOCK) * 2.0**-24,  # subnormals
        "large": lambda: dice.choice([-65504.0, 65504.0, 40000.0], BLOCK),  # sums overflow
        "inf": lambda: dice.choice([np.inf, 1.0], BLOCK),
        "nan": lambda: dice.choice([np.nan, -3.0], BLOCK),
    }
    a, b = (np.concatenate([blocks[kind]() for kind in kinds])[:-BLOCK // 3].astype(np.float16) for _ in range(2))
    check(a, b)
    check(b[::-1].copy(), a)


def test_one_adder_for_arrays_of_several_sizes():
    """A ring adds full and short segments with one adder: what longer ones leave in its scratch is not read."""
    dice = np.random.default_rng(12)
    add = adder(np.dtype(np.float16), 2 * BLOCK + 7, Uncounted())
    for size in (2 * BLOCK + 7, 5, BLOCK + 1, 0, BLOCK, 1, SMALL, 2 * BLOCK):
        a, b = (dice.standard_normal(size).astype(np.float16) for _ in range(2))
        got = np.full(size + 3, 7, np.float16)
        add(a, b, got[:size])
        assert np.array_equal(got[:size], a + b) and (got[size:] == 7).all()


def test_small_arrays_and_other_dtypes_are_numpys(monkeypatch):
    monkeypatch.setattr(addition, "narrow", None)  # the fast path cannot run
    for name, size in (("float32", 100_000), ("int64", 100_000), ("float16", SMALL - 1), ("uint16", 100_000)):
        a = np.arange(size).astype(name)
        out = np.empty_like(a)
        adder(a.dtype, size, Uncounted())(a, a, out)
        assert np.array_equal(out, (a.astype(float) * 2).astype(name))
    with pytest.raises(TypeError):
        adder(np.dtype(np.float16), SMALL, Uncounted())(*(np.ones(SMALL, np.float16) for _ in range(3)))


def test_scratch_is_counted_and_goes():
    ledger = Ledger()
    for width, block in ((10**6, BLOCK), (BLOCK, BLOCK), (BLOCK - 1, BLOCK - 1), (SMALL, SMALL), (SMALL - 1, 0)):
        add = adder(np.dtype(np.float16), width, ledger)
        assert ledger.live["workspace"] == 4 * 4 * block
        del add
        assert ledger.live_bytes == 0
