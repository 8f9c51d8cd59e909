"""A stage is an implementation detail: same bits, and bytes and traffic as planned, on every number of ranks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mpizero.engine.job import prepare
from mpizero.engine.trainer import AGREEMENT_OPS, run_steps
from mpizero.planner import plan_memory, plan_traffic
from mpizero.schedule import STRATEGIES
from tests.engine.runs import GPT, MLP, outcome, run
from tests.planner.test_golden import AFTER_BACKWARD, SENT, STAGES

MODES = [(1, False), (2, False), (4, False), (2, True), (4, True)]  # accumulation, no_sync


def follows_its_plan(job) -> None:
    """One step: bytes by kind after every action, peaks, and each collective."""
    ledger, executor = job.ledger, job.executor
    executor.timeline = []
    progress = run_steps(replace(job, config=replace(job.config, steps=1)))
    actions = job.lists.step(skipped=progress.skipped > 0)
    plan = plan_memory(actions, job.geometry)
    assert [done.action for done in executor.timeline] == actions
    for done, point in zip(executor.timeline, plan.points, strict=True):
        assert {kind: done.live[kind] for kind in point.live} == point.live, point.action
    executor.timeline = None
    assert ledger.peak_model_state_bytes == plan.peak_bytes
    assert {kind: ledger.peak[kind] for kind in plan.peak_by_kind} == plan.peak_by_kind
    counted = [(record.op, record.bytes_sent, record.messages) for record in job.log.records if record.op not in AGREEMENT_OPS]
    assert counted == [(send.op, send.nbytes, send.rounds) for send in plan_traffic(actions, job.geometry)]
    assert progress.off_plan == 0


@pytest.mark.parametrize("config", [MLP, GPT], ids=["mlp", "gpt"])
@pytest.mark.parametrize("accumulation, no_sync", MODES)
def test_every_stage_computes_the_same_bits_as_planned(group, config, accumulation, no_sync):
    outcomes = {}
    for stage in STRATEGIES:
        job, outcomes[stage] = run(replace(config, stage=stage, accumulation=accumulation, no_sync=no_sync, clip=0.5), group)
        follows_its_plan(job)
    assert all(result == outcomes["0"] for result in outcomes.values())
    assert len(set(outcomes["0"].losses)) == config.steps


@pytest.mark.parametrize("stage", ["1", "2", "3"])
def test_hybrid_follows_its_plan(group, stage):
    for shards in (f for f in range(1, group.size + 1) if group.size % f == 0):
        for accumulation, no_sync in MODES:
            job = prepare(replace(MLP, stage=stage, shard_size=shards, accumulation=accumulation, no_sync=no_sync), group)
            follows_its_plan(job)
            if shards == 1 and (no_sync or accumulation == 1):
                assert outcome(job, []) == outcome(*_dp(group, accumulation, no_sync))


def _dp(group, accumulation, no_sync):
    job = prepare(replace(MLP, stage="0", accumulation=accumulation, no_sync=no_sync), group)
    run_steps(replace(job, config=replace(job.config, steps=1)))
    return job, []


@pytest.mark.parametrize("index", range(5), ids=STAGES)
def test_golden_bytes_on_real_ranks(group, index):
    job = prepare(replace(MLP, hidden=96, batch_size=16, stage=STAGES[index], steps=2), group)
    progress = run_steps(job)
    counted = sum(bytes_ for op, bytes_ in progress.sent.items() if op not in AGREEMENT_OPS)
    model_states = sum(job.executor.after_backward[kind] for kind in ("param", "grad", "optim", "unsharded_param", "unsharded_grad", "grad_fp32"))
    assert (model_states, counted) == (AFTER_BACKWARD[group.size][index], SENT[group.size][index])
    assert progress.messages == (group.size - 1) * 5 * STRATEGIES[STAGES[index]].volume
    if group.size == 4 and STAGES[index] in "03":
        assert job.ledger.peak_model_state_bytes == {"0": 559_744, "3": 161_632}[STAGES[index]]


@pytest.mark.parametrize("policy", [lambda name: "all", lambda name: name, lambda name: name.split(".")[-1]], ids=["one", "each", "by kind"])
def test_wrapping_is_the_callers_choice(group, policy):
    """One unit for all, one for each tensor (a bias of 3 elements on 4 ranks, an empty shard), and units that cut across stages."""
    for config in (replace(MLP, hidden=3, steps=2), replace(GPT, layers=1, steps=1)):
        outcomes = []
        for stage in STRATEGIES:
            job, result = run(replace(config, stage=stage), group, policy=policy)
            follows_its_plan(job)
            outcomes.append(result)
        assert all(result == outcomes[0] for result in outcomes)


def test_more_ranks_than_elements_in_a_unit(group):
    job, result = run(replace(MLP, hidden=1, stage="3", steps=2), group, policy=lambda name: name)
    shortest = min(job.executor.units, key=lambda unit: unit.layout.numel)
    assert shortest.layout.numel == 1 and shortest.layout.padded_numel == group.size
    assert result == run(replace(MLP, hidden=1, stage="0", steps=2), group, policy=lambda name: name)[1]


def test_debug_mode_poisons_and_changes_no_bit(group):
    """Freed parameters and gradients and all padding hold NaN: nothing reads them."""
    for stage in STRATEGIES:
        config = replace(MLP, stage=stage, steps=2)
        assert run(config, group, debug=True)[1] == run(config, group)[1]


def test_bytes_at_rest_are_the_same_after_every_step(group):
    job = prepare(replace(MLP, stage="3", accumulation=2), group)
    seen = set()
    run_steps(job, lambda record: seen.add(tuple(job.ledger.live.items())))
    assert len(seen) == 1
