"""Units that some microbatches do not use: a missing gradient is a zero contribution, and earlier ones stay."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from mpizero.data import Batch, TeacherTask
from mpizero.engine.job import prepare
from mpizero.engine.task import Task
from mpizero.layout import ModelSpec, ParamSpec, SegmentSpec
from mpizero.memory.kinds import ACTIVATION
from mpizero.nn.init import Constant
from mpizero.nn.mlp import LinearSegment, mlp
from mpizero.nn.model import Model, Segment
from mpizero.schedule import STRATEGIES
from tests.engine.runs import MLP, dealt, distance, outcome, run, run_steps

CONFIG = replace(MLP, dtype="float32", steps=3, batch_size=4)


class Experts(Segment):
    """y = x + scale of its expert, of samples whose first feature names one; an expert without samples gets no
    gradient at all."""

    names = ("expert.0", "expert.1", "expert.2")

    def forward(self, params, x, mem):
        expert = x[:, 0].astype(int)
        y = mem.empty(x.shape, x.dtype, ACTIVATION)
        np.add(x, np.stack([params[name] for name in self.names])[expert], out=y)
        return y, expert

    def backward(self, params, context, dy, grads, mem):
        for number, name in enumerate(self.names):
            if (context == number).any():
                grads.add(name, dy[context == number].sum(axis=0), mem)


def experts():
    """Three of them in front of the MLP, a unit each."""
    base = mlp(hidden=10)
    params = (*(ParamSpec(name, (32,)) for name in Experts.names), *base.spec.params)
    spec = ModelSpec(params, (SegmentSpec("experts", Experts.names), *base.spec.segments))
    draw = lambda param: Constant(0) if param.name in Experts.names else base.draw(param)  # noqa: E731
    first = LinearSegment(base.spec.segments[0], first=False, last=False)  # which gives what is in front a gradient
    return Model("experts", spec, (Experts(), first, *base.segments[1:]), draw)


class Sorted(TeacherTask):
    """`who` tells the expert of a sample from its place in the step."""

    def __init__(self, step, who):
        super().__init__(0)
        self.step, self.who = step, who

    def train(self, samples):
        x, y = super().train(samples)
        x[:, 0] = [self.who(place) for place in samples % self.step]
        return Batch(x, y)


def own_unit(name):
    return name if name.startswith("expert") else name.rpartition(".")[0]


@dealt("no_sync", [False, True])
def test_only_in_the_first_only_in_the_last(group, no_sync):
    """Expert 0 works in the first of three microbatches, 2 in the last; 1 on the last rank in the one between, or
    nowhere. One process sees the whole step at once, where all are used."""
    n, accumulation = group.size, 3
    step, last = 4 * n * accumulation, 4 * (n - 1)

    def who(place):
        mb, within = divmod(place, 4 * n)
        return {0: 0, 1: 1 if within >= last else 0 if n > 1 else 1, 2: 2}[mb]

    task = Task(experts(), Sorted(step, who))
    found = [run(replace(CONFIG, stage=stage, accumulation=accumulation, no_sync=no_sync), group, task=task,
                 policy=own_unit, debug=True)[1] for stage in STRATEGIES]
    assert all(each == found[0] for each in found)
    at_once = run(replace(CONFIG, batch_size=4 * accumulation), group, task=task, policy=own_unit)[1]
    assert distance(found[0], at_once) < 1e-5
    reference = one_process(group, replace(CONFIG, batch_size=step), task)
    if reference is not None:
        assert distance(found[0], reference) < 1e-5


@dealt("mode", [dict(no_sync=False), dict(no_sync=True), dict(freeze=("expert.1",))])
def test_an_expert_that_nobody_uses_does_not_move(group, mode):
    """Whatever the storage of its gradient held: NaN here."""
    task = Task(experts(), Sorted(24, lambda place: 0))
    outcomes = []
    for stage in STRATEGIES:
        job = prepare(replace(CONFIG, stage=stage, accumulation=2, **mode), group, task=task, policy=own_unit,
                      debug=True)
        records = run_steps(job).records
        units = {unit.layout.name: unit for unit in job.state.units}
        for name, moved in (("expert.0", True), ("expert.1", False), ("expert.2", False)):
            owned = units[name].part_of(units[name].states["master"], units[name].owned)
            assert owned.any() == (moved and owned.size > 0)
        outcomes.append([(record.loss, record.grad_norm) for record in records])
    assert all(each == outcomes[0] for each in outcomes)


def one_process(group, config, task):
    """Rank 0 alone, on the whole step; None elsewhere."""
    one = group.subgroup([0], "one process")
    if one is None:
        return None
    job = prepare(replace(config, stage="0"), one, task=task, policy=own_unit)
    return outcome(job, run_steps(job).records)
