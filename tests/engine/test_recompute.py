"""Recompute changes no bit: what runs twice gives the same twice. Bytes and traffic are the planned ones."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from mpizero.data import TeacherTask
from mpizero.engine.job import prepare
from mpizero.engine.summary import summarise
from mpizero.engine.task import Task
from mpizero.engine.trainer import run_steps
from mpizero.layout import ModelSpec, ParamSpec, SegmentSpec
from mpizero.memory.kinds import ACTIVATION, KEPT_INPUT
from mpizero.nn.init import Constant
from mpizero.nn.mlp import mlp
from mpizero.nn.model import Model, Segment
from mpizero.papers.activations import recompute_checkpoints
from mpizero.planner import plan_memory
from mpizero.schedule import STRATEGIES
from mpizero.schedule.actions import Recompute
from tests.engine.plans import follows_its_plan
from tests.engine.runs import GPT, MLP, dealt, run
from tests.engine.test_frozen import states

SMALL = replace(MLP, hidden=7, steps=2, clip=0.5, batch_size=2)
TEXTS = replace(GPT, layers=4, steps=2, batch_size=1)
AHEAD = {"backward_prefetch": 2, "forward_prefetch": 1, "keep_last_unit": True, "overlap": "on"}
LIMITED = {"backward_prefetch": 9, "forward_prefetch": 9, "limit_all_gathers": 2}


def trained(job, last):
    """What a run computed. last: what runs the last of two steps."""
    records = run_steps(job, steps=1).records + last(job).records
    return states(job), [(record.loss, record.grad_norm) for record in records]


def plainly(config, group):
    return trained(prepare(config, group), lambda job: run_steps(job, steps=1))


def recomputed(config, group, interval=1):
    """The same with recompute, where the last step follows its plan."""
    job = prepare(replace(config, recompute=True, recompute_interval=interval), group)
    found = trained(job, follows_its_plan)
    assert job.ledger.peak[KEPT_INPUT] > 0 == job.ledger.live[KEPT_INPUT] == job.ledger.live[ACTIVATION]
    return found


@dealt("config, dtype, accumulation, interval", [
    (SMALL, "float16", 1, 1), (SMALL, "float16", 4, 3), (SMALL, "bfloat16", 2, 1), (SMALL, "float32", 1, 2),
    (TEXTS, "float16", 2, 1), (TEXTS, "bfloat16", 4, 2)])
def test_same_bits_at_every_stage(group, config, dtype, accumulation, interval):
    if dtype == "bfloat16":
        pytest.importorskip("ml_dtypes")
    config = replace(config, dtype=dtype, accumulation=accumulation, no_sync=accumulation == 4)
    expected = plainly(replace(config, stage="0"), group)
    for stage in STRATEGIES:
        assert recomputed(replace(config, stage=stage), group, interval) == expected, stage


@dealt("options", [
    AHEAD, LIMITED, {"shard_size": 1}, {"wrap": "3kB", **LIMITED},
    {"freeze": ("h.0.*",)}, {"freeze": ("wte.*", "wpe.*", "h.1.mlp.*"), **AHEAD}])
def test_under_other_passes_and_wrappings(group, options):
    plain = replace(TEXTS, stage="3", accumulation=2, **options)
    expected = plainly(plain, group)
    for interval in (1, 9):
        assert recomputed(plain, group, interval) == expected, interval


@pytest.mark.parametrize("interval, inputs, dtype, times", [
    (1, 4, "float16", 1), (2, 2, "float16", 1), (4, 1, "float32", 2), (3, 2, "float16", 1)])
def test_kept_inputs_are_those_of_the_formula(group, few_held_out, interval, inputs, dtype, times):
    """2 bsz seq hd nl / ci bytes in float16 (ZeRO-Infinity, eq. 3), planned and counted; twice that in float32."""
    job = prepare(replace(TEXTS, stage="3", dtype=dtype, batch_size=2, accumulation=2, recompute=True,
                          recompute_interval=interval), group)
    progress = run_steps(job)
    plan = plan_memory(job.lists.step(), job.geometry, job.activations())
    kept = times * 2 * 2 * 6 * 8 * inputs
    assert job.ledger.peak[KEPT_INPUT] == max(point.live[KEPT_INPUT] for point in plan.points) == kept
    assert interval == 3 or kept == times * recompute_checkpoints(8, 2, 6, 4, interval)
    rows = [row["by_kind"][KEPT_INPUT] for row in summarise(job, progress)["memory"]]
    assert rows == [{"at_rest": 0, "after_backward": 0, "peak": kept}] * group.size


@pytest.mark.parametrize("interval", [1, 3])
def test_two_gathers_of_a_unit_in_a_step(group, interval):
    """One in forward, one in backward, counted; the tied one has a use more in each, which the last forward and the
    first backward share with nobody."""
    job = prepare(replace(TEXTS, stage="3", recompute=True, recompute_interval=interval), group)
    run_steps(job, steps=1)
    gathers = Counter(record.unit for record in job.log.records if record.op == "all_gather" and record.unit)
    wanted = {unit.layout.name: 4 if unit.layout.name == "embedding" else 2 for unit in job.state.units}
    assert {name: gathers[name] for name in wanted} == wanted
    assert sum(isinstance(action, Recompute) for action in job.lists.accumulate) == 4


def test_less_lives_on_the_device(group):
    """And in all: the peak of everything together."""
    plain, again = (prepare(replace(TEXTS, layers=8, batch_size=8, recompute=on), group) for on in (False, True))
    peaks = []
    for job in (plain, again):
        run_steps(job, steps=1)
        peaks.append((job.ledger.peak_bytes, job.ledger.peak[ACTIVATION] + job.ledger.peak[KEPT_INPUT]))
    assert peaks[1][0] < peaks[0][0] and peaks[1][1] < 0.5 * peaks[0][1]


class Doubled(Segment):
    """y = x + x * scale, in arrays that no ledger has made, of which the first is a view."""

    def __init__(self, name):
        self.name = name

    def forward(self, params, x, mem):
        y = np.concatenate([x + x * params[self.name], x])[:len(x)]
        return y, (x,)

    def backward(self, params, context, dy, grads, mem):
        grads.add(self.name, (dy * context[0]).sum(axis=0), mem)
        return dy + dy * params[self.name]


def test_own_segments_whose_arrays_nobody_counts(group):
    """They are computed again as others are."""
    base = mlp(hidden=10)
    own = [ParamSpec(f"scale.{i}", (10,)) for i in range(2)]
    first, *rest = base.spec.segments
    spec = ModelSpec((*own, *base.spec.params),
                     (first, *(SegmentSpec(param.name, (param.name,)) for param in own), *rest))
    segments = (base.segments[0], *(Doubled(param.name) for param in own), *base.segments[1:])
    model = Model("own", spec, segments, lambda param: Constant(0.5) if "scale" in param.name else base.draw(param))
    plain, again = (run(replace(MLP, stage="3", dtype="float32", recompute=on), group,
                        task=Task(model, TeacherTask(0))) for on in (False, True))
    assert plain[1] == again[1] and len(set(again[1].losses)) == MLP.steps
    assert plain[0].lists != again[0].lists
