"""A task is an argument: a user's own model, data and loss go through everything that the built-in ones go through."""

from __future__ import annotations

import copy
import functools
from dataclasses import replace

import numpy as np
import pytest

from mpizero.data import Batch, TeacherTask
from mpizero.engine.config import OptimSettings, TrainConfig
from mpizero.engine.export import whole_state
from mpizero.engine.job import prepare
from mpizero.engine.samples import PART, count_targets
from mpizero.engine.task import Task
from mpizero.engine.trace import trace
from mpizero.engine.trainer import evaluate_loss, run_steps
from mpizero.errors import ConfigError, DataError, OutOfDeviceMemory
from mpizero.layout import ModelSpec, ParamSpec, SegmentSpec, wrap
from mpizero.memory.kinds import ACTIVATION
from mpizero.nn.init import Constant
from mpizero.nn.mlp import mlp
from mpizero.nn.model import Loss, Model, Segment
from mpizero.schedule import STRATEGIES
from tests.engine.plans import run_as_planned
from tests.engine.runs import MLP


def test_another_width_with_data_of_that_width(group):
    task = Task(mlp(hidden=10, inputs=8, classes=5), TeacherTask(0, inputs=8, classes=5))
    outcomes = [run_as_planned(replace(MLP, stage=stage, steps=2), group, task=task)[1] for stage in "0123"]
    assert all(result == outcomes[0] for result in outcomes) and len(set(outcomes[0].losses)) == 2


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


def test_a_parameter_that_no_segment_reads():
    spec = ModelSpec((ParamSpec("used", (3,)), ParamSpec("idle", (3,))), (SegmentSpec("only", ("used",)),))
    with pytest.raises(ConfigError, match="no segment of the model reads idle"):
        wrap(spec, 2)


def test_a_model_has_as_many_segments_as_its_spec():
    model = mlp()
    with pytest.raises(ConfigError, match="has 4 segments, its spec 5"):
        Model("short", model.spec, model.segments[:-1], model.draw)


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_worked_example(launch, ranks):
    end = launch(ranks, "scripts/05_own_task.py", timeout=120)
    assert end.status == 0, end.output
    rows = [line.split() for line in end.stdout.splitlines()[2:7]]
    assert [row[0] for row in rows] == list(STRATEGIES) and len({row[-1] for row in rows}) == 1
    assert ("1 rank: nothing is sharded or sent" in end.stdout) == (ranks == 1)


def test_settings_are_resolved_once():
    settings = TrainConfig(model="gpt", steps=40, device_memory="1KiB").resolved()
    optim = OptimSettings("adamw", weight_decay=0.01, lr=2e-3, warmup=4, clip=None, decay="matrices",
                          betas="0.9,0.999", momentum=None, no_master_weights=False)
    assert settings.optim == optim
    assert (settings.sizes.layers, settings.steps, settings.device_memory) == (4, 40, 1024)
    settings = TrainConfig().resolved()
    assert settings.optim == replace(optim, optimizer="adam", weight_decay=0.0, lr=1e-2, warmup=0)
    assert (settings.sizes.hidden, settings.steps, settings.device_memory) == (96, 50, None)


@pytest.mark.parametrize("stage", list(STRATEGIES))
def test_a_parameter_that_no_segment_touches_stays_as_it_is(group, stage):
    """Its gradient is 0, whatever the storage held: NaN, in debug mode."""
    model = mlp(hidden=10)
    spec = replace(model.spec, params=(*model.spec.params, ParamSpec("idle", (5,))))
    draw = lambda param: Constant(0.5) if param.name == "idle" else model.draw(param)  # noqa: E731
    task = Task(Model("mlp", spec, model.segments, draw), TeacherTask(0))
    job = prepare(replace(MLP, stage=stage, dtype="float32"), group, task=task, policy=lambda name: "all", debug=True)
    run_steps(job)
    (unit,) = job.state.units
    for name, value in (("master", 0.5), ("exp_avg", 0.0), ("exp_avg_sq", 0.0)):
        assert (unit.layout.views(whole_state(unit, name))["idle"] == value).all()


class SquaredError(Loss):
    """Of float32 targets (n, classes)."""

    def forward(self, outputs, targets, mem):
        difference = outputs.astype(np.float32) - targets
        return float((difference**2).sum()), targets.size, (difference, outputs)

    def backward(self, context, scale, mem):
        difference, outputs = context
        np.multiply(difference, 2 * scale, out=outputs, casting="unsafe")
        return outputs


class Vectors(TeacherTask):
    """Targets of two dimensions."""

    targets_per_sample = 16

    def train(self, samples):
        x, y = super().train(samples)
        return Batch(x, np.eye(16, dtype=np.float32)[y])

    held_out = train


