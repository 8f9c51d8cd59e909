"""ZeRO-Offload's step: published numbers, and an estimate of the same size."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mpizero.papers import offload


def test_published_updates():
    """Seconds for 10B parameters, as ZeRO-Offload's table 4 and the lecture print them."""
    assert offload.PUBLISHED_PARAMS == 10_000_000_000
    assert offload.PUBLISHED_UPDATE == {"CPU-Adam": 2.57, "PyTorch's Adam on the CPU": 14.76, "Adam on a GPU": 1.0}


@pytest.mark.parametrize("who, seconds", [("CPU-Adam", 2.57), ("PyTorch's Adam on the CPU", 14.76)])
def test_an_update_takes_what_is_published_of_its_rate(who, seconds):
    """The machine's own rate is CPU-Adam's, per parameter; with another one the estimate is another."""
    machine = offload.V100 if who == "CPU-Adam" else replace(offload.V100, host_adam=10e9 / seconds)
    assert offload.offload_step(10**10, 8, machine=machine).update == pytest.approx(seconds, rel=1e-12)
    assert offload.offload_step(10**9, 1, machine=machine).update == pytest.approx(seconds / 10, rel=1e-12)


def test_delayed_update_gains_as_much_as_published():
    low, high = offload.PUBLISHED_DELAYED
    assert (low, high) == (1.12, 1.59)
    one, eight, many = (offload.offload_step(offload.PUBLISHED_PARAMS, batch) for batch in (1, 8, 32))
    assert low < eight.gain < high and eight.flops / eight.seconds > 40e12  # "over 40 TFLOP/s" for 10B on one V100
    assert one.gain > eight.gain > many.gain > 1


def test_by_hand():
    step = offload.offload_step(10**9, 4, seq=1000)
    assert step.forward == pytest.approx(2 * 10**9 * 4000 / 62.5e12)
    assert step.backward == pytest.approx(3 * step.forward)
    assert step.down == step.up == pytest.approx(2e9 / 12e9)
    assert step.seconds == pytest.approx(step.forward + step.backward + step.update)
    assert step.delayed_seconds == pytest.approx(step.forward + step.backward)


def test_parameters_go_up_beside_the_update():
    """Whichever is longer counts: on a slow link the transfers, down beside backward and up beside the update."""
    step = offload.offload_step(10**9, 1, seq=1000, machine=replace(offload.V100, host_bandwidth=1e9))
    assert step.down == step.up == 2 > step.update and step.down > step.backward
    assert step.seconds == pytest.approx(step.forward + 2 + 2)
    assert step.delayed_seconds == pytest.approx(step.forward + 2)
