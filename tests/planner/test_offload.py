"""ZeRO-Offload's step: published numbers, and an estimate of the same size."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mpizero.planner import offload


def test_published_updates():
    """10B parameters: CPU-Adam 2.57 s, PyTorch's on the CPU 14.76 s. The estimate assumes the first."""
    assert offload.PUBLISHED_UPDATE["CPU-Adam"] == 2.57 and offload.PUBLISHED_UPDATE["PyTorch's Adam on the CPU"] == 14.76
    assert offload.offload_step(offload.PUBLISHED_PARAMS, 8).update == pytest.approx(2.57, rel=1e-12)


def test_delayed_update_gains_as_much_as_published():
    low, high = offload.PUBLISHED_DELAYED
    assert (low, high) == (1.12, 1.59)
    step = offload.offload_step(offload.PUBLISHED_PARAMS, 8)
    assert low < step.gain < high and step.flops / step.seconds > 40e12  # "over 40 TFLOP/s" for 10B on one V100
    assert offload.offload_step(offload.PUBLISHED_PARAMS, 1).gain > step.gain > offload.offload_step(offload.PUBLISHED_PARAMS, 32).gain > 1


def test_by_hand():
    step = offload.offload_step(10**9, 4, seq=1000)
    assert step.forward == pytest.approx(2 * 10**9 * 4000 / 62.5e12) and step.backward == pytest.approx(3 * step.forward)
    assert step.down == step.up == pytest.approx(2e9 / 12e9)
    assert step.seconds == pytest.approx(step.forward + step.backward + step.update)
    assert step.delayed_seconds == pytest.approx(step.forward + step.backward)


def test_parameters_go_up_beside_the_update():
    """Whichever is longer counts: on a slow link the transfers, down beside backward and up beside the update."""
    step = offload.offload_step(10**9, 1, seq=1000, machine=replace(offload.V100, host_bandwidth=1e9))
    assert step.down == step.up == 2 > step.update and step.down > step.backward
    assert step.seconds == pytest.approx(step.forward + 2 + 2) and step.delayed_seconds == pytest.approx(step.forward + 2)
