"""Training state is an object of its own: steps can be run in as many calls as one likes, with evaluations between."""

from __future__ import annotations

import math
from dataclasses import astuple, replace

import pytest

from mpizero.data import TeacherTask
from mpizero.engine.job import prepare
from mpizero.engine.task import Task
from mpizero.engine.trainer import evaluate_loss, run_steps
from mpizero.memory.kinds import ACTIVATION
from mpizero.nn.mlp import mlp
from tests.engine.runs import GPT, MLP, outcome

pytestmark = pytest.mark.usefixtures("few_held_out")


def untimed(record):
    """Without what depends on the clock, or on when peaks were reset."""
    return astuple(replace(record, seconds=0.0, per_second=0.0, seconds_by={}, peak_bytes=0))


@pytest.mark.parametrize("config", [replace(MLP, stage="3"),
                                    replace(GPT, stage="2", steps=4, accumulation=2, clip=0.5)], ids=["mlp", "gpt"])
def test_two_calls_are_one(group, config):
    whole, parts = prepare(config, group), prepare(config, group)
    records = run_steps(whole).records
    both = run_steps(parts, steps=2).records + run_steps(parts, steps=2).records
    assert [untimed(record) for record in both] == [untimed(record) for record in records]
    assert outcome(whole, []) == outcome(parts, [])
    updates = 4 - sum(row.skipped for row in records)
    assert (parts.state.step, parts.state.updates, parts.state.position) == (4, updates, 4 * parts.samples)
    assert run_steps(parts).records == []  # all steps of the settings have been run


def test_an_evaluation_between_steps_changes_nothing(group):
    plain, watched = prepare(MLP, group), prepare(MLP, group)
    run_steps(plain)
    losses = []
    run_steps(watched, lambda record: losses.append(evaluate_loss(watched)))
    assert outcome(plain, []) == outcome(watched, []) and len(set(losses)) > 1


def test_an_evaluation_leaves_nothing_behind(group):
    job = prepare(MLP, group)
    before = dict(job.ledger.live)
    evaluate_loss(job)
    assert job.ledger.live == before and job.ledger.live[ACTIVATION] == 0 and not job.executor.values


def test_the_held_out_loss_does_not_depend_on_the_batches(group):
    """Of 64 samples, in many batches of which the last is short, and in one."""
    losses = [evaluate_loss(prepare(replace(MLP, dtype="float32", batch_size=size), group)) for size in (3, 10, 64)]
    assert losses == pytest.approx([losses[0]] * 3, rel=1e-5)


def test_the_held_out_loss_is_a_mean_over_held_out_targets(group):
    """A GPT that has learnt nothing: a nat for each factor e of its 256 tokens. Training samples are not touched."""
    assert evaluate_loss(prepare(GPT, group)) == pytest.approx(math.log(256), abs=0.05)

    class HeldOut(TeacherTask):
        def train(self, samples):
            raise AssertionError("not to be evaluated")

    job = prepare(MLP, group, task=Task(mlp(hidden=10), HeldOut(MLP.seed)))
    assert evaluate_loss(job) == evaluate_loss(prepare(MLP, group))
