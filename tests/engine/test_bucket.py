"""Buckets change no bit, whatever their size; bytes and messages are the planned ones, and the buffer does not grow
with the model."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mpizero.engine.job import prepare
from mpizero.engine.trainer import run_steps
from mpizero.memory.kinds import WORKSPACE
from mpizero.schedule.actions import AllReduceBucket, ReduceScatterBucket
from tests.engine.plans import follows_its_plan
from tests.engine.runs import GPT, MLP, dealt
from tests.engine.test_frozen import states

SMALL = replace(MLP, hidden=7, steps=2, clip=0.5, batch_size=2)
TINY = replace(SMALL, hidden=1)
TEXTS = replace(GPT, steps=2, batch_size=1)
EVEN = {"overlap": "on", "accumulation": 2}


def trained(config, group, last=lambda job: run_steps(job, steps=1)):
    """What a run of two steps computed, of which `last` runs the second."""
    job = prepare(config, group)
    records = run_steps(job, steps=1).records + last(job).records
    return job, states(job), [(record.loss, record.grad_norm) for record in records]


def buckets(job):
    going = [getattr(action, "action", action) for action in job.lists.accumulate]
    return [action for action in going if isinstance(action, ReduceScatterBucket | AllReduceBucket)]


def check(config, group, *runs):
    """Each stage and size gives the bits of stage 0 without buckets, and follows its plan."""
    _, *expected = trained(replace(config, stage="0", offload=None), group)
    for stage, size in runs:
        offload = None if stage == "0" else config.offload
        job, *found = trained(replace(config, stage=stage, bucket_size=size, offload=offload), group, follows_its_plan)
        assert found == expected, (stage, size)
        assert buckets(job)


@dealt("options", [
    {}, {"dtype": "float32", "no_sync": True, "accumulation": 2}, {"dtype": "bfloat16", **EVEN},
    {"reduce_dtype": "float32", **EVEN}, {"sum_dtype": "float32", "accumulation": 2},
    {"dtype": "float32", "reduce_dtype": "bfloat16", "sum_dtype": "float32"}])
def test_same_bits_in_every_precision(group, options):
    if "bfloat16" in options.values():
        pytest.importorskip("ml_dtypes")
    check(replace(SMALL, **options), group, ("0", "397B"), ("2", "397B"), ("3", "all"))


def test_same_bits_where_backward_is_over(group):
    check(replace(SMALL, accumulation=2), group, ("1", "701B"), ("1", "all"), ("1-allreduce", "701B"), ("0", "all"))


@pytest.mark.parametrize("options", [{"freeze": ("h.0.*",)}, {"wrap": "layer", **EVEN},
                                     {"offload": "optimizer=cpu", **EVEN}], ids=str)
def test_same_bits_of_a_gpt(group, options):
    check(replace(TEXTS, **options), group, ("3", "1000B"))


def test_one_element_a_rank(group):
    check(TINY, group, ("0", f"{2 * group.size}B"), ("2", f"{2 * group.size}B"))


@pytest.mark.parametrize("stage", ["1", "2", "3"])
@pytest.mark.parametrize("offload", [None, "optimizer=cpu"])
def test_replicas_sum_what_buckets_have_reduced(group, stage, offload):
    if group.size != 4:
        pytest.skip("of other numbers of ranks no mesh has two axes")
    config = replace(SMALL, stage=stage, shard_size=2, accumulation=2, offload=offload)
    _, *expected = trained(config, group)
    for options in ({"bucket_size": "150B"}, {"bucket_size": "all", "overlap": "on"}):
        _, *found = trained(replace(config, **options), group, follows_its_plan)
        assert found == expected, options


@pytest.mark.parametrize("stage", ["0", "2"])
def test_small_units_share_messages(group, stage):
    """A bucket that holds all units takes the messages of one."""
    config = replace(SMALL, stage=stage)
    jobs = [trained(replace(config, bucket_size=size), group)[0] for size in (None, "all")]
    alone, together = ([record.messages for record in job.log.records if record.op in ("all_reduce", "reduce_scatter")]
                       for job in jobs)
    assert len(alone) == 5 and len(together) == 1
    assert sum(alone) == 5 * sum(together)


def test_the_buffer_is_as_large_as_told(group):
    """Twice the width, four times the parameters: the same workspace of reductions; of a fused buffer that grows."""
    peaks = {}
    for size in ("1kB", "all"):
        for hidden in (40, 80):
            job = prepare(replace(SMALL, stage="2", hidden=hidden, dtype="float32", bucket_size=size), group)
            job.executor.timeline = []
            run_steps(job, steps=1)
            peaks[size, hidden] = max(record.peak_live[WORKSPACE] for record in job.executor.timeline
                                      if isinstance(record.action, ReduceScatterBucket))
    assert peaks["1kB", 40] == peaks["1kB", 80] < 2 * 1000
    assert peaks["all", 80] > 3 * peaks["all", 40] > 9 * 1000
