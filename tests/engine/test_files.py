"""States that rest in files: the same bits, and on each tier and link the bytes that were planned."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mpizero.layout import files as layout_files
from mpizero.layout import flat
from mpizero.memory import regions
from tests.engine.plans import follows_its_plan, run_as_planned
from tests.engine.runs import GPT, MLP, run

NVME, ALL = "optimizer=nvme", "params=nvme,optimizer=nvme"
STAGES = ["0", "1", "1-allreduce", "2", "3", "3-broadcast"]
BLOCK = 2048  # elements: so that tiny units have several blocks


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    for module in (layout_files, regions):
        monkeypatch.setattr(module, "FILE_BLOCK", BLOCK)
    monkeypatch.setattr(flat, "UPDATE_BLOCK", BLOCK)  # of plans: an update never takes more than a block of a file


def offloads(stage):
    return [NVME, ALL] if stage.startswith("3") else [NVME]


SETTINGS = {
    "overlap": ({"accumulation": 2, "overlap": "on"}, STAGES),
    "plain": ({}, ["0", "2", "3", "3-broadcast"]),
    "sums": ({"accumulation": 4, "no_sync": True, "sum_dtype": "float32"}, ["1", "3"]),
    "32": ({"dtype": "float32", "accumulation": 4, "optimizer": "lion"}, ["0", "2", "3"]),
    "bf16": ({"dtype": "bfloat16", "no_master_weights": True, "accumulation": 2, "overlap": "on"}, ["2", "3"]),
    "sgd": ({"optimizer": "sgd", "momentum": 0.0, "dtype": "float32"}, ["3"]),
    "recompute": ({"recompute": True, "overlap": "on", "backward_prefetch": 1, "accumulation": 2}, ["2", "3"]),
    "prefetch": ({"overlap": "on", "backward_prefetch": 1, "forward_prefetch": 1, "limit_all_gathers": 2}, ["3"]),
}


@pytest.mark.parametrize("stage, options", [
    pytest.param(stage, options, id=f"{name}-{stage}") for name, (options, stages) in SETTINGS.items()
    for stage in stages])
def test_same_bits_and_as_planned(group, tmp_path, stage, options):
    config = replace(MLP, hidden=90, stage=stage, steps=2, clip=0.5, **options)
    expected = run(config, group)[1]
    for offload in offloads(stage):
        assert run_as_planned(replace(config, offload=offload, nvme=str(tmp_path)), group)[1] == expected
