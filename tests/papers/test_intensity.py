"""ZeRO-Infinity's bandwidths, and the largest models."""

from __future__ import annotations

import pytest

from mpizero.papers import intensity as it


def test_intensities():
    assert (it.ait_params(1024, 2), it.ait_optimizer(1024, 2), it.ait_activations(2048)) == (2048, 512, 49_152)
    assert it.ait_activations(8192, interval=2) == 24 * 8192 * 2


def test_efficiency_is_inverted():
    for share in (0.1, 0.5, 0.9, 0.99):
        assert it.efficiency(2048, it.bandwidth_for(share, 2048)) == pytest.approx(share, rel=1e-12)
    assert it.efficiency(1024, it.bandwidth_for(0.5, 1024)) == 0.5 and it.bandwidth_for(0.5, 1024) == 70e12 / 1024


def test_published_claims():
    params, params_90, optimizer_90, optimizer, activations = it.needs()
    assert round(100 * params.efficiency, 1) == 50.6
    assert round(params_90.bandwidth / 1e9) == 308
    assert round(optimizer_90.bandwidth / 1e12, 2) == 1.23
    assert round(100 * optimizer.efficiency, 1) == 91.6
    assert round(100 * activations.efficiency, 1) == 58.4
    assert [need.given for need in it.needs()] == ["bandwidth", "efficiency", "efficiency", "bandwidth", "bandwidth"]


def test_bandwidth_centric_loading():
    """N x 3.0 GB/s from CPU, N x 1.6 GB/s from NVMe, up to 70 GB/s between GPUs; an owner's broadcast stays at one
    link."""
    assert [it.bandwidth_centric(n, "cpu") / 1e9 for n in (1, 4, 16, 64)] == [3, 12, 48, 70]
    assert [it.bandwidth_centric(n, "nvme") / 1e9 for n in (1, 16, 64)] == pytest.approx([1.6, 25.6, 70])
    # from five ranks on, everybody's links are faster
    assert it.owner_broadcast() == 12e9 == it.bandwidth_centric(4, "cpu")


def test_largest_models():
    replicated, offload, cpu, nvme = it.largest_models()
    assert [round(row.bound / 1e9, 2) for row in (replicated, offload, cpu, nvme)] == [1.75, 14, 75, 1400]
    published = [(1.4e9, 1.4e9), (13e9, 13e9), (70e9, 100e9), (1e12, 1e12)]
    assert [row.published for row in (replicated, offload, cpu, nvme)] == published
    assert all(row.published[0] <= row.bound for row in it.largest_models())
    assert replicated.capacity == 28e9 and (cpu.capacity, nvme.capacity) == (1.5e12, 28e12)
