"""FSDP's equation 1: the sum over all ranks in two steps, inside each shard group and across the replicas.

All ranks in one process.
"""

from __future__ import annotations

import math

import numpy as np

from mpizero.comm import ring
from tests.comm.network import run_ring

REPLICAS, SHARDS, NUMEL = 2, 8, 8 * 25


def test_two_steps_give_the_sum_over_16_ranks():
    """2 hosts of 8 ranks in float64: within 2e-15 of the largest sum.

    Ranks of the same place hold the same shard, bit for bit.
    """
    values = np.random.default_rng(0).standard_normal((REPLICAS, SHARDS, NUMEL))
    shards = np.empty((REPLICAS, SHARDS, NUMEL // SHARDS))
    for host in range(REPLICAS):
        run_ring(ring.reduce_scatter, values[host].copy(), shards[host], seed=host)
    for place in range(SHARDS):
        run_ring(ring.all_reduce, shards[:, place], seed=place)
    exact = np.array([math.fsum(column) for column in values.reshape(-1, NUMEL).T])
    assert (shards[0] == shards[1]).all()
    assert np.abs(shards[0].reshape(-1) - exact).max() / np.abs(exact).max() < 2e-15
    assert np.abs(shards[0].reshape(-1) - values.sum(axis=(0, 1))).max() / np.abs(exact).max() < 2e-15
