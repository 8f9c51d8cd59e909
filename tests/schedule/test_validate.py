"""The validator refuses what a run would not notice: mutations of legal lists."""

from __future__ import annotations

import pytest

from mpizero.schedule import STRATEGIES, IllegalSchedule, validate
from mpizero.schedule.actions import (
    AllGatherParam,
    AllReduceGrad,
    AllReduceShard,
    Axis,
    Backward,
    Forward,
    FreeGrad,
    OptimStep,
    Phase,
    ReduceScatterGrad,
    Reshard,
    Unshard,
)
from tests.schedule.toys import chain, step, tied


def check(stage, actions, wrapping, replicas, shards):
    validate(actions, wrapping, STRATEGIES[stage].placement, replicas, shards)


def without(action, stage, spec=None, **options):
    """The step's list without the first such action."""
    actions, *rest = step(stage, spec or chain(), 4, **options)
    actions.remove(action)
    return stage, actions, *rest


@pytest.mark.parametrize("action, stage, options, words", [
    (AllGatherParam(1), "2", {}, "unit 1 is stale: gather it after the update"),
    (AllGatherParam(0), "1", {}, "unit 0 is stale"),
    (ReduceScatterGrad(1), "2", {}, r"OptimStep\(1\): its gradient is not reduced"),
    (AllReduceGrad(2, Axis.REPLICATE), "0", {}, r"OptimStep\(2\): its gradient is not reduced"),
    (AllReduceShard(0), "3", {"shards": 2}, r"OptimStep\(0\): its gradient is not summed across the replicas"),
    (Unshard(1), "3", {}, r"Forward\(1, mb=0\): unit 1 is not gathered"),
    (Reshard(1), "3", {}, r"Unshard\(1\): it is gathered already"),
    (Forward(1, 0), "2", {}, r"Backward\(1, mb=0\): its forward must come first"),
    (Backward(1, 0), "2", {}, r"ReduceScatterGrad\(1\): it has no unreduced gradient"),
    (FreeGrad(2), "2", {}, "unit 2 still has a gradient"),
])
def test_an_action_left_out(action, stage, options, words):
    with pytest.raises(IllegalSchedule, match=words):
        check(*without(action, stage, **options))


@pytest.mark.parametrize("action, stage", [(ReduceScatterGrad(1), "2"), (OptimStep(1), "2"), (Unshard(1), "3"), (FreeGrad(1), "0"),
                                           (AllReduceShard(1), "2"), (Reshard(2), "3"), (Unshard(0), "2")])
def test_an_action_done_twice_or_where_it_has_no_place(action, stage):
    actions, *rest = step(stage, chain(), 4, 2 if isinstance(action, AllReduceShard) else None)
    place = actions.index(action) + 1 if action in actions else 1
    with pytest.raises(IllegalSchedule, match=r"action \d+, "):
        check(stage, [*actions[:place], action, *actions[place:]], *rest)


def test_a_tied_gradient_must_wait_for_its_last_use():
    actions, *rest = step("2", tied(), 4)
    actions.remove(ReduceScatterGrad(0))
    actions.insert(actions.index(Backward(2, 0)) + 1, ReduceScatterGrad(0))
    with pytest.raises(IllegalSchedule, match="a stage that uses it is still to come"):
        check("2", actions, *rest)


def test_an_update_of_stale_replicas_shows_in_the_next_step():
    actions, *rest = step("2", chain(), 4)
    forgetful = [action for action in actions if not isinstance(action, AllGatherParam)]
    with pytest.raises(IllegalSchedule, match=r"Forward\(0, mb=0\): unit 0 is stale"):
        check("2", [*forgetful, *actions], *rest)


def test_a_skipped_step_is_legal():
    actions, *rest = step("2", chain(), 4)
    begin, end = actions.index(Phase("update")), actions.index(Phase("zero_grad"))
    check("2", [*actions[:begin], *actions[end:]], *rest)
