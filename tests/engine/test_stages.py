"""A stage is an implementation detail: same bits, and bytes and traffic as planned, on every number of ranks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mpizero.engine.collectives import reduce_scatter_grad, unshard
from mpizero.engine.job import prepare
from mpizero.engine.trainer import AGREEMENT_OPS, run_steps
from mpizero.layout import Axis
from mpizero.memory.kinds import MODEL_STATE
from mpizero.memory.ledger import Ledger
from mpizero.schedule import STRATEGIES
from tests.engine.plans import follows_its_plan, run_as_planned
from tests.engine.runs import GPT, MLP, dealt, outcome, run
from tests.planner.golden import AFTER_BACKWARD, SENT, STAGES

MLP_16, GPT_32 = replace(MLP, steps=2, clip=0.5), replace(GPT, steps=2, clip=0.5)
# accumulation, no_sync: dealt over the two, so that either dtype meets every accumulation
MODES = [(1, False), (4, False), (2, True)]
OTHER_MODES = [(1, False), (2, False), (4, True)]


@dealt("config", [
    *(replace(MLP_16, accumulation=accumulation, no_sync=no_sync) for accumulation, no_sync in MODES),
    *(replace(GPT_32, accumulation=accumulation, no_sync=no_sync) for accumulation, no_sync in OTHER_MODES),
    *(replace(config, dtype=dtype, accumulation=2) for config, dtype in (
        (MLP_16, "float32"), (MLP_16, "bfloat16"), (GPT_32, "float16"), (GPT_32, "bfloat16"))),
])
def test_every_stage_computes_the_same_bits_as_planned(group, config):
    """A GPT in float16 overflows at first: then a step without its update is what is planned."""
    outcomes = [run_as_planned(replace(config, stage=stage), group)[1] for stage in STRATEGIES]
    assert all(result == outcomes[0] for result in outcomes)
    assert len(set(outcomes[0].losses)) == config.steps


@pytest.mark.parametrize("group", [2, 3, 4], ids="n={}".format, indirect=True)
@pytest.mark.parametrize("stage", ["1", "2", "3", "3-broadcast"])
def test_hybrid_follows_its_plan(group, stage):
    for shards in (f for f in range(1, group.size) if group.size % f == 0):
        for accumulation, no_sync in MODES:
            config = replace(MLP, stage=stage, shard_size=shards, accumulation=accumulation, no_sync=no_sync)
            job = prepare(config, group)
            follows_its_plan(job)
            if shards == 1 and (no_sync or accumulation == 1):
                assert outcome(job, []) == outcome(*_dp(group, accumulation, no_sync))


def _dp(group, accumulation, no_sync):
    job = prepare(replace(MLP, stage="0", accumulation=accumulation, no_sync=no_sync), group)
    run_steps(job, steps=1)
    return job, []


@pytest.mark.parametrize("index", range(5), ids=STAGES)
def test_golden_bytes_on_real_ranks(group, index):
    job = prepare(replace(MLP, hidden=96, batch_size=16, stage=STAGES[index], steps=2), group)
    progress = run_steps(job)
    counted = sum(bytes_ for op, bytes_ in progress.sent.items() if op not in AGREEMENT_OPS)
    model_states = sum(job.executor.after_backward[kind] for kind in MODEL_STATE)
    assert (model_states, counted) == (AFTER_BACKWARD[group.size][index], SENT[group.size][index])
    assert progress.messages == (group.size - 1) * 5 * STRATEGIES[STAGES[index]].volume
    if group.size == 4 and STAGES[index] in "03":
        assert job.ledger.peak_model_state_bytes == {"0": 559_744, "3": 161_632}[STAGES[index]]


@pytest.mark.parametrize("policy", [lambda name: "all", lambda name: name, lambda name: name.split(".")[-1]],
                         ids=["one", "each", "by kind"])
def test_wrapping_is_the_callers_choice(group, policy):
    """One unit for all, one for each tensor (a bias of 3 elements on 4 ranks, an empty shard), and units that cut
    across segments."""
    for config in (replace(MLP, hidden=3, steps=2), replace(GPT, layers=1, steps=2)):
        outcomes = [run_as_planned(replace(config, stage=stage), group, policy=policy)[1] for stage in STRATEGIES]
        assert all(result == outcomes[0] for result in outcomes)


def test_more_ranks_than_elements_in_a_unit(group):
    job, result = run(replace(MLP, hidden=1, stage="3", steps=2), group, policy=lambda name: name)
    shortest = min(job.state.units, key=lambda unit: unit.layout.numel)
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


@pytest.mark.parametrize("stage", list(STRATEGIES))
def test_padding_stays_zero(group, monkeypatch, stage):
    """Whatever new storage holds: here 7 everywhere. On 2 and 4 ranks biases of 3 elements are padded."""
    empty = Ledger.empty

    def used(ledger, shape, dtype, kind):
        array = empty(ledger, shape, dtype, kind)
        array.fill(7)
        return array

    monkeypatch.setattr(Ledger, "empty", used)
    job = prepare(replace(MLP, hidden=3, steps=2, stage=stage), group, policy=lambda name: name)
    run_steps(job)
    padded = 0
    for unit in job.state.units:
        for _, buffer, keep in unit.kept():
            kept = unit.range_of(keep)
            padding = buffer[max(unit.layout.numel - kept.start, 0):]
            assert not padding.any()
            padded += padding.size
    # the last rank has some; where units have owners, on three ranks the one whose turn it is
    holder = 0 if (stage, group.size) == ("3-broadcast", 3) else group.size - 1
    assert padded or group.size == 1 or group.rank != holder


def test_debug_mode_poisons_what_is_freed(group):
    job = prepare(replace(MLP, stage="3"), group, debug=True)
    unit = job.state.units[0]
    unshard(unit, Axis.SHARD).finish()
    params = unit.whole_param
    assert np.isfinite(params[: unit.layout.numel]).all()
    unit.reshard()
    for view in unit.open_grad().values():
        view.fill(1)
    grads = unit._unsharded_grad
    reduce_scatter_grad(unit, Axis.SHARD).finish()
    reduced = unit.grad
    unit.free_grad()
    assert all(np.isnan(freed).all() for freed in (params, grads, reduced))
