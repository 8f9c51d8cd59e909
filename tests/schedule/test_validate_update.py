"""The validator refuses gradients that are summed wrongly, parameters that are old, and more memory than is allowed."""

from __future__ import annotations

import pytest

from mpizero.layout import Axis
from mpizero.schedule import STRATEGIES, IllegalSchedule
from mpizero.schedule.actions import (
    AllGatherParam, AllReduceGrad, AllReduceShard, Backward, Forward, FreeGrad, OptimStep, Phase, ReduceScatterGrad,
    Reshard, Unshard,
)
from tests.schedule.changes import before, moved, refused, without
from tests.schedule.toys import chain, check, step, tied

# -- sums of gradients -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stage, reduction", [("0", AllReduceGrad(0, Axis.REPLICATE)), ("2", ReduceScatterGrad(0)),
                                              ("3", ReduceScatterGrad(0))])
def test_a_tied_gradient_must_wait_for_its_last_use(stage, reduction):
    refused("Agree(): grad[0] is still there", moved(reduction, Backward(2, 0)), stage, tied())


@pytest.mark.parametrize("stage", ["1", "2", "3"])
def test_a_sum_across_replicas_after_every_microbatch(stage):
    """The second one would count the first microbatch of the other replicas twice."""
    refused("ReduceScatterGrad(1): reduced[1], to which it adds, is summed along other axes: a part would count twice",
            before(Phase("forward", 1), AllReduceShard(1)), stage, shards=2, accumulation=2)


def test_a_gradient_that_is_summed_once_for_two_microbatches():
    """That is what `no_sync` does."""
    actions, geometry = step("2", chain(), 4, accumulation=2)
    check(without(ReduceScatterGrad(1))(actions), geometry)


@pytest.mark.parametrize("stage", ["1", "2", "3"])
def test_a_sum_after_the_update(stage):
    refused("Agree(): reduced[1] is not summed along replicate", moved(AllReduceShard(1), OptimStep(1)), stage,
            shards=2)


def test_a_gradient_of_samples_that_the_update_missed():
    """The second microbatch is added to a gradient that has been used."""
    def change(actions):
        early = [action for action in actions if isinstance(action, OptimStep | AllGatherParam)]
        rest = [action for action in actions if action not in early]
        return [b for a in rest for b in ([*early, a] if a == Phase("forward", 1) else [a])]
    refused("OptimStep(0): ranks have not agreed on the gradients", change, "2", accumulation=2)


@pytest.mark.parametrize("stage, right, wrong, words", [
    ("0", AllReduceGrad(1, Axis.REPLICATE), AllReduceGrad(1, Axis.SHARD), "reduced[1] is not summed along replicate"),
    ("1-allreduce", AllReduceGrad(1, Axis.SHARD), AllReduceGrad(1, Axis.REPLICATE),
     "AllReduceShard(1): reduced[1] is summed along replicate already"),
    ("2", ReduceScatterGrad(1), ReduceScatterGrad(1, Axis.REPLICATE),
     "units are divided along shard, not along replicate"),
    ("2", AllReduceShard(1), AllReduceShard(1, Axis.SHARD),
     "along shard ranks hold different parts, which have no sum"),
    ("2", AllGatherParam(1), AllGatherParam(1, Axis.REPLICATE), "units are divided along shard, not along replicate"),
    ("3", Unshard(1), Unshard(1, Axis.REPLICATE), "units are divided along shard, not along replicate"),
])
def test_a_collective_along_the_wrong_axis(stage, right, wrong, words):
    refused(words, lambda actions: [wrong if action == right else action for action in actions], stage,
            **({} if stage == "0" else {"shards": 2}))


# -- parameters --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stage", ["1", "1-allreduce", "2"])
def test_a_unit_that_is_never_updated(stage):
    refused("at the end of the step: whole[1] is stale: it lacks an update that others have had",
            without(OptimStep(1), AllGatherParam(1)), stage)


@pytest.mark.parametrize("stage", ["0", "1", "2"])
def test_whole_parameters_cannot_be_gathered(stage):
    refused("Unshard(0): it reads shard[0], which is not there", before(Forward(0, 0), Unshard(0)), stage)


def test_an_update_while_the_unit_is_gathered():
    refused("OptimStep(0): unit 0 is gathered: the whole parameters would be old ones",
            before(OptimStep(0), Unshard(0)),
            "3")


def test_an_update_of_stale_replicas_shows_in_the_next_step():
    actions, geometry = step("2", chain(), 4)
    forgetful = [action for action in actions if not isinstance(action, AllGatherParam)]
    with pytest.raises(IllegalSchedule, match=r"Forward\(0, mb=0\): whole\[0\] is stale: unit 0 must be gathered"):
        check([*forgetful, *actions], geometry)


def test_whole_parameters_that_rest_must_not_be_freed():
    refused("at the end of the step: whole[1] is gone", before(FreeGrad(0), Reshard(1)), "2")


def test_a_skipped_step_is_legal():
    for stage in STRATEGIES:
        actions, geometry = step(stage, chain(), 4)
        begin, end = actions.index(Phase("update")), actions.index(Phase("zero_grad"))
        check([*actions[:begin], *actions[end:]], geometry)


# -- the limit ---------------------------------------------------------------------------------------------------------


def test_a_limit_holds_unless_one_segment_needs_more():
    actions, geometry = step("3", tied(), 4)
    check(actions, geometry, limit=1)  # the head reads two units
    ahead = before(Forward(0, 0), Unshard(1))(without(Unshard(1))(actions))
    check(ahead, geometry, limit=2)
    with pytest.raises(IllegalSchedule, match=r"Forward\(0, mb=0\): 2 units were gathered at once: above the limit"):
        check(ahead, geometry, limit=1)


def test_a_limit_holds_after_the_last_computation():
    actions, geometry = step("3", chain(), 4)
    idle = [*actions, Unshard(0), Unshard(1), Reshard(0), Reshard(1)]
    check(idle, geometry, limit=2)
    with pytest.raises(IllegalSchedule, match="at the end of the step: 2 units were gathered at once"):
        check(idle, geometry, limit=1)


@pytest.mark.parametrize("stage, reader, value", [("0", "Forward(1, mb=0)", "whole[1]"),
                                                  ("3", "Unshard(1)", "shard[1]")])
def test_parameters_that_lack_an_update_are_refused_where_they_are_read(stage, reader, value):
    """In the next step: not only at its end."""
    actions, geometry = step(stage, chain(), 4)
    forgetful = without(OptimStep(1))(list(actions))
    with pytest.raises(IllegalSchedule) as error:
        check([*forgetful, *actions], geometry)
    assert f", {reader}: {value} is stale: it lacks an update that others have had" in str(error.value)
