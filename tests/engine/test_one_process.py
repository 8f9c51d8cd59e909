"""N ranks against one process that computes the concatenated batch: an oracle without collectives.

Tolerance: float32 sums in another order. 1e-5 relative after a few steps is ten times what was measured; a dropped division, a doubled gradient
or a forgotten gather changes every state by more than 1e-2 (see the mutations below).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mpizero.engine import unit as unit_module
from mpizero.engine.job import prepare
from mpizero.engine.trainer import evaluate_loss, run_steps
from mpizero.engine.unit import Unit
from mpizero.schedule.actions import AllGatherParam, ReduceScatterGrad
from tests.engine.runs import GPT, MLP, distance, outcome, run

CLOSE, FAR = 1e-5, 1e-2


@pytest.fixture
def alone(group):
    """A run of one process on the batch of the whole group, made on rank 0; None elsewhere."""

    def alone(config, group=group):
        one = group.subgroup([0], "one process")
        reference = run(replace(config, batch_size=config.batch_size * group.size, stage="0", shard_size=None), one)[1] if one else None
        group.barrier()
        return reference

    return alone


@pytest.mark.parametrize("config", [replace(MLP, dtype="float32", steps=20), replace(GPT, clip=0.3), replace(GPT, accumulation=2)],
                         ids=["mlp", "gpt clipped", "gpt accumulated"])
def test_losses_norms_weights_and_moments(group, alone, config):
    reference = alone(config)
    for stage in ("0", "1", "2", "3"):
        for shards in ([None] if stage == "0" else [f for f in range(1, group.size + 1) if group.size % f == 0]):
            here = run(replace(config, stage=stage, shard_size=shards), group)[1]
            assert reference is None or distance(here, reference) < CLOSE, (stage, shards)


def test_accumulating_is_a_larger_batch(group):
    whole = run(replace(GPT, batch_size=4), group)[1]
    parts = [run(replace(GPT, batch_size=1, accumulation=4, no_sync=no_sync), group)[1] for no_sync in (False, True)]
    assert all(abs(a - b) < 1e-6 for part in parts for a, b in zip(part.norms[:1], whole.norms[:1], strict=True))


def test_held_out_loss_does_not_depend_on_ranks(group, alone):
    config = replace(GPT, steps=0)
    one = group.subgroup([0], "one process")
    reference = evaluate_loss(prepare(config, one)) if one else None
    group.barrier()
    here = evaluate_loss(prepare(replace(config, stage="3"), group))
    assert reference is None or abs(here - reference) < 1e-6


# -- mutations: the comparison above must be able to fail ---------------------------------------------------------------


def wrong_by(group, alone, job):
    """Distance from one process, on rank 0; NaN elsewhere."""
    here = outcome(job, run_steps(job).records)
    reference = alone(job.config)
    return distance(here, reference) if reference is not None else np.nan


@pytest.fixture
def several(group):
    if group is not None and group.size == 1:
        pytest.skip("one rank has nobody to disagree with")
    return group


CONFIG = replace(MLP, dtype="float32", steps=6, stage="2")


def test_mutation_gather_forgotten(group, several, alone):
    job = prepare(CONFIG, group)
    forgetful = replace(job.lists, update=[action for action in job.lists.update if not isinstance(action, AllGatherParam)])
    assert not wrong_by(group, alone, replace(job, lists=forgetful)) < FAR


def test_mutation_division_dropped(group, several, alone, monkeypatch):
    monkeypatch.setattr("mpizero.engine.job.Job.targets", property(lambda job: job.config.batch_size))
    job = prepare(CONFIG, group)
    here = outcome(job, run_steps(job).records)
    monkeypatch.undo()
    reference = alone(CONFIG)
    assert reference is None or distance(here, reference) > FAR


def test_mutation_a_rank_counts_twice(group, several, alone, monkeypatch):
    close = Unit._close_grad

    def doubled(unit):
        flat = close(unit)
        if unit.mesh.world.rank == unit.mesh.world.size - 1:
            flat *= 2
        return flat

    monkeypatch.setattr(Unit, "_close_grad", doubled)
    job = prepare(CONFIG, group)
    here = outcome(job, run_steps(job).records)
    monkeypatch.undo()
    reference = alone(CONFIG)
    assert reference is None or distance(here, reference) > FAR


def test_mutation_reduction_left_out(group, several, alone, monkeypatch):
    def local_only(group, flat, out, *, accumulate, unit, phase):
        own = flat[group.rank * out.size : (group.rank + 1) * out.size]
        np.copyto(out, out + own if accumulate else own)

    monkeypatch.setattr(unit_module, "reduce_scatter", local_only)
    job = prepare(CONFIG, group)
    here = outcome(job, run_steps(job).records)
    monkeypatch.undo()
    reference = alone(CONFIG)
    assert reference is None or distance(here, reference) > FAR


def test_mutation_stale_shard(group, several, alone, monkeypatch):
    """Stage 3 whose gathered parameters come from the first step for ever."""
    unshard, first = Unit.unshard, {}

    def stale(unit):
        unshard(unit)
        kept = first.setdefault(unit.layout.name, unit.whole_param.copy())
        unit.whole_param[:] = kept

    monkeypatch.setattr(Unit, "unshard", stale)
    config = replace(CONFIG, stage="3")
    job = prepare(config, group)
    here = outcome(job, run_steps(job).records)
    monkeypatch.undo()
    reference = alone(config)
    assert reference is None or distance(here, reference) > FAR


def test_mutation_reduced_list_is_refused():
    """No rank needed: a list that never reduces a unit does not pass the validator."""
    from mpizero.schedule import IllegalSchedule, validate
    from tests.schedule.test_validate import STRATEGIES, chain, step

    actions, wrapping, *mesh = step("2", chain(), 4)
    with pytest.raises(IllegalSchedule):
        validate([a for a in actions if not isinstance(a, ReduceScatterGrad)], wrapping, STRATEGIES["2"].placement, *mesh)
