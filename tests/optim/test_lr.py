from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpizero.errors import ConfigError
from mpizero.optim import learning_rate


def test_by_hand():
    """warmup 4, then 8 steps of cosine down to 0.1: half-way through the cosine lies the mean, 0.55."""
    rates = [learning_rate(step, base=1.0, warmup=4, total=12) for step in range(15)]
    assert rates[:5] == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert rates[6] == pytest.approx(0.1 + 0.9 * (1 + math.sqrt(0.5)) / 2)
    assert rates[8] == pytest.approx(0.55)
    assert rates[12:] == [0.1, 0.1, 0.1]


def test_constant_without_total_and_without_warmup():
    assert [learning_rate(step, base=0.3, warmup=0, total=0) for step in (0, 1, 10**6)] == [0.3] * 3
    assert [learning_rate(step, base=0.3, warmup=2, total=0) for step in (0, 1, 2, 9)] == [0.15, 0.3, 0.3, 0.3]


def test_run_shorter_than_its_warmup_keeps_rising():
    assert [learning_rate(step, base=1.0, warmup=10, total=4) for step in range(4)] == [0.1, 0.2, 0.3, 0.4]


@given(st.integers(0, 50), st.integers(1, 100), st.floats(0, 1))
def test_rises_then_falls_between_its_bounds(warmup, decay, ratio):
    total = warmup + decay
    rates = [learning_rate(step, base=2.0, warmup=warmup, total=total, final_ratio=ratio) for step in range(total + 2)]
    assert all(a < b for a, b in pairwise(rates[:warmup]))
    assert all(a >= b - 1e-15 for a, b in pairwise(rates[warmup:]))
    assert max(rates) == 2.0 and min(rates[warmup:]) == rates[-1] == 2.0 * ratio and min(rates[:warmup], default=1) > 0


@pytest.mark.parametrize("wrong", [{"base": math.nan}, {"base": -1.0}, {"warmup": -1}, {"total": -2},
                                   {"final_ratio": 1.5}])
def test_impossible_settings(wrong):
    with pytest.raises(ConfigError):
        learning_rate(0, **({"base": 1.0, "warmup": 0, "total": 0} | wrong))
