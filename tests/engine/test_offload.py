"""States that rest in the host's memory: the same bits, and on each tier and link the bytes that were planned."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mpizero.comm import hosts as places
from mpizero.engine import moves, update
from mpizero.engine.job import prepare
from mpizero.engine.trainer import run_steps
from mpizero.errors import OutOfDeviceMemory
from mpizero.layout import HOST
from mpizero.memory.ledger import Ledger
from tests.engine.plans import fits_its_host_exactly, follows_its_plan, run_as_planned
from tests.engine.runs import GPT, MLP, dealt, run

CPU, ALL = "optimizer=cpu", "params=cpu,optimizer=cpu"
STAGES = ["0", "1", "1-allreduce", "2", "3", "3-broadcast"]


def offloads(stage):
    return [CPU, ALL] if stage == "3" else [CPU]


SETTINGS = {
    "overlap": ({"accumulation": 2, "overlap": "on"}, STAGES),
    "sums": ({"accumulation": 4, "no_sync": True, "sum_dtype": "float32"}, ["1", "3"]),
    "32": ({"dtype": "float32", "accumulation": 2, "optimizer": "lion"}, ["0", "2", "3"]),
    "bf16": ({"dtype": "bfloat16", "no_master_weights": True, "accumulation": 2, "overlap": "on"}, ["2", "3"]),
    "recompute": ({"recompute": True, "overlap": "on", "backward_prefetch": 1}, ["3"]),
}


@dealt("name, stage", [(name, stage) for name, (_, stages) in SETTINGS.items() for stage in stages])
def test_same_bits_and_as_planned(group, name, stage):
    """An addition on the host that copied instead would show from the second microbatch on."""
    config = replace(MLP, stage=stage, steps=2, clip=0.5, **SETTINGS[name][0])
    expected = run(config, group)[1]
    for offload in offloads(stage):
        assert run_as_planned(replace(config, offload=offload), group)[1] == expected


@pytest.mark.parametrize("offload", [CPU, ALL])
def test_no_bit_and_no_byte_depends_on_threads(group, offload, monkeypatch):
    monkeypatch.setattr(update, "THREADED", 1)
    config = replace(GPT, stage="3", steps=2, offload=offload)
    found = [run_as_planned(replace(config, host_threads=threads), group) for threads in (1, 2, 7)]
    assert [job.workers.number for job, _ in found] == [1, 2, 7]
    assert found[0][1] == found[1][1] == found[2][1]


def test_threads_are_for_updates_of_the_host(group):
    assert prepare(replace(MLP, host_threads=3), group).workers.number == 1
    assert prepare(replace(MLP, stage="1", offload=CPU), group).workers.number == 1  # nor is there more unless asked


@pytest.mark.parametrize("cores, quota, hosts, expected", [
    (8, None, "aab", 4), (8, 3, "aab", 1), (8, 6, "aab", 3), (1, None, "aaa", 1), (4, None, "abb", 4)])
def test_cores_are_shared_by_the_ranks_of_a_host(monkeypatch, cores, quota, hosts, expected):
    monkeypatch.setattr(places, "this_place", lambda: places.Place("a", (), tuple(range(cores)), quota))
    assert places.cores_each(hosts, 0) == expected


@pytest.mark.parametrize("config", [
    replace(MLP, stage="1", batch_size=4), replace(GPT, layers=4, stage="3", recompute=True, recompute_interval=2)],
    ids=["mlp", "gpt"])
@pytest.mark.parametrize("overlap", ["off", "on"])
def test_kept_inputs_leave_and_come_back(group, config, overlap):
    """Of the MLP the first one's is its predecessor's output, which stays on the device."""
    config = replace(config, steps=2, accumulation=2, overlap=overlap)
    expected = run(config, group)[1]
    kept = replace(config, recompute=True, offload="checkpoints=cpu")
    job, found = run_as_planned(kept, group)
    assert found == expected and job.tiers[HOST].peak["kept_input"] > 0
    assert job.tiers[HOST].live_bytes == 0


@pytest.mark.parametrize("stage", STAGES[1:])
def test_replicas_sum_what_microbatches_have_left(group, stage):
    if group.size % 2:
        pytest.skip("an odd number of ranks makes no pairs")
    config = replace(GPT, stage=stage, shard_size=group.size // 2, accumulation=2, steps=2)
    expected = run(config, group)[1]
    for offload in offloads(stage):
        for overlap in ("off", "on"):
            assert run_as_planned(replace(config, offload=offload, overlap=overlap), group)[1] == expected


def test_a_frozen_unit_of_the_host_is_fetched_as_well(group):
    losses = []
    for offload in (None, ALL):
        job = prepare(replace(GPT, stage="3", steps=2, freeze=("h.0.*",), offload=offload), group)
        losses.append([record.loss for record in run_steps(job, steps=1).records + follows_its_plan(job).records])
    assert losses[0] == losses[1]


def test_a_full_host_is_said(group):
    config = replace(MLP, offload=CPU, steps=1)
    fits_its_host_exactly(config, group)


def test_a_full_host_is_said_where_it_is_full():
    ledger = Ledger(100, tier="host")
    with pytest.raises(OutOfDeviceMemory, match="out of host memory at start.*larger `host_memory`"):
        ledger.empty(101, np.uint8, "optim")


@pytest.mark.parametrize("wrong", ["copied", "lost"])
def test_a_move_that_goes_wrong_shows(group, wrong, monkeypatch):
    """The comparison above can fail."""
    def put(part, ledger):
        return np.copyto if wrong == "copied" else lambda total, values: None

    config = replace(MLP, stage="2", steps=2, accumulation=2)
    expected = run(config, group)[1]
    monkeypatch.setattr(moves, "_adding", put)
    assert run(replace(config, offload=CPU), group)[1] != expected
