from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpizero.dtypes import numpy_dtype
from mpizero.errors import ConfigError
from mpizero.optim import clip_coefficient, sum_of_squares, sums_of_squares
from mpizero.optim.norms import NORM_BLOCK

WIDE = np.empty(NORM_BLOCK)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("n", [0, 1, 5, NORM_BLOCK - 1, NORM_BLOCK, 2 * NORM_BLOCK + 3])
def test_against_exact_sum(n, dtype):
    if dtype == "bfloat16":
        pytest.importorskip("ml_dtypes")
    flat = np.random.default_rng(n).standard_normal(n).astype(numpy_dtype(dtype))
    assert sum_of_squares(flat, WIDE) == pytest.approx(math.fsum(float(x) ** 2 for x in flat), rel=1e-14)


@given(st.lists(st.integers(0, 3 * NORM_BLOCK), min_size=2, max_size=5), st.lists(st.integers(0, 3 * NORM_BLOCK)))
def test_of_parts_that_come_in_blocks(ends, cuts):
    """Bit for bit as of each part whole, wherever the blocks are cut."""
    flat = np.random.default_rng(len(cuts)).standard_normal(3 * NORM_BLOCK).astype(np.float32)
    parts = [slice(*pair) for pair in pairwise(sorted(ends))]
    blocks = [slice(*pair) for pair in pairwise([0, *sorted(cuts), flat.size])]
    found = sums_of_squares(parts, [(span, flat[span]) for span in blocks], WIDE)
    assert found == [sum_of_squares(flat[part], WIDE) for part in parts]
    assert sums_of_squares(parts, [], WIDE) == [0.0] * len(parts)


def test_no_overflow_or_underflow_inside():
    assert sum_of_squares(np.full(3, 65504, np.float16), WIDE) == 3 * 65504.0**2
    assert sum_of_squares(np.full(3, 3e38, np.float32), WIDE) == pytest.approx(27e76, rel=1e-6)
    assert sum_of_squares(np.full(4, 2.0**-24, np.float16), WIDE) == 2.0**-46
    assert sum_of_squares(np.full(4, 1e-30, np.float32), WIDE) == pytest.approx(4e-60, rel=1e-6)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("n", [1, 100, NORM_BLOCK, NORM_BLOCK + 1, 3 * NORM_BLOCK])
@pytest.mark.filterwarnings("error")
def test_one_bad_element_anywhere_shows(n, bad, dtype):
    for where in {0, n // 2, n - 1}:
        flat = np.ones(n, dtype)
        flat[where] = bad
        assert not math.isfinite(sum_of_squares(flat, WIDE))


@given(st.lists(st.integers(-1000, 1000), max_size=60), st.data())
def test_each_element_counts_once_whatever_the_placement(values, data):
    """Integer values make sums exact, so shards add up with ==."""
    flat = np.array(values, np.float32)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(values)), max_size=6)))
    shards = np.split(flat, cuts)
    assert sum_of_squares(flat, WIDE) == sum(x * x for x in values)
    assert sum(sum_of_squares(shard, WIDE) for shard in shards) == sum_of_squares(flat, WIDE)


def test_clip_coefficient():
    assert clip_coefficient(0.0, 1.0) == clip_coefficient(0.5, 1.0) == clip_coefficient(5.0, math.inf) == 1.0
    assert clip_coefficient(4.0, 1.0) == 1.0 / (4.0 + 1e-6)
    for wrong in (0.0, -1.0, math.nan):
        with pytest.raises(ConfigError, match="`clip`"):
            clip_coefficient(1.0, wrong)
    with pytest.raises(AssertionError):
        clip_coefficient(math.inf, 1.0)
