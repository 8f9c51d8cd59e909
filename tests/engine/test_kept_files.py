"""Inputs that are kept in files: the same bits, and on each tier and link the bytes that were planned."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from mpizero.data import TeacherTask
from mpizero.engine import executor
from mpizero.engine.job import prepare
from mpizero.engine.task import Task
from mpizero.engine.trainer import run_steps
from mpizero.errors import ConfigError, StorageError
from mpizero.layout import HOST, NVME, flat
from mpizero.layout import files as layout_files
from mpizero.layout.files import BUFFERS, PAGE
from mpizero.memory import regions
from mpizero.nn.mlp import mlp
from mpizero.schedule.actions import UploadKept
from tests.engine.plans import fits_its_host_exactly, run_as_planned
from tests.engine.runs import GPT, MLP, run
from tests.memory.storages import poke

KEPT = "checkpoints=nvme"
ALL = f"params=nvme,optimizer=nvme,{KEPT}"
BLOCK = 2048  # elements: a page of float16
WIDE = replace(MLP, hidden=49, batch_size=100, steps=2)  # inputs of 4,900 elements: three blocks
TEXTS = replace(GPT, layers=3, steps=2, recompute=True)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    for module in (layout_files, regions):
        monkeypatch.setattr(module, "FILE_BLOCK", BLOCK)


def update_by_blocks(config, monkeypatch):
    """Plans of states in files: an update never takes more than a block of a file."""
    if "optimizer=nvme" in config.offload:
        monkeypatch.setattr(flat, "UPDATE_BLOCK", BLOCK)


@pytest.mark.parametrize("config, offload", [
    (replace(WIDE, stage="1", accumulation=4, recompute_interval=2), KEPT),
    (replace(WIDE, stage="3", accumulation=2, overlap="on", dtype="float32"), ALL),
    (replace(TEXTS, stage="3", layers=2, tiles=2, overlap="on"), KEPT),
], ids=["1-alone", "3-with-states", "3-tiles"])
def test_same_bits_and_as_planned(group, tmp_path, monkeypatch, config, offload):
    """Blocks that were written but not read, or read into another's place, would show."""
    config = replace(config, recompute=True)
    expected, kept = run(config, group)[1], replace(config, offload=offload, nvme=str(tmp_path))
    update_by_blocks(kept, monkeypatch)
    job, found = run_as_planned(kept, group)
    same = found == expected
    assert same and job.tiers[NVME].peak["kept_input"] > 0 == job.tiers[NVME].live["kept_input"]


def test_room_and_buffers_are_the_closed_forms(group, tmp_path):
    """2 bsz seq hd bytes of each block in float16, whole pages of the file; read and written in a few buffers that are
    there from the start. All microbatches and steps use the same room."""
    config = replace(TEXTS, dtype="float16", stage="3", accumulation=2, offload=KEPT, nvme=str(tmp_path))
    job = prepare(config, group)
    kept = 2 * 2 * 6 * 8
    assert job.storage.file.nbytes == os.fstat(job.storage.file.fd).st_size == 3 * PAGE
    assert job.tiers[HOST].live_bytes == BUFFERS * PAGE and job.tiers[NVME].live_bytes == 0
    run_steps(job)
    assert job.tiers[NVME].peak_bytes == 3 * kept and job.tiers[HOST].peak_bytes == BUFFERS * PAGE
    moved = [sum(record.nbytes for record in job.links[way].records) for way in ((HOST, NVME), (NVME, HOST))]
    assert moved == [2 * 3 * kept] * 2  # of the last step
    assert job.storage.file.nbytes == os.fstat(job.storage.file.fd).st_size and os.listdir(tmp_path) == []


def test_only_what_leaves_the_device_has_room(group, tmp_path):
    job = prepare(replace(TEXTS, recompute_interval=2, offload=KEPT, nvme=str(tmp_path)), group)
    assert list(job.storage.spaces) == [(1, "kept"), (3, "kept")]


def test_a_host_that_lacks_a_byte_is_said(group, tmp_path, monkeypatch):
    config = replace(TEXTS, stage="3", steps=1, offload=ALL, nvme=str(tmp_path))
    update_by_blocks(config, monkeypatch)
    fits_its_host_exactly(config, group)


def test_a_bit_that_flips_ends_the_run(group, tmp_path, monkeypatch):
    """Between the way there and the way back."""
    job = prepare(replace(TEXTS, offload=KEPT, nvme=str(tmp_path)), group)
    upload, space = executor.KEPT[UploadKept], job.storage.spaces[3, "kept"]

    def flipped(running, action):
        if action.segment == 3:
            poke(job.storage.file, space.offset + 9, lambda byte: byte ^ 1)
        return upload(running, action)

    monkeypatch.setitem(executor.KEPT, UploadKept, flipped)
    with pytest.raises(StorageError, match=rf"the file of rank {group.rank} in .* is damaged: .* \(the input of "
                                           rf"{job.wrapping.segments[3].name}\)"):
        run_steps(job, steps=1)


@pytest.mark.parametrize("told, words", [
    (None, "the model mlp does not tell how large they are: give its spec `activations`, or use checkpoints=cpu"),
    (5, r"the input of segment layers.1 weighs 60 bytes, but the model's `activations` say 30, for which a file"),
], ids=["not told", "wrong"])
def test_a_model_must_tell_what_it_keeps(group, tmp_path, told, words):
    model = mlp(hidden=10)
    table = None if told is None else mlp(hidden=told).spec.activations
    task = Task(replace(model, spec=replace(model.spec, activations=table)), TeacherTask(0))
    config = replace(MLP, recompute=True, offload=KEPT, nvme=str(tmp_path))
    with pytest.raises(ConfigError, match=words):
        run_steps(prepare(config, group, task=task))
