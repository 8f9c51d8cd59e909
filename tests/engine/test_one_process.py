"""N ranks against one process that computes the concatenated batch: an oracle without collectives.

Tolerance: float32 sums in another order. 1e-5 relative after a few steps is ten times what was measured; a dropped
division, a doubled gradient or a forgotten gather changes every state by more than 1e-2 (see the mutations below).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mpizero.comm import all_gather_values, barrier, mixed
from mpizero.engine import trainer
from mpizero.engine.executor import COLLECTIVES
from mpizero.engine.job import prepare
from mpizero.engine.pending import Pending
from mpizero.engine.trainer import evaluate_loss, run_steps
from mpizero.engine.unit import Unit
from mpizero.schedule.actions import AllGatherParam, Unshard
from tests.engine.runs import GPT, MLP, distance, outcome, run

CLOSE, FAR = 1e-5, 1e-2


@pytest.fixture
def on_rank_0(group):
    """on_rank_0(act): what act(group of rank 0 alone) returns there, as every rank gets it: a number."""

    def on_rank_0(act):
        one = group.subgroup([0], "one process")
        number = np.nan if one is None else act(one)
        barrier(group)
        return all_gather_values(group, np.array([number]))[0, 0]

    return on_rank_0


@pytest.fixture
def from_one_process(group, on_rank_0):
    """from_one_process(config, outcomes): the largest distance of an outcome from that of one process, which runs
    `config` on the batch of the whole group."""

    def from_one_process(config, outcomes):
        whole = replace(config, batch_size=config.batch_size * group.size, stage="0", shard_size=None)

        def largest(one):
            reference = run(whole, one)[1]
            return max(distance(here, reference) for here in outcomes)

        return on_rank_0(largest)

    return from_one_process


@pytest.mark.parametrize("config", [replace(MLP, dtype="float32", steps=8), replace(GPT, clip=0.3),
                                    replace(GPT, accumulation=2)], ids=["mlp", "gpt clipped", "gpt accumulated"])
def test_losses_norms_weights_and_moments(group, from_one_process, config):
    """Every mesh at stage 3; on four ranks hybrid ones at the other stages too."""
    meshes = [("0", None)] + [("3", f) for f in range(1, group.size + 1) if group.size % f == 0]
    meshes += [(stage, f) for stage in "12" for f in (1, 2)] if group.size == 4 else []
    outcomes = [run(replace(config, stage=stage, shard_size=f), group)[1] for stage, f in meshes]
    assert from_one_process(config, outcomes) < CLOSE


def test_accumulating_is_a_larger_batch(group):
    whole = run(replace(GPT, batch_size=4), group)[1]
    parts = [run(replace(GPT, batch_size=1, accumulation=4, no_sync=no_sync), group)[1] for no_sync in (False, True)]
    assert all(distance(part, whole) < CLOSE for part in parts)


@pytest.mark.usefixtures("few_held_out")
def test_held_out_loss_does_not_depend_on_ranks(group, on_rank_0):
    config = replace(GPT, steps=0)
    reference = on_rank_0(lambda one: evaluate_loss(prepare(config, one)))
    assert abs(evaluate_loss(prepare(replace(config, stage="3"), group)) - reference) < 1e-6


# -- mutations: the comparison above must be able to fail -------------------------------------------------------------


@pytest.fixture
def wrong_by(from_one_process, monkeypatch):
    """wrong_by(job): distance of a run of the mutated job from one process that is not mutated."""

    def wrong_by(job):
        here = outcome(job, run_steps(job).records)
        monkeypatch.undo()
        return from_one_process(job.config, [here])

    return wrong_by


@pytest.fixture
def several(group):
    if group is not None and group.size == 1:
        pytest.skip("one rank has nobody to disagree with")
    return group


CONFIG = replace(MLP, dtype="float32", steps=6, stage="2")


def test_no_mutation(several, wrong_by):
    assert wrong_by(prepare(CONFIG, several)) < CLOSE


def test_mutation_gather_forgotten(several, wrong_by):
    job = prepare(CONFIG, several)
    update = [action for action in job.lists.update if not isinstance(action, AllGatherParam)]
    assert wrong_by(replace(job, lists=replace(job.lists, update=update))) > FAR


def test_mutation_division_dropped(several, wrong_by, monkeypatch):
    """Gradients are divided by this rank's targets alone."""
    accumulate = trainer._accumulate

    def undivided(job, scale, stop):
        return accumulate(job, scale * job.world.size, stop)

    monkeypatch.setattr(trainer, "_accumulate", undivided)
    assert wrong_by(prepare(CONFIG, several)) > FAR


def test_mutation_a_rank_counts_twice(several, wrong_by, monkeypatch):
    close = Unit.close_grad

    def doubled(unit):
        flat = close(unit)
        if several.rank == several.size - 1:
            flat *= 2
        return flat

    monkeypatch.setattr(Unit, "close_grad", doubled)
    assert wrong_by(prepare(CONFIG, several)) > FAR


def test_mutation_reduction_left_out(several, wrong_by, monkeypatch):
    def local_only(channel, flat, out, accumulate, wire):
        own = flat[channel.rank * out.size : (channel.rank + 1) * out.size]
        np.copyto(out, out + own if accumulate else own)
        return iter(())

    monkeypatch.setattr(mixed, "reduce_scatter", local_only)
    assert wrong_by(prepare(CONFIG, several)) > FAR


def test_mutation_stale_shard(several, wrong_by, monkeypatch):
    """Stage 3 whose gathered parameters come from the first step for ever."""
    unshard, first = COLLECTIVES[Unshard], {}

    def stale(unit, axis):
        pending = unshard(unit, axis)

        def done():
            pending.done()
            unit.whole_param[:] = first.setdefault(unit.layout.name, unit.whole_param.copy())

        return Pending(pending.going, done)

    monkeypatch.setitem(COLLECTIVES, Unshard, stale)
    assert wrong_by(prepare(replace(CONFIG, stage="3"), several)) > FAR
