"""Updates that go on beside the next step: where the pass puts them, and what the validator refuses."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpizero.planner.costs import Costs
from mpizero.planner.timeline import simulate
from mpizero.schedule import STRATEGIES, Course, IllegalSchedule, show, validate
from mpizero.schedule.actions import (
    Begin, End, FreeGrad, HoldGrad, OptimStep, StoreParam, UploadParam,
)
from tests.schedule.changes import before, moved, twice, without
from tests.schedule.models import models
from tests.schedule.toys import chain, setup

CPU, ALL = "optimizer=cpu", "params=cpu,optimizer=cpu"
LATE, AGAIN, SKIPPED = Course(late=True), Course(late=True, catches_up=True), Course(updates=False, catches_up=True)


def made(stage, spec=None, **options):
    return setup(stage, spec or chain((5, 7)), 4, **{"offload": CPU, "delayed_update_after": 0, **options})


def late(unit):
    return OptimStep(unit, late=True)


def words(actions):
    return " ".join(map(show, actions))


@pytest.mark.parametrize("stage, options, begin, catch_up", [
    ("2", {}, "-- update mb=0 HoldGrad(0) Begin(OptimStep(0, late=True)) HoldGrad(1) Begin(OptimStep(1, late=True))",
     "-- update mb=0 End(OptimStep(0, late=True)) FreeGrad(0, late=True) UploadParam(0) AllGatherParam(0) "
     "End(OptimStep(1, late=True)) FreeGrad(1, late=True) UploadParam(1) AllGatherParam(1)"),
    ("3", {"offload": ALL},
     "-- update mb=0 HoldGrad(0) Begin(OptimStep(0, late=True)) HoldGrad(1) Begin(OptimStep(1, late=True))",
     "-- update mb=0 End(OptimStep(0, late=True)) FreeGrad(0, late=True) StoreParam(0) "
     "End(OptimStep(1, late=True)) FreeGrad(1, late=True) StoreParam(1)"),
])
def test_by_hand(stage, options, begin, catch_up):
    lists = made(stage, **options).lists
    assert words(lists.begin) == begin and words(lists.catch_up) == catch_up


def test_what_a_step_does():
    lists = made("2").lists
    assert lists.along(LATE) == [*lists.accumulate, *lists.begin]
    assert lists.along(AGAIN) == [*lists.accumulate, *lists.catch_up, *lists.begin]
    assert lists.along(SKIPPED) == [*lists.accumulate, *lists.catch_up, *lists.zero_grad]
    assert lists.along(Course()) == lists.step() == [*lists.accumulate, *lists.update, *lists.zero_grad]


@pytest.mark.parametrize("delay, steps, expected", [
    (0, 0, []), (0, 1, [LATE]), (0, 9, [LATE, AGAIN]), (3, 3, [Course()]), (3, 4, [Course(), LATE]),
    (3, 5, [Course(), LATE, AGAIN])])
def test_what_a_run_comes_to(delay, steps, expected):
    lists = made("2", delayed_update_after=delay).lists
    end = lists.catch_up if LATE in expected else []
    assert lists.longest(steps) == [*(action for course in expected for action in lists.along(course)), *end]


def test_a_run_that_ends_with_a_skipped_step_has_caught_up():
    lists = made("2").lists
    assert lists.run({LATE, SKIPPED}) == [*lists.along(LATE), *lists.along(SKIPPED)]
    assert lists.run({AGAIN, LATE, SKIPPED}) == [
        action for course in (LATE, AGAIN, SKIPPED) for action in lists.along(course)]


def refused(text, change, stage="2", lag=1, **options):
    """Three late steps and the end, changed."""
    step = made(stage, **options)
    lists = step.lists
    actions = [*lists.along(LATE), *lists.along(AGAIN), *lists.along(AGAIN), *lists.catch_up]
    validate(actions, step.geometry, lag=1)
    with pytest.raises(IllegalSchedule) as error:
        validate(change(list(actions)), step.geometry, lag=lag)
    assert text in str(error.value), error.value


def test_parameters_lack_one_update_and_no_more():
    refused("Forward(0, mb=0): whole[0] is stale: it lacks an update", lambda actions: actions, lag=0)
    refused("Unshard(0): shard[0] is stale", lambda actions: actions, stage="3", lag=0)


def test_parameters_that_lack_two():
    """Unit 1 waits for its update, while unit 0 goes on."""
    step = made("0")
    lists = step.lists
    first = [*lists.along(LATE), *lists.accumulate]
    second = [End(late(0)), FreeGrad(0, late=True), UploadParam(0), HoldGrad(0), Begin(late(0)), FreeGrad(1)]
    with pytest.raises(IllegalSchedule, match=r"Forward\(1, mb=0\): whole\[1\] is stale: it lacks an update"):
        validate([*first, *second, *lists.accumulate], step.geometry, lag=1)
    validate([*first, *lists.catch_up, *lists.begin, *lists.accumulate, *lists.catch_up, *lists.zero_grad],
             step.geometry, lag=1)


@pytest.mark.parametrize("change, text, options", [
    (without(HoldGrad(1)), "it reads held[1], which is not there", {}),
    (without(Begin(late(1))), "it ends what was not begun", {}),
    (without(End(late(1))), "it meets the update of unit 1, which has not ended", {}),
    (without(FreeGrad(1, late=True)), "held[1]", {}),
    (without(UploadParam(1)), "AllGatherParam(1): it reads part[1], which is not there", {}),
    (without(UploadParam(1)), "it makes new[1], which is there already", {"stage": "3"}),
    (without(StoreParam(1)), "it makes new[1], which is there already", {"stage": "3", "offload": ALL}),
    (before(HoldGrad(0), FreeGrad(0)), "HoldGrad(0): it reads offloaded[0], which is not there", {}),
    (before(Begin(late(0)), FreeGrad(0, late=True)), "it reads held[0], which is not there", {}),
    (moved(FreeGrad(0, late=True), Begin(late(0))), "it meets the update of unit 0, which has not ended", {}),
    (moved(UploadParam(0), Begin(late(0))), "it meets the update of unit 0, which has not ended", {}),
    (twice(Begin(late(0))), "it meets the update of unit 0, which has not ended", {}),
    (before(End(late(0)), OptimStep(0)), "it meets the update of unit 0, which has not ended", {"stage": "0"}),
])
def test_an_update_at_the_wrong_time(change, text, options):
    refused(text, change, **{"stage": "2", **options})


def test_a_gradient_is_held_after_all_have_agreed():
    def change(actions):
        place = actions.index(HoldGrad(0))
        agree = next(i for i, action in enumerate(actions) if show(action) == "Agree()")
        return [*actions[:agree], HoldGrad(0), *actions[agree:place], *actions[place + 1:]]

    refused("it frees offloaded[0], on which ranks have not agreed", change)


def test_a_gradient_that_was_held_updates_once():
    def change(actions):
        place = actions.index(End(late(0)))
        return [*actions[:place], End(late(0)), UploadParam(0), OptimStep(0, late=True), *actions[place + 1:]]

    refused("held[0] has been used for an update", change)


@settings(max_examples=40, deadline=None)
@given(spec=models(), stage=st.sampled_from(list(STRATEGIES)), shards=st.sampled_from([None, 2]), params=st.booleans(),
       limit=st.none() | st.integers(1, 3), accumulation=st.integers(1, 3), overlap=st.booleans(),
       recompute=st.booleans(), ranks=st.sampled_from([2, 4]))
def test_every_list_is_legal(spec, stage, shards, params, limit, accumulation, overlap, recompute, ranks):
    setup(stage, spec, ranks, None if stage == "0" else shards, accumulation=accumulation, overlap=overlap,
          limit_all_gathers=limit, recompute=recompute, offload=ALL if params and stage == "3" else CPU,
          delayed_update_after=0)


# -- in time ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("update, expected", [
    (1.0, 6.0),  # forward 2, backward 4: two updates of 1 are over before
    (4.0, 9.0),  # the second ends at 8, then its upload of 1; the first was up at 5, which the device was not for
])
def test_updates_have_the_host_to_themselves(update, expected):
    """Steady state of two units: a step lasts as long as the device needs, or the host."""
    step = made("0")
    costs = Costs(forward=1, backward=2, optim_step=update, upload=1 if update > 1 else 0)
    timeline = simulate(step.lists.along(AGAIN), step.geometry, costs, ahead=False, after=step.lists.along(LATE))
    assert timeline.finish == expected
    ran = [(event.start, event.end) for event in timeline.events if event.stream == "host"]
    assert ran[:2] == [(0, update), (update, 2 * update)]
    assert ran[2:] == [(expected, expected + update), (expected + update, expected + 2 * update)]


def test_an_update_that_is_not_begun_is_the_ranks_own():
    step = made("0")
    timeline = simulate(step.lists.step(), step.geometry, Costs(forward=1, backward=2, optim_step=4))
    assert timeline.finish == 14 and "host" not in timeline.streams
