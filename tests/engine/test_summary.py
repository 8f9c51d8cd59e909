"""What a run says of itself: counts beside plans, digests, and the times of a step on hosts whose clocks differ."""

from __future__ import annotations

import hashlib
import time
from dataclasses import replace

import pytest

from mpizero.engine.export import sha256, whole_state
from mpizero.engine.gather import gather_data
from mpizero.engine.job import Job, prepare
from mpizero.engine.summary import summarise
from mpizero.engine.trace import trace
from mpizero.engine.trainer import run_steps
from mpizero.planner import links, plan_traffic
from tests.engine.runs import GPT, MLP

pytestmark = pytest.mark.usefixtures("few_held_out")


@pytest.mark.parametrize("stage", ["0", "2", "3"])
def test_peaks_are_of_what_ran_before(group, stage):
    """Here nothing, since they were started again; the held-out loss, which gathers units at stage 3, is none of it."""
    job = prepare(replace(MLP, stage=stage, steps=1), group)
    progress = run_steps(job)
    job.ledger.reset_peaks()
    for row in summarise(job, progress)["memory"]:
        assert row["peak"] == row["at_rest"] and row["activation_peak"] == 0
    assert job.ledger.peak["activation"] > 0


def test_steps_off_their_plan_are_counted(group, monkeypatch):
    planned = Job.planned
    for more in (0, 2):
        monkeypatch.setattr(Job, "planned", lambda job, course: (planned(job, course)[0] + more,
                                                                 planned(job, course)[1]))
        job = prepare(MLP, group)
        rows = summarise(job, run_steps(job))["traffic"]
        assert [row["steps_off_plan"] for row in rows] == [MLP.steps if more else 0] * group.size


@pytest.mark.parametrize("stage, shards", [("0", None), ("1-allreduce", None), ("3", None), ("2", 2), ("3", 1)])
@pytest.mark.parametrize("hosts", ["aabb", "abcd", "aaaa", "aaab"])
@pytest.mark.parametrize("sums", [None, "float32"])
def test_bytes_between_hosts_are_counted_as_planned(world, hosts, stage, shards, sums):
    """Rank by rank, against the planner's division by even hosts where they are even."""
    if world.size != 4:
        pytest.skip(f"needs 4 ranks, there are {world.size}")
    group = world.subgroup(range(4), f"on {hosts}")
    group.hosts = tuple(hosts)
    config = replace(MLP, steps=1, stage=stage, shard_size=shards, accumulation=2, sum_dtype=sums)
    job = prepare(config, group)
    rows = summarise(job, run_steps(job))["traffic"]
    between = [row["between_hosts_bytes_per_step"] for row in rows]
    assert between == [row["planned_between_hosts_bytes_per_step"] for row in rows]
    assert any(between) == (hosts != "aaaa")
    if hosts != "aaab":
        placed = links.split({0: plan_traffic(job.lists.step(), job.geometry)}, job.geometry, hosts.count("a"))
        assert between == [far for _, far in placed.by_rank]


def test_the_most_within_an_action_by_kind(group):
    """Temporaries of operators and the gradient being updated live within actions alone."""
    job = prepare(replace(MLP, steps=1, log="where actions are timed"), group)
    actions = run_steps(job).traced.actions
    assert all(sum(each.peak_live.values()) == each.peak_bytes >= sum(each.live.values()) for each in actions)
    assert not any(each.live["workspace"] or each.live["grad_fp32"] for each in actions)
    most = {kind: max(each.peak_live[kind] for each in actions) for kind in job.ledger.live}
    assert most["workspace"] == job.ledger.peak_live["workspace"] > 0
    assert most["grad_fp32"] == job.ledger.peak["grad_fp32"] > 0


@pytest.mark.parametrize("policy", [None, lambda name: name.split(".")[-1]], ids=["a unit a segment", "by kind"])
@pytest.mark.parametrize("config", [replace(MLP, hidden=3, stage="2"), replace(GPT, stage="3")], ids=["mlp", "gpt"])
def test_digests_are_of_all_parameters_in_the_models_order(group, config, policy):
    job = prepare(replace(config, steps=1), group, policy=policy)
    run_steps(job)
    for name in ("master", "exp_avg_sq"):
        arrays = {}
        for unit in job.state.units:
            arrays |= unit.layout.views(whole_state(unit, name).copy())
        digest = hashlib.sha256()
        for param in job.task.model.spec.params:
            digest.update(arrays[param.name].astype("<f4").tobytes())
        assert sha256(job.task.model.spec, job.state.units, name) == digest.hexdigest()


def test_data_of_another_length_from_each_rank(group):
    assert gather_data(group, list(range(10 * group.rank))) == [list(range(10 * rank)) for rank in range(group.size)]


def test_clocks_of_hosts_are_brought_together(group, monkeypatch):
    """The last rank's host is ahead by more than a step can take."""
    ahead, truth = 1000.0, time.perf_counter
    if group.rank == group.size - 1 > 0:
        monkeypatch.setattr(time, "perf_counter", lambda: truth() + ahead)
    group.hosts = ("one",) * (group.size - 1) + ("other",)
    job = prepare(replace(MLP, steps=1, log="where messages are timed"), group)
    ranks = trace(job, *run_steps(job).traced)["ranks"]
    assert [rank["host"] for rank in ranks] == list(job.world.hosts)
    begins = [row["begin_s"] for rank in ranks for row in (*rank["actions"], *rank["collectives"])]
    ends = [message["end_s"] for rank in ranks for row in rank["collectives"] for message in row["arrivals"]]
    assert min(rank["actions"][0]["begin_s"] for rank in ranks) == 0 and max(begins + ends) < ahead / 2
