"""A task is an argument: a user's own model, data and loss go through everything that the built-in ones go through."""

from __future__ import annotations

import copy
import functools
from dataclasses import replace

import numpy as np
import pytest

from mpizero.data import Batch, TeacherTask
from mpizero.engine.export import whole_state
from mpizero.engine.job import prepare
from mpizero.engine.task import Task
from mpizero.engine.trace import trace
from mpizero.engine.trainer import run_steps
from mpizero.errors import ConfigError, OutOfDeviceMemory
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
    rows = [line.split() for line in end.stdout.splitlines()[2:2 + len(STRATEGIES)]]
    assert [row[0] for row in rows] == list(STRATEGIES) and len({row[-1] for row in rows}) == 1
    assert ("1 rank: nothing is sharded or sent" in end.stdout) == (ranks == 1)


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


def test_a_device_with_no_plan_is_full_when_it_is(group):
    """Nobody knows before."""
    task = Task(mlp(hidden=10), Vectors(0), SquaredError())
    first = prepare(replace(MLP, stage="0"), group, task=task)
    room = first.ledger.peak_bytes  # of initial values too
    job = prepare(replace(MLP, device_memory=f"{room}B", stage="0"), group, task=task)
    assert first.need is job.need is None
    with pytest.raises(OutOfDeviceMemory, match="out of device memory at .*: .* bytes of"):
        run_steps(job)


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


def test_a_host_without_room(group, monkeypatch):
    room = group.size * job_peak(group) - 1
    monkeypatch.setattr("mpizero.engine.fits.available_bytes", lambda: room)
    with pytest.raises(OutOfDeviceMemory, match=rf"states of {group.size} ranks? on this host come to .* KB each"):
        prepare(MLP, group)
    for enough in (room + 1, None):  # None: a kernel that does not tell
        monkeypatch.setattr("mpizero.engine.fits.available_bytes", lambda: enough)
        prepare(MLP, group)


def job_peak(group):
    """Counted."""
    job = prepare(MLP, group)
    run_steps(job)
    return job.ledger.peak_model_state_bytes
