from __future__ import annotations

import numpy as np
import pytest

from mpizero.data import IGNORE, Batch, TeacherTask, load
from mpizero.data.teacher import MARGIN
from tests.data.mlp_reference import train


def test_shapes_and_types():
    x, y = TeacherTask(0).train_batch(np.arange(10))
    assert (x.shape, x.dtype, y.shape, y.dtype) == ((10, 32), np.float32, (10,), np.int64)
    assert x.flags.c_contiguous and x.flags.writeable and y.min() >= 0 and y.max() < 16
    assert TeacherTask(0, inputs=5, classes=3).train_batch(np.arange(7))[0].shape == (7, 5)


@pytest.mark.parametrize("method", ["train_batch", "eval_batch"])
def test_sample_depends_on_seed_and_number_only(method):
    task = TeacherTask(7)
    x, y = getattr(task, method)(np.arange(1000))
    order = np.random.default_rng(0).permutation(1000)
    for n in (1, 2, 3, 16, 999):
        for start in range(0, 1000, max(n, 37)):
            some = order[start : start + n]
            xs, ys = getattr(TeacherTask(7), method)(some)
            assert xs.tobytes() == x[some].tobytes() and ys.tolist() == y[some].tolist()


def test_seeds_and_splits_differ():
    task, first = TeacherTask(0), np.arange(50)
    x, _ = task.train_batch(first)
    for other, _ in (TeacherTask(1).train_batch(first), task.eval_batch(first), task.train_batch(first + 50)):
        assert np.intersect1d(x, other).size == 0
    assert TeacherTask(0).fingerprint != TeacherTask(1).fingerprint and 0 <= TeacherTask(1).fingerprint < 2**53


def test_pads_have_no_target():
    x, y = TeacherTask(0).train_batch(np.array([3, -1, 4]))
    assert y[1] == IGNORE and np.isfinite(x).all()
    assert y[[0, 2]].tolist() == TeacherTask(0).train_batch(np.array([3, 4]))[1].tolist()
    assert TeacherTask(0).train_batch(np.empty(0, np.int64))[0].shape == (0, 32)


@pytest.mark.parametrize("seed", range(20))
def test_classes_are_balanced(seed):
    _, y = TeacherTask(seed).train_batch(np.arange(10_000))
    share = np.bincount(y, minlength=16) / y.size
    assert share.min() > 0.01 and share.max() < 0.2


def test_label_is_the_class_the_noise_points_to():
    """Undo the margin, then ask the teacher again."""
    task = TeacherTask(4)
    x, y = task.train_batch(np.arange(20_000))
    d = task._directions
    assert np.allclose((d * d).sum(axis=1), 1) and d.shape == (16, 32)
    scores = (x - MARGIN * d[y]) @ d.T
    best = scores.max(axis=1)
    assert (best - scores[np.arange(y.size), y] < 1e-5).all()  # not 0, because x was rounded to float32


def test_features_are_of_unit_size():
    x, _ = TeacherTask(0).train_batch(np.arange(10_000))
    assert np.abs(x.mean(axis=0)).max() < 0.1 and 0.9 < x.std() < 1.2


@pytest.mark.parametrize("lr", [5e-3, 1e-2])
@pytest.mark.parametrize("seed", [0, 1])
def test_learnable_in_fifty_steps(seed, lr):
    """The MLP of the project, 64 samples a step, in plain NumPy: from ln 16 = 2.77 to below 1.0."""
    losses = train(TeacherTask(seed), steps=50, batch=64, lr=lr)
    assert 2.4 < losses[0] < 3.6
    assert np.mean(losses[-5:]) < 1.0


def test_load_gives_the_teacher():
    task = load("mlp", None, seed=3, inputs=8, classes=4)
    assert isinstance(task, TeacherTask) and (task.seed, task.inputs, task.classes) == (3, 8, 4)
    assert "seed 3" in task.describe()


def test_pads_are_not_counted():
    assert TeacherTask(0).count(np.array([3, -1, 4, -1])) == 2


def test_pads_are_not_written_into_a_datasets_own_arrays():
    class Stored(TeacherTask):
        """Hands out views of what it keeps."""

        kept = TeacherTask(0).train_batch(np.arange(8))

        def train(self, samples):
            return Batch(*(array[:samples.size] for array in self.kept))

    before = Stored.kept.targets.copy()
    assert Stored(0).train_batch(np.array([0, -1, 2])).targets.tolist() == [before[0], IGNORE, before[2]]
    assert np.array_equal(Stored.kept.targets, before)
