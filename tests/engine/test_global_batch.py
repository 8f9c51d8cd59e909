"""A global batch is a number of samples, whatever the ranks: what is left over is pads, which weigh nothing."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from mpizero.comm import all_gather_values
from mpizero.console import header
from mpizero.data import Batch, TeacherTask, global_samples, until
from mpizero.data.sampler import PAD
from mpizero.engine.config import TrainConfig
from mpizero.engine.job import prepare
from mpizero.engine.resolve import resolve
from mpizero.engine.task import Task
from mpizero.engine.trainer import run_steps
from mpizero.errors import ConfigError
from mpizero.nn.mlp import mlp
from tests.engine.plans import follows_its_plan
from tests.engine.runs import GPT, MLP, distance, run
from tests.engine.test_epochs import Finite

SINGLE = replace(MLP, dtype="float32", steps=3)


class Seen(TeacherTask):
    """Notes the samples that are asked for, batch by batch."""

    def __init__(self):
        super().__init__(0)
        self.batches = []

    def train_batch(self, samples):
        self.batches.append(samples.tolist())
        return super().train_batch(samples)


@pytest.mark.parametrize(("total", "most", "ranks", "accumulation", "divided"), [
    (37, 16, 4, None, (10, 1)), (37, 16, 1, None, (13, 3)), (37, 4, 4, None, (4, 3)), (5, 16, 8, None, (1, 1)),
    (5, 16, 4, 2, (1, 2)), (64, 16, 4, None, (16, 1)), (65, 16, 4, None, (9, 2)), (3, 1, 4, 4, (1, 4)),
    (1, 16, 1, None, (1, 1)), (128, 16, 4, 2, (16, 2)),
])
def test_a_batch_is_divided(total, most, ranks, accumulation, divided):
    config = TrainConfig(global_batch=total, batch_size=most, accumulation=accumulation)
    settings = resolve(config, ranks=ranks)
    assert (settings.batch_size, settings.step.accumulation) == divided
    assert settings.samples(ranks) == total <= ranks * divided[0] * divided[1] and divided[0] <= most


def test_numbers_that_contradict_each_other():
    says = (r"`global_batch` 65 is more than 4 ranks \* `batch_size` 8 \* `accumulation` 2 = 64 samples: use "
            "`batch_size` 9, or `accumulation` 3, or leave `accumulation` out")
    with pytest.raises(ConfigError, match=says):
        resolve(TrainConfig(global_batch=65, batch_size=8, accumulation=2), ranks=4)
    for cured in (dict(batch_size=9), dict(accumulation=3), dict(accumulation=None)):
        config = replace(TrainConfig(global_batch=65, batch_size=8, accumulation=2), **cured)
        assert resolve(config, ranks=4).samples(4) == 65
    with pytest.raises(ConfigError, match="`global_batch` 0 is impossible: it must be at least 1"):
        resolve(TrainConfig(global_batch=0))
    with pytest.raises(ConfigError, match="`accumulation` 65536 is too many"):
        resolve(TrainConfig(global_batch=2**20), ranks=1)


def test_five_samples_on_eight_ranks():
    """Each is somebody's, and the other three ranks have one pad."""
    dealt = [until(global_samples(35, 0, rank, world_size=8, batch_size=1), 40).tolist() for rank in range(8)]
    assert dealt == [[35], [36], [37], [38], [39], [PAD], [PAD], [PAD]]


@pytest.mark.parametrize(("total", "accumulation"), [(37, None), (5, 2), (5, None), (1, 4), (12, 3)])
def test_each_sample_is_seen_once_by_equal_batches(group, total, accumulation):
    data = Seen()
    job = prepare(replace(SINGLE, batch_size=16, global_batch=total, accumulation=accumulation), group,
                  task=Task(mlp(hidden=10), data))
    progress = run_steps(job)
    sizes = {len(batch) for batch in data.batches}
    assert sizes == {job.settings.batch_size} and job.state.position == job.samples * 3 == total * 3
    mine = [sample for batch in data.batches for sample in batch if sample != PAD]
    every = all_gather_values(group, np.array(mine + [-1] * (3 * total + 3 - len(mine)), float)).ravel()
    assert Counter(every[every >= 0].tolist()) == Counter(range(3 * total))
    assert all(round(record.per_second * record.seconds) == total for record in progress.records)  # pads are no work


@pytest.mark.parametrize(("config", "total", "accumulation"), [
    (SINGLE, 37, None), (SINGLE, 5, 2), (replace(GPT, clip=0.3), 5, 2), (GPT, 3, None)])
def test_the_curve_does_not_depend_on_the_ranks(group, config, total, accumulation):
    """One process without pads computes the same batch at once."""
    outcomes = []
    for stage in ("0", "3"):
        job, outcome = run(replace(config, stage=stage, batch_size=16, global_batch=total, accumulation=accumulation),
                           group)
        follows_its_plan(job)
        outcomes.append(outcome)
    assert outcomes[0] == outcomes[1]
    one = group.subgroup([0], "one process")
    if one is not None:
        assert distance(outcomes[0], run(replace(config, batch_size=total, stage="0"), one)[1]) < 1e-5


