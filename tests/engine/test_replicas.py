"""Checksums find the smallest drift, and say where."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mpizero.engine.job import prepare
from mpizero.engine.replicas import compare_replicas, largest_difference
from mpizero.engine.trainer import run_steps
from mpizero.errors import ReplicaMismatch
from tests.engine.runs import MLP


def drift(job, rank, name, buffer):
    """One unit in the last place, in one element, on one rank."""
    unit = next(unit for unit in job.state.units if unit.layout.name == name)
    if job.world.rank == rank:
        array = unit.param if buffer == "param" else unit.states[buffer]
        array[-1] = np.nextafter(array[-1], array.dtype.type(9))


@pytest.mark.parametrize("stage, shards, buffer", [
    ("0", None, "param"), ("0", None, "exp_avg_sq"), ("1", None, "param"), ("2", None, "param"), ("2", 2, "master"),
    ("3", 2, "param"), ("3", 1, "exp_avg"),
])
def test_one_bit_on_one_rank(group, stage, shards, buffer):
    if group.size % (shards or 1) or group.size == (shards or 1):
        pytest.skip(f"{group.size} ranks hold no two replicas, or do not divide so")
    job = prepare(replace(MLP, stage=stage, shard_size=shards), group)
    assert compare_replicas(job.world, job.state.units) == []
    drift(job, group.size - 1, "layers.3", buffer)
    found = compare_replicas(job.world, job.state.units)
    assert [(mismatch.unit, mismatch.buffer) for mismatch in found] == [("layers.3", buffer)]
    assert group.size - 1 in found[0].ranks and len(set(found[0].checksums)) == 2
    if shards == 2:
        assert found[0].ranks == tuple(range(1, group.size, 2))  # the ranks that keep the same shard


def test_check_while_training_names_ranks_and_unit(group):
    job = prepare(replace(MLP, stage="0", check_replicas=2, steps=4), group)
    if group.size == 1:
        assert len(run_steps(job).records) == 4
        pytest.skip("one rank has nobody to differ from")
    reports = []

    def disturb(record):
        reports.append(record.step)
        if job.world.rank == 1:
            job.state.units[2].states["master"][0] += 1.0

    with pytest.raises(ReplicaMismatch, match=r"after step 2: .*layers.2.*rank 0.*rank 1"):
        run_steps(job, disturb)
    assert reports == [0]


def test_largest_difference(group):
    job = prepare(replace(MLP, stage="2"), group)
    assert largest_difference(job.world, job.state.units) == 0.0
    if job.world.rank == group.size - 1:
        job.state.units[1].param[3] += 0.5
    assert largest_difference(job.world, job.state.units) == (0.5 if group.size > 1 else 0.0)


def test_largest_difference_has_no_sign(group):
    job = prepare(replace(MLP, stage="2"), group)
    job.state.units[2].param[5] = 0.75 if group.rank and group.rank == group.size - 1 else 1.0
    assert largest_difference(job.world, job.state.units) == (0.25 if group.size > 1 else 0.0)
