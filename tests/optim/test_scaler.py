from __future__ import annotations

import pytest

from mpizero.errors import ConfigError, LossScaleError
from mpizero.optim import LossScaler

# Written by hand from GradScaler's documentation: (overflow?, scale after, steps since the last change after).
# Start 8, growth 4, backoff 0.5, interval 3, floor 2.
TABLE = [
    (False, 8.0, 1), (False, 8.0, 2), (False, 32.0, 0),  # three good steps: x 4
    (False, 32.0, 1), (True, 16.0, 0),  # an overflow halves and starts the count again
    (False, 16.0, 1), (False, 16.0, 2), (True, 8.0, 0), (True, 4.0, 0), (True, 2.0, 0),  # down to the floor
    (False, 2.0, 1), (False, 2.0, 2), (False, 8.0, 0), (False, 8.0, 1),
    (True, 4.0, 0), (True, 2.0, 0),
]  # fmt: skip


def test_scripted_overflow_pattern():
    scaler = LossScaler(init_scale=8, growth_factor=4, growth_interval=3, min_scale=2)
    for row, (found_inf, scale, tracker) in enumerate(TABLE):
        scaler.update(found_inf)
        assert (scaler.scale, scaler.state_dict()["_growth_tracker"]) == (scale, tracker), row
    with pytest.raises(LossScaleError, match=r"unit h\.3 .*floor of 2: .*`lr`"):
        scaler.update(True, culprit="h.3")
    assert scaler.scale == 2.0


def test_backoff_lands_on_the_floor_not_below():
    scaler = LossScaler(init_scale=3, min_scale=2)
    scaler.update(True)
    assert scaler.scale == 2.0
    with pytest.raises(LossScaleError, match="a gradient is inf"):
        scaler.update(True)


def test_defaults_are_gradscalers():
    assert LossScaler().state_dict() == {"scale": 65536.0, "growth_factor": 2.0, "backoff_factor": 0.5,
                                         "growth_interval": 2000, "_growth_tracker": 0}
    scaler = LossScaler()
    for _ in range(1999):
        scaler.update(False)
    assert scaler.scale == 65536
    scaler.update(False)
    assert scaler.scale == 131072


def test_never_grows_to_infinity():
    scaler = LossScaler(init_scale=1.5e308, growth_interval=1)
    scaler.update(False)
    assert scaler.scale == 1.5e308


def test_disabled_is_one_for_ever():
    scaler = LossScaler(enabled=False, growth_interval=1)
    for found_inf in (True, False, True):
        scaler.update(found_inf, "fc")
        assert scaler.scale == 1.0
    assert scaler.state_dict() == {}
    scaler.load_state_dict({})


def test_resumed_equals_uninterrupted():
    one, two = (LossScaler(growth_interval=5) for _ in range(2))
    pattern = [False] * 7 + [True] + [False] * 8
    for position, found_inf in enumerate(pattern):
        if position == 9:
            saved, two = two.state_dict(), LossScaler()
            two.load_state_dict(saved)
        one.update(found_inf)
        two.update(found_inf)
        assert one.state_dict() == two.state_dict()


def test_damaged_state_changes_nothing():
    scaler = LossScaler(init_scale=64)
    before = scaler.state_dict()
    for state in ({}, {"scale": 4.0}, before | {"backoff_factor": 2.0}, before | {"scale": float("nan")},
                  before | {"growth_interval": 0}):
        with pytest.raises(ConfigError):
            scaler.load_state_dict(state)
        assert scaler.state_dict() == before


@pytest.mark.parametrize("wrong", [{"init_scale": 0.5}, {"init_scale": float("inf")}, {"growth_factor": 1.0},
                                   {"backoff_factor": 1.0}, {"backoff_factor": 0.0}, {"growth_interval": 0},
                                   {"min_scale": 0.0}])
def test_impossible_settings(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        LossScaler(**wrong)
