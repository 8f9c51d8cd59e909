"""The executor does what the list says, and nothing that it does not know."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import get_args

import pytest

from mpizero.engine.collectives import unshard
from mpizero.engine.executor import EXECUTE
from mpizero.engine.job import prepare
from mpizero.engine.trainer import run_steps
from mpizero.engine.update import Update, optim_step
from mpizero.layout import Axis
from mpizero.optim import Adam
from mpizero.schedule import STRATEGIES, Action, IllegalSchedule, UnknownAction, flow, validate
from mpizero.schedule.actions import Backward, Forward, Save
from mpizero.schedule.values import Name
from tests.engine.runs import MLP

OF_UNITS = {Name.WHOLE, Name.SHARD, Name.STATES, Name.GRAD, Name.REDUCED, Name.GRAD_FP32}
CONFIG = replace(MLP, stage="0", steps=1, dtype="float32")


@dataclass(frozen=True)
class Dance:
    unit: int = 0


def test_every_action_has_an_execution():
    assert set(EXECUTE) == set(get_args(Action))


def test_an_unknown_action_is_an_error(group):
    job = prepare(CONFIG, group)
    with pytest.raises(UnknownAction, match="Dance"):
        job.executor.run([Dance()])


@pytest.mark.parametrize("stage", list(STRATEGIES))
def test_the_values_that_live_are_those_that_the_effects_leave(group, stage):
    """After every action, as the effects of the list tell."""
    job = prepare(replace(CONFIG, stage=stage, accumulation=2), group)
    there = set()
    for action, _, changes in flow(job.lists.accumulate, job.geometry):
        job.executor.run([action], batch=job.batch, grad_scale=1.0, agree=lambda found: None)
        for change in changes:
            if change.value.name not in OF_UNITS:
                (there.discard if type(change).__name__ == "Freed" else there.add)(change.value)
        assert set(job.executor.values) == there, action
    assert not there
    job.executor.run(job.lists.zero_grad)


def swap(actions):
    """The backward of segment 2 before that of segment 3."""
    i = actions.index(Backward(3, 0))
    actions[i : i + 4] = actions[i + 2 : i + 4] + actions[i : i + 2]
    return actions


def recompute(k):
    """Recompute as a list that keeps nothing to compute from."""
    def change(actions):
        return [b for a in actions for b in ([replace(a, save=Save.NOTHING)] if a == Forward(k, 0) else
                                             [Forward(k, 0), a] if a == Backward(k, 0) else [a])]
    return change


@pytest.mark.parametrize("change", [swap, recompute(1), recompute(0), recompute(4)],
                         ids=["order", "middle", "first", "last"])
def test_wrong_lists_are_refused_and_do_not_run(group, change):
    """They computed other gradients once, without an error."""
    job = prepare(CONFIG, group)
    lists = replace(job.lists, accumulate=change(list(job.lists.accumulate)))
    with pytest.raises(IllegalSchedule, match="which is not there"):
        validate(lists.step(), job.geometry)
    with pytest.raises(AssertionError, match="is not there"):
        run_steps(replace(job, lists=lists))


def test_units_refuse_to_compute_with_old_parameters(group):
    """Also past the validator."""
    unit = prepare(replace(CONFIG, stage="3"), group).state.units[1]
    unshard(unit, Axis.SHARD).finish()
    with pytest.raises(AssertionError, match="is gathered: its whole parameters would be old"):
        optim_step(unit, Update(Adam(), lr=1.0, step=1, factor=1.0))
    with pytest.raises(AssertionError, match="is whole"):
        unshard(unit, Axis.SHARD)
    unit.reshard()
    with pytest.raises(AssertionError, match="is not gathered"):
        unit.whole_param.sum()
    with pytest.raises(AssertionError, match="is whole"):
        unshard(prepare(replace(CONFIG, stage="2"), group).state.units[1], Axis.SHARD)
