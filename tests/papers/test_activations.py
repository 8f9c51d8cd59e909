"""Activations in closed form: the papers' numbers."""

from __future__ import annotations

import pytest

from mpizero.papers import activations as act

# ZeRO's 1.5B and 100B
SMALL = {"hidden": 1600, "batch": 32, "seq": 1024, "layers": 48}
LARGE = {"hidden": 8192, "batch": 32, "seq": 1024, "layers": 125}


def test_gpt2_in_whole_and_recomputed():
    assert 2 * act.transformer_activations(**SMALL) == 60_397_977_600  # float16: 60.4 GB
    assert act.recompute_checkpoints(**SMALL) == 5_033_164_800


def test_100b_model_on_16_devices():
    """By its own formula the paper's 33 GB and 2 GB would be twice as much: both are reported."""
    checkpoints = act.recompute_checkpoints(**LARGE)
    assert (checkpoints, act.partitioned(checkpoints, 16)) == (67_108_864_000, 4_194_304_000)
    assert (act.PRINTED_100B_CHECKPOINTS, act.PRINTED_100B_PARTITIONED) == (33e9, 2e9)
    assert checkpoints / act.PRINTED_100B_CHECKPOINTS == pytest.approx(2, rel=0.02)
    assert act.partitioned(checkpoints, 16) / act.PRINTED_100B_PARTITIONED == pytest.approx(2, rel=0.05)
    assert isinstance(act.partitioned(checkpoints, 16), int) and act.partitioned(7, 2) == 3.5


def test_interval_and_working_memory():
    assert act.recompute_checkpoints(1600, 32, 1024, 48, interval=4) == 5_033_164_800 // 4
    working = act.recompute_working_memory(hidden=1600, heads=25, batch=2, seq=1024)
    assert working == 2 * 1024 * (16 * 1600 + 2 * 25 * 1024)
    assert act.recompute_working_memory(hidden=1600, heads=25, batch=2, seq=1024, interval=3) == 3 * working
