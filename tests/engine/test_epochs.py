"""Runs whose length is a number of epochs: each training sample is seen once in each, whatever the ranks."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from mpizero.comm import all_gather_values
from mpizero.data import TeacherTask
from mpizero.engine.config import TrainConfig
from mpizero.engine.job import prepare
from mpizero.engine.resolve import resolve
from mpizero.engine.task import Task
from mpizero.engine.trainer import run_steps
from mpizero.errors import ConfigError, DataError
from mpizero.nn.mlp import mlp
from mpizero.optim import learning_rate
from tests.engine.runs import MLP
from tests.golden.text import pseudo_text

EPOCHS = replace(MLP, dtype="float32", steps=None, batch_size=3, accumulation=2, epochs=2.0)


class Finite(TeacherTask):
    """Epochs of 25 samples. Notes which were asked for; pads ask for sample 0."""

    epoch_size = 25

    def __init__(self, seed=0):
        super().__init__(seed)
        self.seen = []

    def train_batch(self, samples):
        self.seen += samples[samples >= 0].tolist()
        return super().train_batch(samples)


@pytest.mark.parametrize(("epochs", "samples"), [(1.0, 25), (2.0, 50), (0.5, 13), (0.1, 3), (1.2, 30), (1e-9, 1)])
def test_each_sample_is_seen_once_an_epoch(group, epochs, samples):
    data = Finite()
    job = prepare(replace(EPOCHS, epochs=epochs), group, task=Task(mlp(hidden=10), data))
    assert job.settings.steps == -(-samples // job.samples) and job.settings.end == samples
    progress = run_steps(job)
    assert len(progress.records) == job.settings.steps
    seen = np.full(60, -1.0)
    seen[:len(data.seen)] = data.seen
    everywhere = all_gather_values(group, seen).ravel()
    assert Counter(everywhere[everywhere >= 0].tolist()) == Counter(range(samples))
    assert run_steps(job, steps=3).records == []  # no step beyond the end


def test_the_last_step_is_the_mean_of_what_is_left(group):
    """10 samples in one step of any size."""
    losses = []
    for batch_size in (10, 16):
        data = Finite()
        data.epoch_size = 10
        config = replace(EPOCHS, epochs=1.0, batch_size=batch_size, accumulation=1)
        (record,) = run_steps(prepare(config, group, task=Task(mlp(hidden=10), data))).records
        losses.append((record.loss, record.grad_norm))
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


def test_the_learning_rate_follows_the_steps_that_epochs_come_to(group):
    job = prepare(replace(EPOCHS, epochs=4.0, warmup=2, batch_size=1, accumulation=1), group,
                  task=Task(mlp(hidden=10), Finite()))
    steps = -(-100 // group.size)
    rates = [record.lr for record in run_steps(job).records]
    assert rates == [learning_rate(step, base=MLP.lr or 1e-2, warmup=2, total=steps) for step in range(steps)]


def test_text_in_epochs(group, tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "a.txt"
    path.write_bytes(pseudo_text())
    config = TrainConfig(model="gpt", layers=1, d_model=8, heads=2, context=16, dtype="float32", epochs=1,
                         batch_size=20, data=str(path))
    job = prepare(config, group)
    size, samples = job.task.data.epoch_size, 20 * group.size
    assert 200 < size < 240 and job.settings.steps == -(-size // samples)  # of 4,000 bytes, 5 % held out
    assert job.settings.optim.warmup == job.settings.steps // 10
    records = run_steps(job).records
    assert len(records) == job.settings.steps and job.state.position >= size > job.state.position - samples
    assert prepare(replace(config, epochs=None, steps=3), group).task.data.epoch_size is None


def test_what_epochs_cannot_be():
    for wrong, says in ((dict(epochs=2.0, steps=50), "`epochs` 2 and `steps` 50 both say how long"),
                        (dict(epochs=0.0, steps=None), "`epochs` 0.0 is impossible: it must be above 0"),
                        (dict(epochs=float("nan"), steps=None), "`epochs` nan is impossible"),
                        (dict(epochs=float("inf"), steps=None), "`epochs` inf is impossible")):
        with pytest.raises(ConfigError, match=says):
            resolve(replace(MLP, **wrong))


def test_data_without_an_end(group):
    with pytest.raises(DataError, match=r"`epochs` cannot be counted, since samples .* without end \(teacher task"):
        prepare(replace(EPOCHS, epochs=1.0), group)


def test_a_warm_up_that_is_longer_than_the_epochs(group):
    steps = -(-50 // (6 * group.size))
    with pytest.raises(ConfigError, match=f"`warmup` 40 is longer than `steps` {steps}: shorten it"):
        prepare(replace(EPOCHS, warmup=40), group, task=Task(mlp(hidden=10), Finite()))
