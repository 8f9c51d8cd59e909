"""States that rest in files: the same bits, and on each tier and link the bytes that were planned; and what is told
where files fail."""

from __future__ import annotations

import errno
import os
from dataclasses import replace

import pytest

from mpizero.engine import executor, storage
from mpizero.engine.job import prepare
from mpizero.engine.trainer import run_steps
from mpizero.engine.update import Update
from mpizero.errors import ConfigError, StorageError
from mpizero.layout import HOST, NVME, flat
from mpizero.layout import files as layout_files
from mpizero.layout.files import buffer_bytes
from mpizero.memory import regions
from mpizero.schedule.actions import OptimStep
from tests.engine.plans import fits_its_host_exactly, follows_its_plan, run_as_planned
from tests.engine.runs import GPT, MLP, dealt, run
from tests.memory.storages import poke

OPTIMIZER, ALL = "optimizer=nvme", "params=nvme,optimizer=nvme"
BLOCK = 2048  # elements: so that small units have several blocks
TINY = replace(MLP, hidden=96, steps=2, clip=0.5, loss_scale=1024.0)  # at which no gradient overflows


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    for module in (layout_files, regions):
        monkeypatch.setattr(module, "FILE_BLOCK", BLOCK)
    monkeypatch.setattr(flat, "UPDATE_BLOCK", BLOCK)  # of plans: an update never takes more than a block of a file


OVERLAP = {"overlap": "on", "backward_prefetch": 1}
SETTINGS = [("0", OPTIMIZER, {"dtype": "float32", "optimizer": "lion"}),
            ("1", OPTIMIZER, {"accumulation": 4, "no_sync": True, "sum_dtype": "float32"}),
            ("1-allreduce", OPTIMIZER, {"overlap": "on", "accumulation": 2, "loss_scale": None}),  # it skips one
            ("2", OPTIMIZER, {"overlap": "on", "accumulation": 4, "recompute": True}),
            ("2", OPTIMIZER, {"dtype": "bfloat16", "no_master_weights": True, "accumulation": 2}),
            ("3", OPTIMIZER, {"dtype": "float32", **OVERLAP}),
            ("3", ALL, {"accumulation": 2, "recompute": True, **OVERLAP}),
            ("3", ALL, {"dtype": "float32", "forward_prefetch": 1, "limit_all_gathers": 2, **OVERLAP}),
            ("3", ALL, {"dtype": "bfloat16", "no_master_weights": True}),
            ("3-broadcast", ALL, {"accumulation": 2, **OVERLAP})]


@dealt("stage, offload, options", SETTINGS)
def test_same_bits_and_as_planned(group, tmp_path, stage, offload, options):
    config = replace(TINY, **{"stage": stage, **({"loss_scale": None} if "dtype" in options else {}), **options})
    same = run_as_planned(replace(config, offload=offload, nvme=str(tmp_path)), group)[1] == run(config, group)[1]
    assert same


