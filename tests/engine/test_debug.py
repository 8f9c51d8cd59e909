"""Debug mode of a run: what it finds, and that it changes nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

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


def test_ranks_with_other_lists_are_told(group):
    """Rank 0 gathers two units in another order. It and its neighbour name both calls."""
    if group is None or group.size != 2:
        pytest.skip("of more ranks, those that are told nothing would wait until these leave; so for two")
    job = prepare(replace(CONFIG, debug=True), group)
    assert all(job.mesh.group(axis).checked for axis in Axis) and job.ledger.debug
    gathers = [place for place, action in enumerate(job.lists.accumulate) if action == Unshard(0)]
    if group.rank == 0:
        actions = list(job.lists.accumulate)
        actions[gathers[0]] = Unshard(1)
        job = replace(job, lists=replace(job.lists, accumulate=actions))
    with pytest.raises(CommunicationError, match="ranks call different collectives: .*layers.0.*layers.1|"
                                                 "ranks call different collectives: .*layers.1.*layers.0"):
        run_steps(job, steps=1)