def test_what_a_run_says_of_its_batch(group):
    job = prepare(replace(SINGLE, global_batch=37, accumulation=1, batch_size=37, freeze=("layers.0.*",)), group)
    said = " ".join(header(job).split())
    each = {1: 37, 2: 19, 3: 13, 4: 10}[group.size]
    pads = {1: "", 2: " and 1 pad that weighs nothing", 3: " and 2 pads that weigh nothing",
            4: " and 3 pads that weigh nothing"}[group.size]
    assert f"{each} samples a rank x 1 microbatch = 37 a step{pads}" in said and "(330 frozen) in 5 units" in said


def test_more_samples_than_microbatches_take_at_once(group):
    """One of each rank at a time is 20 at once."""
    parts = run(replace(SINGLE, global_batch=20, batch_size=1), group)[1]
    whole = run(replace(SINGLE, global_batch=20, batch_size=20), group)[1]
    assert distance(parts, whole) < 1e-5


def test_ranks_never_have_unequal_numbers_of_batches(group):
    """25 samples twice, in batches of 7: whatever a rank's share, all end after the same step, and each sample was
    seen once an epoch."""
    data = Finite()
    job = prepare(replace(SINGLE, steps=None, epochs=2.0, batch_size=2, global_batch=7), group,
                  task=Task(mlp(hidden=10), data))
    assert job.settings.steps == len(run_steps(job).records) == 8
    steps = all_gather_values(group, np.array([job.state.step, job.state.position], float))
    assert (steps == [8, 56]).all()
    every = all_gather_values(group, np.array(data.seen + [-1] * (60 - len(data.seen)), float)).ravel()
    assert Counter(every[every >= 0].tolist()) == Counter(range(50))


# -- masks ------------------------------------------------------------------------------------------------------------


class Tokens(TeacherTask):
    """Sample i has i % 8 valid ones of seven targets: its features are seven rows."""

    targets_per_sample = 7

    def __init__(self, offset=0):
        super().__init__(0)
        self.offset = offset

    def train(self, samples):
        x, y = super().train((samples[:, None] * 7 + np.arange(7)).ravel())
        valid = np.arange(7) < (samples[:, None] + self.offset) % 8
        return Batch(x.reshape(samples.size, 7, 32), np.where(valid, y.reshape(samples.size, 7), -1))

    def held_out(self, samples):
        x, y = super().held_out(samples)
        return Batch(np.repeat(x[:, None], 7, axis=1), np.repeat(y[:, None], 7, axis=1))

    def count(self, samples):
        return int(((samples[samples >= 0] + self.offset) % 8).sum())


class Rows:
    """The MLP on rows of samples: (n, 7, k) as (7 n, k) in front of its first layer."""

    def __init__(self, segment):
        self.segment, self.name = segment, segment.name

    def forward(self, params, x, mem):
        return self.segment.forward(params, x.reshape(-1, x.shape[-1]), mem)

    def backward(self, *arguments):
        return self.segment.backward(*arguments)


def rows():
    model = mlp(hidden=10)
    return replace(model, segments=(Rows(model.segments[0]), *model.segments[1:]))


@pytest.mark.parametrize(("stage", "total", "accumulation", "offset"), [("0", 5, 2, 0), ("2", 8, 4, 3), ("3", 3, 1, 6)])
def test_the_mean_is_over_all_valid_targets_of_all_ranks_and_microbatches(group, stage, total, accumulation, offset):
    """Ranks and microbatches with 0 to 7 valid tokens a sample: losses, gradients and weights are those of one process
    that has the valid rows alone."""
    config = replace(SINGLE, stage=stage, steps=1, lr=1e-3, batch_size=16)
    here = run(replace(config, global_batch=total, accumulation=accumulation), group,
               task=Task(rows(), Tokens(offset)))[1]
    valid = [sample * 7 + row for sample in range(total) for row in range((sample + offset) % 8)]

    class Valid(TeacherTask):
        """Those rows, one after the other."""

        def train(self, samples):
            return super().train(np.array(valid)[samples])

    one = group.subgroup([0], "one process")
    if one is not None:
        there = run(replace(config, batch_size=len(valid), stage="0"), one, task=Task(mlp(hidden=10), Valid(0)))[1]
        assert distance(here, there) < 1e-5


def test_a_step_without_any_valid_target_changes_nothing_but_decay(group):
    """0 / 0 is 0: the loss and its gradient."""
    record = run_steps(prepare(replace(SINGLE, steps=1, global_batch=1), group, task=Task(rows(), Tokens()))).records[0]
    assert (record.loss, record.grad_norm) == (0.0, 0.0)
