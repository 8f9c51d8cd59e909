"""Collectives beside computation: no bit of the result, and bytes and traffic stay as planned, whoever drives them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mpizero.comm import Polled, Stream, Threaded
from mpizero.engine.job import prepare
from mpizero.engine.trainer import run_steps
from mpizero.errors import CommunicationError
from mpizero.schedule.actions import Begin
from tests.engine.plans import follows_its_plan, run_as_planned
from tests.engine.runs import GPT, MLP, dealt, outcome, run

AHEAD = {"backward_prefetch": 2, "forward_prefetch": 1, "limit_all_gathers": 2}


def outcomes_with(stream, config, group):
    job = prepare(config, group)
    job.executor.stream = stream
    job.ledger.between = stream.poll
    return job, outcome(job, run_steps(job, steps=config.steps - 1).records + follows_its_plan(job).records)


@dealt("precision, stage", [{}, {"sum_dtype": "float32"}, {"dtype": "float32"}],
       ["0", "1", "1-allreduce", "2", "3", "3-broadcast"])
def test_same_bits_and_as_planned(group, stage, precision):
    ahead = AHEAD if stage[0] == "3" else {}
    config = replace(MLP, stage=stage, accumulation=2, steps=2, clip=0.5, **ahead, **precision)
    expected = run(replace(config, overlap="off"), group)[1]
    assert run_as_planned(replace(config, overlap="on"), group)[1] == expected


@pytest.mark.parametrize("stage", ["1", "2", "3", "3-broadcast"])
def test_replicas_and_shards_side_by_side(group, stage):
    if group.size % 2:
        pytest.skip("an odd number of ranks makes no pairs")
    config = replace(GPT, stage=stage, shard_size=group.size // 2, accumulation=2, steps=2, no_sync=True)
    expected = run(replace(config, overlap="off"), group)[1]
    assert run_as_planned(replace(config, overlap="on", backward_prefetch=1), group)[1] == expected


@pytest.mark.parametrize("make", [Polled, Threaded])
def test_whoever_drives(group, make):
    config = replace(GPT, stage="3", steps=3, overlap="on", **AHEAD)
    job, found = outcomes_with(make(), config, group)
    assert found == run(replace(config, overlap="off"), group)[1]
    assert sum(isinstance(action, Begin) for action in job.lists.step()) > 10 and not job.executor.stream.queues


def test_a_thread_ends_when_it_has_nothing_to_do(group, monkeypatch):
    monkeypatch.setattr("mpizero.comm.stream.IDLE", 0.01)
    stream = Threaded()
    outcomes_with(stream, replace(MLP, stage="3", steps=2, overlap="on"), group)
    thread = stream._thread
    if thread is not None:
        thread.join(30)
    assert stream._thread is None
    outcomes_with(stream, replace(MLP, stage="3", steps=2, overlap="on"), group)  # and is started again


@pytest.mark.parametrize("hosts, overlap, expected", [
    ("ab", "auto", True), ("aa", "auto", False), ("ab", "off", False), ("aa", "on", True)])
def test_auto_overlaps_between_hosts(group, hosts, overlap, expected):
    if group.size == 1:
        pytest.skip("one rank is on one host")
    spread = group.using()
    spread.hosts = tuple(hosts[2 * rank >= group.size] for rank in range(group.size))
    job = prepare(replace(MLP, stage="3", overlap=overlap), spread)
    assert job.settings.step.overlap is expected
    assert any(isinstance(action, Begin) for action in job.lists.step()) is expected


class Broken(Stream):
    """Nothing that is begun ends."""

    def begin(self, collective):
        self.queues.add(collective)

    def finish(self, collective):
        raise CommunicationError("lost")


def test_a_job_that_fails_leaves_nothing_under_way(group):
    job = prepare(replace(MLP, stage="3", steps=1, overlap="on", backward_prefetch=1, forward_prefetch=1), group)
    job.executor.stream = stream = Broken()
    with pytest.raises(CommunicationError, match="lost"):
        run_steps(job)
    assert not stream.queues
