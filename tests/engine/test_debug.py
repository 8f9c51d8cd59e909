"""Debug mode of a run: what it finds, and that it changes nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mpizero.comm import barrier
from mpizero.engine.job import prepare
from mpizero.engine.trainer import run_steps
from mpizero.errors import CommunicationError
from mpizero.layout import Axis
from mpizero.schedule.actions import Unshard
from tests.engine.runs import MLP, run

CONFIG = replace(MLP, stage="3", steps=2)


@pytest.mark.parametrize("overlap", ["off", "on"])
def test_the_same_bits(group, overlap):
    assert run(replace(CONFIG, debug=True, overlap=overlap), group)[1] == run(CONFIG, group)[1]


@pytest.mark.mpi(min_size=2)
def test_ranks_with_other_lists_are_told(world):
    """Rank 0 gathers two units in another order. It and its neighbour name both calls; the test ends the others'
    waiting by calling nothing there."""
    job = prepare(replace(CONFIG, debug=True), world)
    assert all(job.mesh.group(axis).checked for axis in Axis) and job.ledger.debug
    gathers = [place for place, action in enumerate(job.lists.accumulate) if action == Unshard(0)]
    if world.rank == 0:
        job.lists.accumulate[gathers[0]] = Unshard(1)
    if world.rank in (0, 1) and world.size == 2:
        with pytest.raises(CommunicationError, match="ranks call different collectives: .*layers.0.*layers.1|"
                                                     "ranks call different collectives: .*layers.1.*layers.0"):
            run_steps(job, steps=1)
    barrier(world)
