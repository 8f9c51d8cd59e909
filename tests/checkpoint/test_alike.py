"""What may differ when a run goes on, what is told, and what is refused with both values."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from mpizero.checkpoint.alike import FREE, TOLD, changes
from mpizero.checkpoint.contents import read_contents
from mpizero.checkpoint.read import Checkpoint
from mpizero.checkpoint.resume import resume
from mpizero.checkpoint.save import save
from mpizero.comm import TrafficLog
from mpizero.data import TeacherTask
from mpizero.engine.alike import flat
from mpizero.engine.config import TrainConfig
from mpizero.engine.job import prepare
from mpizero.engine.resolve import resolve
from mpizero.engine.task import Task
from mpizero.engine.trainer import run_steps
from mpizero.errors import CheckpointError
from mpizero.nn.mlp import mlp
from tests.engine.runs import GPT, MLP

# Every setting is of one kind. A new one that changes no result belongs into FREE, one that may change into TOLD.
FIXED = {"model", "hidden", "layers", "d_model", "heads", "context", "vocab", "tied", "optimizer", "weight_decay",
         "dtype", "seed", "inputs", "classes", "betas", "momentum", "decay", "no_master_weights", "freeze",
         "reduce_dtype", "sum_dtype", "loss_scale", "growth_interval"}


@pytest.fixture
def group(world):
    """Rank 0 alone."""
    return world.subgroup([0], "rank 0", log=TrafficLog())


def test_every_setting_is_of_one_kind():
    names = {name for config in (MLP, GPT) for name in flat(resolve(config))}
    assert names - set(FREE) - set(TOLD) <= FIXED and not FIXED & {*FREE, *TOLD} and not set(FREE) & set(TOLD)
    assert set(FREE) | set(TOLD) <= names


@pytest.mark.parametrize("config, change, said", [
    (MLP, {"dtype": "float32"}, "`dtype` is float32, but was float16"),
    (MLP, {"seed": 3}, f"`seed` is 3, but was {MLP.seed}"),
    (MLP, {"optimizer": "adamw"}, "`optimizer` is adamw, but was adam"),
    (MLP, {"hidden": 11}, "`hidden` is 11, but was 10"),
    (MLP, {"weight_decay": 0.5}, "`weight_decay` is 0.5, but was 0.0"),
    (GPT, {"d_model": 16}, "`d_model` is 16, but was 8"), (GPT, {"context": 7}, "`context` is 7, but was 6"),
    (GPT, {"epochs": 1.0, "steps": None}, "`epochs` is 1.0, but was not given"),
    (GPT, {"data": fields.__code__.co_filename}, "`data` has the fingerprint .* was trained on"),
    (MLP, {"hidden": 12, "seed": 1, "dtype": "float32", "weight_decay": 1.0}, "; 5 more. Give the same, or")])
def test_what_would_change_the_result_is_refused(group, tmp_path, config, change, said):
    path = save(prepare(config, group), tmp_path)
    with pytest.raises(CheckpointError, match=said):
        resume(prepare(replace(config, **change), group), path)


@pytest.mark.parametrize("change, said", [
    ({}, ""), ({"lr": 0.001}, "; lr 0.01 -> 0.001"), ({"steps": 9, "warmup": 2}, "; steps 4 -> 9; warmup 0 -> 2"),
    ({"clip": 1.0}, "; clip not given -> 1.0"),
    ({"batch_size": 5, "accumulation": 2}, "; batch-size 3 -> 5; accumulation 1 -> 2; samples a step 3 -> 10"),
    ({"stage": "3", "no_sync": True, "keep_last_unit": True, "device_memory": "1GiB", "check_replicas": 3,
      "recompute": True, "recompute_interval": 2}, "")])
def test_what_may_change_is_told(group, tmp_path, change, said):
    job = prepare(MLP, group)
    run_steps(job, steps=1)
    path = save(job, tmp_path)
    found = resume(prepare(replace(MLP, **change), group), path)
    line = f"resumed from {path} (1 rank, stage 2) at step 1 of {change.get('steps', 4)}"
    assert found.said.startswith(line + said) and (said or found.said == line)
    run_steps(found.job)


def test_another_number_of_ranks_makes_another_global_batch(group, tmp_path):
    job = prepare(MLP, group)
    path = save(job, tmp_path)
    assert "samples a step" not in resume(prepare(MLP, group), path).said
    checkpoint = Checkpoint(read_contents(path))
    checkpoint.about["world_size"] = 4
    assert changes(prepare(MLP, group), checkpoint) == ["samples a step 12 -> 3"]
    checkpoint.about["settings"]["global_batch"] = 7
    assert changes(prepare(MLP, group), checkpoint)[-1] == "samples a step 7 -> 3"


def test_a_checkpoint_without_a_setting_is_gone_on_with(group, tmp_path):
    """One of an older version, that did not have it yet."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mpizero.checkpoint.save.flat", lambda settings: {"dtype": "float16"})
        path = save(prepare(MLP, group), tmp_path)
    assert resume(prepare(MLP, group), path).said.endswith("at step 0 of 4")


def test_a_model_of_ones_own(group, tmp_path):
    """Names, shapes and states are compared, whatever the settings say."""
    path = save(prepare(MLP, group), tmp_path)
    with pytest.raises(CheckpointError, match=r"parameter \S+ has shape \(32, 11\) in this model, but \(32, 10\) in /"):
        resume(prepare(MLP, group, task=Task(mlp(hidden=11), TeacherTask(MLP.seed))), path)
    with pytest.raises(CheckpointError, match="fingerprint"):
        resume(prepare(MLP, group, task=Task(mlp(hidden=10), TeacherTask(1))), path)


def test_other_states(group, tmp_path):
    job = prepare(MLP, group)
    for unit in job.state.units:
        unit.states["momentum"] = unit.states.pop("exp_avg_sq")
    path = save(job, tmp_path)
    with pytest.raises(CheckpointError, match=r"holds master \(float32\), exp_avg \(float32\), momentum .* of \S+, but "
                                              r"this run keeps .* exp_avg_sq \(float32\) \(adam\)"):
        resume(prepare(MLP, group), path)


def test_flags_that_need_each_other():
    for wrong, said in (({"save_every": 3}, "`save_every` 3 needs `save`"), ({"keep": 1}, "`keep` 1 needs `save`"),
                        ({"save": ""}, "`save` is empty"), ({"resume": ""}, "`resume` is empty: name a checkpoint"),
                        ({"save": "D", "keep": 0}, "`keep` 0 is impossible: it must be at least 1"),
                        ({"save": "D", "save_every": 0}, "`save_every` 0 is impossible")):
        with pytest.raises(ValueError, match=said):
            resolve(TrainConfig(**wrong))
