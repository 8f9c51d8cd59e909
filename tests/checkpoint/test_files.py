"""A checkpoint is the same wherever states rest: saved from files it is gone on with in memory, and back."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mpizero.checkpoint.format import part_name
from mpizero.checkpoint.init import init_weights
from mpizero.checkpoint.save import save
from mpizero.engine.job import prepare
from mpizero.layout import files as layout_files
from mpizero.memory import regions
from tests.checkpoint.jobs import CONFIGS, begin, go_on, kept, numbers

ALL = "params=nvme,optimizer=nvme"


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    for module in (layout_files, regions):
        monkeypatch.setattr(module, "FILE_BLOCK", 2048)


@pytest.mark.parametrize("name, stage, offload", [
    ("mlp-float16", "3", ALL), ("mlp-float32", "3", ALL), ("mlp-float16", "2", "optimizer=nvme"),
    ("mlp-float32", "0", "optimizer=nvme"), ("mlp-bfloat16", "3-broadcast", ALL)])
def test_from_files_to_memory_and_back(group, shared_path, tmp_path, name, stage, offload):
    memory = replace(CONFIGS[name], stage=stage, hidden=96)
    files = replace(memory, offload=offload, nvme=str(tmp_path))
    here, there = begin(memory, group, 2), begin(files, group, 2)
    paths = [save(job, shared_path / f"n{group.size}-{index}") for index, job in enumerate((here, there))]
    same = _numbers(paths[0], group.rank) == _numbers(paths[1], group.rank)
    assert same
    for config in (memory, files):
        late = go_on(config, group, paths[config is memory]).job
        same = numbers(late) == numbers(here), kept(late) == kept(there if config is files else here)
        assert same == (True, True)


def _numbers(path, rank):
    return (path / f"{part_name(rank)}.bin").read_bytes()


def test_weights_to_start_from_are_read_into_files(group, shared_path, tmp_path):
    config = replace(CONFIGS["mlp-float16"], stage="3", hidden=96)
    path = save(begin(config, group, 2), shared_path / f"n{group.size}")
    jobs = [prepare(replace(config, seed=3, **options), group)
            for options in ({}, {"offload": ALL, "nvme": str(tmp_path)})]
    for job in jobs:
        init_weights(job, path)
    same = kept(jobs[0]) == kept(jobs[1])
    assert same
