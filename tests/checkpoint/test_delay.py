"""Saving ends the update that is under way: so a run that goes on is the one that was saved at the same steps."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mpizero.checkpoint.alike import changes
from mpizero.checkpoint.read import open_checkpoint
from mpizero.checkpoint.run import begin_checkpoints
from mpizero.checkpoint.save import save
from mpizero.engine import trainer
from mpizero.engine.job import prepare
from mpizero.engine.trainer import run_steps
from mpizero.errors import CheckpointError
from tests.checkpoint.jobs import go_on, numbers
from tests.engine.runs import MLP, outcome, run

LATE = replace(MLP, steps=6, batch_size=8, offload="optimizer=cpu", delayed_update_after=1)


@pytest.mark.parametrize("name, options", [
    ("0", {"stage": "0"}), ("2", {"stage": "2", "overlap": "on"}),
    ("3", {"stage": "3", "offload": "params=cpu,optimizer=cpu", "dtype": "float32"})])
def test_same_bits_as_the_run_that_saved_at_the_same_steps(group, shared_path, name, options):
    config = replace(LATE, **options, save=str(shared_path / f"{name}-{group.size}"), save_every=3)
    whole = prepare(config, group)
    checkpoints = begin_checkpoints(whole, "a1")
    held = []

    def after(record):
        if whole.state.step == 3:
            held.append(whole.executor.updating)
        if checkpoints.after_step():
            held.append(whole.executor.updating)

    records = run_steps(whole, after).records
    assert held == [True, False, False]
    late = go_on(replace(config, save=None, save_every=None), group, shared_path / f"{name}-{group.size}"
                 / "step-00000003").job
    assert [record.loss for record in run_steps(late).records] == [record.loss for record in records[3:]]
    assert outcome(late, []) == outcome(whole, []) and numbers(late) == numbers(whole)
    assert numbers(whole) != numbers(run(replace(config, save=None, save_every=None), group)[0])


def test_what_a_save_holds_is_of_all_updates(group, shared_path):
    """As of a run that has ended there."""
    job, ended = prepare(LATE, group), prepare(LATE, group)
    for _ in range(3):
        trainer._one_step(job, trainer.Progress(), lambda: 0)
    save(job, shared_path / str(group.size))
    run_steps(ended, steps=3)
    assert numbers(job) == numbers(ended)


@pytest.mark.parametrize("delay", [None, 2])
def test_a_run_goes_on_with_the_same_delay(group, shared_path, delay):
    folder = shared_path / str(group.size)
    job = prepare(LATE, group)
    save(job, folder)
    with pytest.raises(CheckpointError, match=f"`delayed_update_after` is {delay}, but was 1"):
        go_on(replace(LATE, delayed_update_after=delay), group, folder)


@pytest.mark.parametrize("delay, told", [(1, ["save-every not given -> 2", "eval-every 0 -> 3"]), (None, [])])
def test_other_ends_of_updates_are_told(group, shared_path, delay, told):
    config = replace(LATE, delayed_update_after=delay)
    path = save(prepare(config, group), shared_path / str(group.size))
    other = prepare(replace(config, save="there", save_every=2, eval_every=3), group)
    assert changes(other, open_checkpoint(path)) == told
