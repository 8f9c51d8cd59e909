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
    assert all(distance(part, whole) < CLOSE for part in parts)


def test_held_out_loss_does_not_depend_on_ranks(group, alone):
    config = replace(GPT, steps=0)
    one = group.subgroup([0], "one process")
    reference = evaluate_loss(prepare(config, one)) if one else None
    group.barrier()
    here = evaluate_loss(prepare(replace(config, stage="3"), group))
    assert reference is None or abs(here - reference) < 1e-6


# -- mutations: the comparison above must be able to fail ---------------------------------------------------------------


@pytest.fixture
def wrong_by(alone, monkeypatch):
    """wrong_by(job): distance of a run of the mutated job from one process that is not mutated, on rank 0; inf elsewhere."""

    def wrong_by(job):
        here = outcome(job, run_steps(job).records)
        monkeypatch.undo()
        reference = alone(job.config)
        return np.inf if reference is None else distance(here, reference)

    return wrong_by


@pytest.fixture
def several(group):
    if group is not None and group.size == 1:
        pytest.skip("one rank has nobody to disagree with")
    return group


CONFIG = replace(MLP, dtype="float32", steps=6, stage="2")


def test_no_mutation(several, wrong_by):
    assert not wrong_by(prepare(CONFIG, several)) > FAR or several.rank > 0


def test_mutation_gather_forgotten(several, wrong_by):
    job = prepare(CONFIG, several)
    forgetful = replace(job.lists, update=[action for action in job.lists.update if not isinstance(action, AllGatherParam)])
    assert wrong_by(replace(job, lists=forgetful)) > FAR


def test_mutation_division_dropped(several, wrong_by, monkeypatch):
    monkeypatch.setattr("mpizero.engine.job.Job.targets", property(lambda job: job.config.batch_size))
    assert wrong_by(prepare(CONFIG, several)) > FAR


def test_mutation_a_rank_counts_twice(several, wrong_by, monkeypatch):
    close = Unit._close_grad

    def doubled(unit):
        flat = close(unit)
        if several.rank == several.size - 1:
            flat *= 2
        return flat

    monkeypatch.setattr(Unit, "_close_grad", doubled)
    assert wrong_by(prepare(CONFIG, several)) > FAR


def test_mutation_reduction_left_out(several, wrong_by, monkeypatch):
    def local_only(group, flat, out, *, accumulate, unit, phase):
        own = flat[group.rank * out.size : (group.rank + 1) * out.size]
        np.copyto(out, out + own if accumulate else own)

    monkeypatch.setattr(unit_module, "reduce_scatter", local_only)
    assert wrong_by(prepare(CONFIG, several)) > FAR


def test_mutation_stale_shard(several, wrong_by, monkeypatch):
    """Stage 3 whose gathered parameters come from the first step for ever."""
    unshard, first = Unit.unshard, {}

    def stale(unit):
        unshard(unit)
        kept = first.setdefault(unit.layout.name, unit.whole_param.copy())
        unit.whole_param[:] = kept

    monkeypatch.setattr(Unit, "unshard", stale)
    assert wrong_by(prepare(replace(CONFIG, stage="3"), several)) > FAR


def test_mutation_reduced_list_is_refused():
    """No rank needed: a list that never reduces a unit does not pass the validator."""
    from mpizero.schedule import IllegalSchedule, validate
    from mpizero.schedule import STRATEGIES
    from tests.schedule.toys import chain, step

    actions, wrapping, *mesh = step("2", chain(), 4)
    with pytest.raises(IllegalSchedule):
        validate([a for a in actions if not isinstance(a, ReduceScatterGrad)], wrapping, STRATEGIES["2"].placement, *mesh)
