"""Where a step's seconds went, and held-out losses on the way."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from mpizero.comm import barrier
from mpizero.comm.traffic import Record
from mpizero.engine.config import TrainConfig
from mpizero.engine.job import prepare
from mpizero.engine.spent import PARTS, added, seconds_by
from mpizero.engine.summary import summarise
from mpizero.engine.trainer import evaluate_loss, run_steps
from mpizero.schedule.actions import Agree, Backward, Forward, OptimStep, Recompute

MLP = TrainConfig(steps=6, hidden=16, batch_size=4)


def record(seconds: float, waited: float) -> Record:
    return Record("all_gather", "u", "forward", "g", "float32", 1, 0, 0, 0, seconds, waited=waited, exposed=seconds)


def test_parts_by_hand():
    spent = {Forward: 0.75, Recompute: 0.25, Backward: 2.0, OptimStep: 0.5, Agree: 0.75}
    parts = seconds_by(spent, [record(0.5, 0.125), record(0.25, 0.25)], 6.0)
    assert parts == {"compute": 3.0, "update": 0.5, "communication": 0.375, "waiting": 0.375, "rest": 1.75}
    assert added(added({}, parts), parts) == {part: 2 * seconds for part, seconds in parts.items()}


@pytest.mark.mpi(min_size=2)
def test_who_comes_late_is_waited_for(world):
    """Rank 0 is late by 0.3 s: it is the others' waiting, and its own rest."""
    job = prepare(replace(MLP, stage="2"), world)
    run_steps(job, steps=1)
    job.executor.spent[Forward] += 9.0  # of that step, and no part of the next one
    barrier(world)

    def late() -> int:
        time.sleep(0.3 if world.rank == 0 else 0)
        return 0

    found = run_steps(job, steps=1, stop=late)
    parts = found.records[0].seconds_by
    assert tuple(parts) == PARTS and sum(parts.values()) == pytest.approx(found.records[0].seconds)
    assert all(seconds >= 0 for seconds in parts.values())
    if world.rank == 0:
        assert parts["rest"] >= 0.3 > parts["waiting"] or parts["waiting"] < found.records[0].seconds - 0.3
    elif world.rank == 1:  # its neighbour
        assert parts["waiting"] >= 0.2
    assert found.seconds_by == parts


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("stage", ["0", "2", "3"])
def test_held_out_losses_change_nothing(world, stage):
    """The same training, and each loss is that of a run which is asked at that moment."""
    often, seldom = (prepare(replace(MLP, stage=stage, eval_every=every), world) for every in (2, 0))
    found = run_steps(often)
    assert [row.step + 1 for row in found.records if row.eval_loss is not None] == [2, 4, 6]
    losses = []
    for row in found.records:
        run_steps(seldom, steps=1)
        losses.append(None if row.eval_loss is None else evaluate_loss(seldom))
    assert [row.eval_loss for row in found.records] == losses
    calls = []
    often.executor.run = lambda *arguments, **options: calls.append(arguments)  # the last one is not computed again
    summary = summarise(often, found)
    assert summary["eval_loss"] == losses[-1] and not calls
    assert summary["eval_losses"] == [[2, losses[1]], [4, losses[3]], [6, losses[5]]]
    assert len(summary["seconds_by"]) == world.size and set(summary["seconds_by"][0]) == set(PARTS)
    assert all(row["peak"] == row["planned_peak"] for row in summary["memory"])