def test_a_traced_run_of_a_loss_that_no_plan_knows(group):
    """No activations are foretold; all else is."""
    job = prepare(replace(MLP, log="folder"), group, task=Task(mlp(hidden=10), Vectors(0), SquaredError()))
    progress = run_steps(job)
    assert job.activations() is None and progress.records[-1].loss < progress.records[0].loss
    found = trace(job, *progress.traced)
    assert all(ACTIVATION not in action["planned_live"] for rank in found["ranks"] for action in rank["actions"])


def wrong_model(draw=None, backward=None):
    """The MLP with another way to draw its values, or another backward of its second segment."""
    model = mlp(hidden=10)
    segments = list(model.segments)
    if backward is not None:
        second = copy.copy(segments[1])
        object.__setattr__(second, "backward", functools.partial(backward, segments[1]))
        segments[1] = second
    return Model("mlp", model.spec, tuple(segments), draw or model.draw)


def no_dx(segment, params, context, dy, grads, mem):
    type(segment).backward(segment, params, context, dy, grads, mem)


def repeated(segment, params, context, dy, grads, mem):
    grads.add(next(iter(params)), np.ones(1, np.float32))


@pytest.mark.parametrize(("model", "message"), [
    (lambda: wrong_model(lambda param: np.zeros(3, np.float32)),
     "model mlp: draw gave a ndarray for parameter layers.0.weight: return how it is drawn, such as Normal"),
    (lambda: wrong_model(backward=no_dx), "segment layers.1 gave no gradient of its input"),
    (lambda: wrong_model(backward=repeated), r"gradient of shape \(1,\) was added for parameter layers.1.weight"),
])
def test_a_model_with_a_mistake(world, model, message):
    with pytest.raises(ConfigError, match=message):
        run_steps(prepare(MLP, world, task=Task(model(), TeacherTask(0))))


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_a_parameter_without_dimensions(group, dtype):
    """A factor of the logits, of two microbatches, so that its gradient is added to."""
    model = mlp(hidden=10)
    spec = ModelSpec((*model.spec.params, ParamSpec("factor", ())),
                     (*model.spec.segments, SegmentSpec("scale", ("factor",))))
    ones = lambda param: Constant(1) if param.shape == () else model.draw(param)  # noqa: E731
    task = Task(Model("scaled", spec, (*model.segments, Scale()), ones), TeacherTask(0))
    job = prepare(replace(MLP, dtype=dtype, accumulation=2, no_sync=True), group, task=task)
    run_steps(job)
    factor = whole_state(job.state.units[-1], "master")
    assert factor.shape == (1,) and abs(factor[0] - 1) > 1e-3


class Scale(Segment):
    """y = factor * x."""

    def forward(self, params, x, mem):
        return (x * params["factor"]).astype(x.dtype), x

    def backward(self, params, context, dy, grads, mem):
        grads.add("factor", np.asarray((dy.astype(np.float32) * context).sum()), mem)
        return (dy * params["factor"]).astype(dy.dtype)


@pytest.mark.parametrize(("wrong", "message"), [
    ({"model": "cnn"}, "`model` 'cnn' is none of mlp, gpt"), ({"stage": 2}, "`stage` 2 is a int: give a str"),
    ({"lr": "1e-2"}, "`lr` '1e-2' is a str: give a float"), ({"batch_size": 1.5}, "`batch_size` 1.5 is a float: give"),
    ({"batch_size": None}, "`batch_size` None"), ({"steps": True}, "`steps` True is a bool"),
    ({"no_sync": 1}, "`no_sync` 1 is a int: give a bool"), ({"dtype": "float64"}, "`dtype` 'float64' is none of"),
    ({"accumulation": 5000}, "`accumulation` 5000 is too many"),
])
def test_a_configuration_made_by_hand(wrong, message):
    with pytest.raises(ConfigError, match=message):
        TrainConfig(**wrong).resolved()


def test_numbers_that_are_whole(group):
    assert TrainConfig(lr=1, clip=2, weight_decay=0).resolved().optim.lr == 1


def test_a_host_without_room(group, monkeypatch):
    room = group.size * job_peak(group) - 1
    monkeypatch.setattr("mpizero.engine.job.available_bytes", lambda: room)
    with pytest.raises(OutOfDeviceMemory, match=rf"states of {group.size} ranks? on this host come to .* KB each"):
        prepare(MLP, group)
    for enough in (room + 1, None):  # None: a kernel that does not tell
        monkeypatch.setattr("mpizero.engine.job.available_bytes", lambda: enough)
        prepare(MLP, group)


def job_peak(group):
    """Counted."""
    job = prepare(MLP, group)
    run_steps(job)
    return job.ledger.peak_model_state_bytes


def test_data_that_differs_between_ranks(group):
    task = Task(mlp(hidden=10), TeacherTask(seed=int(group.rank > 1)))
    if group.size <= 2:
        prepare(MLP, group, task=task)
    else:
        with pytest.raises(DataError, match=r"holds something else on ranks? .* than on"):
            prepare(MLP, group, task=task)