@pytest.mark.parametrize("stage, offload", [("2", OPTIMIZER), ("3", ALL), ("3-broadcast", ALL)])
def test_replicas_sum_what_microbatches_have_left(group, tmp_path, stage, offload):
    if group.size % 2:
        pytest.skip("an odd number of ranks makes no pairs")
    config = replace(GPT, stage=stage, shard_size=group.size // 2, accumulation=2, steps=2, overlap="on")
    same = run_as_planned(replace(config, offload=offload, nvme=str(tmp_path)), group)[1] == run(config, group)[1]
    assert same


def test_a_frozen_unit_of_a_file_is_fetched_as_well(group, tmp_path):
    config = replace(GPT, stage="3", steps=2, freeze=("h.0.*",))
    job = prepare(replace(config, offload=ALL, nvme=str(tmp_path)), group)
    records = run_steps(job, steps=1).records + follows_its_plan(job).records
    assert [record.loss for record in records] == [record.loss for record in run_steps(prepare(config, group)).records]


def test_room_and_buffers_are_the_closed_forms(group, tmp_path):
    job = prepare(replace(TINY, stage="3", offload=ALL, nvme=str(tmp_path)), group)
    assert os.fstat(job.storage.file.fd).st_size == job.storage.file.nbytes
    assert job.storage.file.nbytes == layout_files.file_bytes(layout_files.spaces(job.geometry))
    assert job.tiers[HOST].live_bytes == buffer_bytes(job.geometry) > 0
    assert job.tiers[NVME].live_bytes == sum(14 * (unit.shard.stop - unit.shard.start) for unit in job.state.units)
    assert os.listdir(tmp_path) == []


def test_a_host_that_lacks_a_byte_is_said(group, tmp_path):
    config = replace(TINY, stage="3", steps=1, offload=ALL, nvme=str(tmp_path))
    fits_its_host_exactly(config, group)


def test_debug_mode_changes_no_bit(group, tmp_path):
    config = replace(TINY, stage="3", steps=1, accumulation=2)
    files = replace(config, offload=ALL, nvme=str(tmp_path))
    same = run(files, group, debug=True)[1] == run(config, group)[1]
    assert same


def test_waiting_for_a_file_is_no_updating(group, tmp_path, monkeypatch):
    job = prepare(replace(TINY, stage="3", offload=ALL, nvme=str(tmp_path)), group)
    monkeypatch.setattr(executor, "optim_step",
                        lambda unit, update: job.links[NVME, HOST].note("grad", "", 0, 0, 0, 9.0))
    for _ in range(2):  # what was waited for before is none of it
        job.executor.run([OptimStep(0)], update=Update(job.optimizer, 0.0, 1, 1.0))
    assert -18 <= job.executor.spent[OptimStep] < -17


def test_a_bit_that_flips_ends_the_run(group, tmp_path):
    job = prepare(replace(TINY, stage="3", offload=ALL, nvme=str(tmp_path)), group)
    run_steps(job, steps=1)
    space = job.storage.spaces[1, "exp_avg"]
    poke(job.storage.file, space.offset + 9, lambda byte: byte ^ 1)
    with pytest.raises(StorageError, match=rf"the file of rank {group.rank} in .* is damaged: .* \(exp_avg of unit "
                                           f"{job.state.units[1].layout.name}"):
        run_steps(job, steps=1)


def test_a_full_disk_is_said_before_the_first_step(group, tmp_path, monkeypatch):
    config = replace(TINY, stage="2", offload=OPTIMIZER, nvme=str(tmp_path))
    together = group.size * prepare(config, group).storage.file.nbytes
    monkeypatch.setattr(storage, "free_bytes", lambda folder: together)
    prepare(config, group)
    monkeypatch.setattr(storage, "free_bytes", lambda folder: together - 1)
    with pytest.raises(StorageError, match=r"`nvme` .* has .* left on host .*, but what "
                                           rf"{group.size} ranks? there keep in files takes .* each\): make room"):
        prepare(config, group)


@pytest.mark.parametrize("call", ["posix_fallocate", "open"])
def test_all_ranks_say_what_one_cannot_have(group, tmp_path, monkeypatch, call):
    """The last rank alone fails."""
    real, last = getattr(os, call), group.rank == group.size - 1

    def failing(*arguments):
        if last and (call != "open" or str(arguments[0]) == str(tmp_path)):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(*arguments)

    monkeypatch.setattr(os, call, failing)
    with pytest.raises(StorageError, match="No space left on device"):
        prepare(replace(TINY, offload=OPTIMIZER, nvme=str(tmp_path)), group)


@pytest.mark.parametrize("options, words", [
    ({"offload": OPTIMIZER}, "name the folder for them with `nvme`"),
    ({"nvme": "/tmp"}, "`nvme` /tmp is a folder for files of `offload`, of which there are none"),
    ({"offload": "optimizer=cpu", "nvme": "/tmp"}, "of which there are none"),
    ({"offload": OPTIMIZER, "nvme": ""}, "`nvme` is empty: name a folder"),
])
def test_a_folder_and_states_for_it_go_together(group, options, words):
    with pytest.raises(ConfigError, match=words):
        prepare(replace(TINY, **options), group)
