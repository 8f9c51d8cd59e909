"""Data of one's own: how many of its targets count, and what it may not be."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mpizero.data import Batch, TeacherTask
from mpizero.engine.job import prepare
from mpizero.engine.samples import PART, count_targets
from mpizero.engine.task import Task
from mpizero.engine.trainer import evaluate_loss, run_steps
from mpizero.errors import DataError
from mpizero.nn.mlp import mlp
from tests.engine.runs import MLP


def test_data_that_the_model_cannot_read(world):
    with pytest.raises(DataError, match=r"shape \(32,\), but the model reads 8 features"):
        run_steps(prepare(MLP, world, task=Task(mlp(inputs=8), TeacherTask(0))))


class Masked(TeacherTask):
    """Every third sample has no target."""

    claimed = None  # what `count` returns instead of the truth

    def train(self, samples):
        x, y = super().train(samples)
        return Batch(x, np.where(samples % 3 == 0, -1, y))

    def count(self, samples):
        return int((samples % 3 != 0).sum()) if self.claimed is None else self.claimed


def test_gradients_are_divided_by_the_targets_that_count(group):
    """The same targets in another number of samples: masked ones weigh nothing, so the mean is that of the others
    alone."""
    config = replace(MLP, dtype="float32", steps=1, batch_size=6, clip=None)
    masked = run_steps(prepare(config, group, task=Task(mlp(hidden=10), Masked(0)))).records[0]

    class Others(TeacherTask):
        """The samples that are not masked."""

        def train(self, samples):
            return super().train(samples // 2 * 3 + samples % 2 + 1)

    plain = run_steps(prepare(replace(config, batch_size=4), group, task=Task(mlp(hidden=10), Others(0)))).records[0]
    assert masked.loss == pytest.approx(plain.loss, rel=1e-6)
    assert masked.grad_norm == pytest.approx(plain.grad_norm, rel=1e-5)


def test_a_count_that_is_not_that_of_the_batches(group):
    data = Masked(0)
    data.claimed = 3
    with pytest.raises(DataError, match=r"step 1: the loss counted \d+ targets, but Dataset.count gave 3,"):
        run_steps(prepare(replace(MLP, batch_size=6), group, task=Task(mlp(hidden=10), data)))


@pytest.mark.parametrize("count", [2.5, 36.0, -3, None, "36"])
def test_a_count_that_is_no_number_of_targets(world, count):
    class Counted(TeacherTask):
        def count(self, samples):
            return count

    with pytest.raises(DataError, match=rf"Counted\.count gave {count!r}, by which gradients are divided: let it give"):
        run_steps(prepare(MLP, world, task=Task(mlp(hidden=10), Counted(0))))


COUNTS_DIFFER = """
import mpizero
from mpizero.comm import run_main, start
from mpizero.data import TeacherTask
from mpizero.engine.job import TrainConfig, prepare
from mpizero.engine.task import Task
from mpizero.engine.trainer import run_steps
from mpizero.nn.mlp import mlp

def main():
    world = start()
    data = TeacherTask(0)
    data.count = lambda samples: samples.size + (world.rank == 1)
    run_steps(prepare(TrainConfig(hidden=10, steps=4, batch_size=3), world, task=Task(mlp(hidden=10), data)))

run_main(main)
"""


@pytest.mark.launches
def test_a_count_that_ranks_give_differently(launch):
    end = launch(2, "-c", COUNTS_DIFFER)
    assert end.status == 2 and end.stderr.count("mpizero: error: ") == 1 and "Traceback" not in end.output
    assert "step 1: the loss counted 6 targets, but Dataset.count gave 7, by which rank 1 divided" in end.stderr


@pytest.mark.parametrize("size", [0, -1, 2.5, None])
def test_a_dataset_that_holds_nothing_out(world, size):
    data = TeacherTask(0)
    data.eval_size = size
    with pytest.raises(DataError, match=rf"TeacherTask\.eval_size is {size}, but .* an evaluation needs one"):
        prepare(MLP, world, task=Task(mlp(hidden=10), data))


@pytest.mark.parametrize("side", ["train", "held_out"])
@pytest.mark.parametrize(("inputs", "targets"), [(1, 0), (0, 1), (1, 1)])
def test_batches_of_another_size(world, side, inputs, targets):
    class Longer(TeacherTask):
        """Gives more than it was asked for, where it is asked for more than one."""

        def _longer(self, samples):
            x, y = super().train(samples)
            more = samples.size > 1
            return Batch(np.repeat(x, 1 + more * inputs, axis=0), np.repeat(y, 1 + more * targets))

    setattr(Longer, side, Longer._longer)
    says = rf"Longer\.\w+ was asked for 3 samples and gave {3 + 3 * inputs} inputs and {3 + 3 * targets} targets"
    job = prepare(replace(MLP, steps=1), world, task=Task(mlp(hidden=10), Longer(0)))
    with pytest.raises(DataError, match=says):
        run_steps(job)
        evaluate_loss(job)


def test_a_batch_that_no_host_can_hold(world):
    with pytest.raises(DataError, match="`batch_size` 1,099,511,627,775 means 149,533,581,377,400 bytes a batch, more"):
        prepare(replace(MLP, batch_size=2**40 - 1), world)


def test_a_large_global_batch_is_counted_in_parts():
    class Parts(TeacherTask):
        sizes = []

        def count(self, samples):
            self.sizes.append(samples.size)
            return super().count(samples)

    data = Parts(0)
    assert count_targets(data, 5, 3 * PART + 10) == 3 * PART + 5 and data.sizes == [PART, PART, PART, 5]
    assert count_targets(data, 5, 5) == 0


def test_data_that_differs_between_ranks(group):
    task = Task(mlp(hidden=10), TeacherTask(seed=int(group.rank > 1)))
    if group.size <= 2:
        prepare(MLP, group, task=task)
    else:
        with pytest.raises(DataError, match=r"holds something else on ranks? .* than on"):
            prepare(MLP, group, task=task)
