"""The validator refuses lists whose gradients are not those of the losses that count, or span an update."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mpizero.layout import REPLICATED, SHARDED, Axis, Placement
from mpizero.schedule import STRATEGIES, IllegalSchedule, StepSettings, schedule
from mpizero.schedule.actions import (
    Agree, AllReduceGrad, AllReduceShard, Backward, Forward, FreeGrad, LoadBatch, Loss, LossBackward,
    OptimStep, Phase, ReduceScatterGrad,
)
from mpizero.schedule.passes import without_saving
from mpizero.schedule.strategies import Zero2
from tests.schedule.changes import before, moved, refused, without
from tests.schedule.toys import chain, check, setup, step, tied

STAGES = list(STRATEGIES)


def of(mb):
    """Whether an action is about that microbatch."""
    return lambda action: not isinstance(action, Phase) and getattr(action, "mb", None) == mb


@pytest.mark.parametrize("stage", ["2", "3"])
def test_a_microbatch_that_counts_without_its_gradient(stage):
    """Forward and loss of the second microbatch, as an evaluation has them: the gradient would be half of it."""
    def change(actions):
        begin = actions.index(Phase("backward", 1))
        kept = actions[: begin] + actions[actions.index(Agree()):]
        return [b for a in kept for b in (without_saving([a]) if of(1)(a) else [a])]
    refused("Agree(): reduced[", change, stage, accumulation=2, backward_prefetch=0)


@pytest.mark.parametrize("stage", ["0", "2", "3"])
@pytest.mark.parametrize("units", [(0, 1, 2), (2,)], ids=["all", "one"])
def test_gradients_freed_between_microbatches(stage, units):
    def change(actions):
        place = actions.index(Phase("forward", 1))
        return [*actions[:place], *map(FreeGrad, units), *actions[place:]]
    refused(f"it frees reduced[{units[0]}], on which ranks have not agreed", change, stage, accumulation=2)


def test_a_microbatch_that_is_evaluated_and_then_trained():
    """In place of another, which never comes: the number of targets is right, the samples are not."""
    def change(actions):
        trained = [a for a in actions if not of(1)(a) or isinstance(a, Phase)]
        looked = without_saving(a for a in actions if of(0)(a) and isinstance(a, LoadBatch | Forward | Loss))
        return [*looked, *trained]
    refused("the loss of microbatch 0 has been counted in this step", change, "2", accumulation=2, no_sync=True)


@pytest.mark.parametrize("mb", [1, -1])
def test_a_microbatch_that_is_not_of_this_step(mb):
    refused(f"Agree(): the losses of microbatches [{mb}] count, which are not 0 to n - 1",
            lambda actions: [replace(a, mb=mb) if of(0)(a) else a for a in actions], "2")


@pytest.mark.parametrize("stage", ["1", "2", "3"])
def test_replicas_that_sum_after_they_have_agreed(stage):
    """The norm, so clipping, would be that of a part."""
    refused("Agree(): reduced[1] is not summed along replicate", moved(AllReduceShard(1), Agree()), stage, shards=2)


def test_a_strategy_that_never_updates():
    class Idle(Zero2):
        def update(self, unit):
            yield from ()

    with pytest.raises(IllegalSchedule, match="the model would never learn"):
        schedule(Idle(), setup("2", chain(), 4).geometry, StepSettings("2"))


@pytest.mark.parametrize("stage", ["0", "2", "3"])
def test_a_forward_that_spans_an_update(stage):
    """Old activations, new weights."""
    actions, geometry = step(stage, chain(), 4)
    begin, turn, end = (actions.index(action) for action in (LoadBatch(0), Phase("backward"), Agree()))
    early = [replace(a, mb=1) if of(0)(a) else a for a in actions[begin:turn]]
    with pytest.raises(IllegalSchedule, match=r"Agree\(\): .*\[0, mb=1\].* still there"):
        check([*actions[:end], *early, *actions[end:]], geometry)
    with pytest.raises(IllegalSchedule, match="before the gradients of the step are freed"):
        check([*actions[: end + 1], *early, *actions[end + 1:]], geometry)


def test_an_update_before_the_agreement():
    refused("OptimStep(1): ranks have not agreed on the gradients", moved(OptimStep(1), Phase("reduce")), "2")
    refused("OptimStep(0): ranks have not agreed on the gradients", without(Agree()), "0")


def test_a_reduction_after_the_agreement():
    refused("AllReduceShard(0): ranks have agreed on the gradients already", before(OptimStep(0), AllReduceShard(0)),
            "2", shards=2)


def test_a_second_agreement_needs_second_gradients():
    refused("Agree(): it reads reduced[0], which is not there",
            lambda actions: [*actions, Agree()], "2")


MIXED = Placement(params=REPLICATED, grads=REPLICATED, optim=REPLICATED)


def test_an_optimizer_that_updates_the_whole_unit_needs_the_whole_gradient():
    mixed, hybrid = (replace(step("2", chain((8,)), 4, shards)[1], placement=MIXED) for shards in (4, 2))
    begin = [LoadBatch(0), Forward(0, 0), Loss(0), LossBackward(0), Backward(0, 0)]
    end = [Agree(), OptimStep(0), FreeGrad(0)]
    with pytest.raises(IllegalSchedule, match="holds this rank's shard alone"):
        check([*begin, ReduceScatterGrad(0), *end], mixed)
    check([*begin, AllReduceGrad(0, Axis.SHARD), *end], mixed)
    with pytest.raises(IllegalSchedule, match="holds this rank's shard alone"):
        check([*begin, AllReduceGrad(0, Axis.SHARD), AllReduceShard(0), *end], hybrid)


@pytest.mark.parametrize("first, second", [(0, 1), (1, 0)])
def test_a_shard_is_not_added_to_a_whole_gradient(first, second):
    reductions = (ReduceScatterGrad(1), AllReduceGrad(1, Axis.SHARD))

    def change(actions):
        places = [i for i, action in enumerate(actions) if action == reductions[0]]
        actions[places[0]], actions[places[1]] = reductions[first], reductions[second]
        return actions
    refused("reduced[1], to which it adds, holds another extent of the unit", change, "2", accumulation=2)


def test_a_rank_that_keeps_a_shard_cannot_update_all():
    with pytest.raises(ValueError, match="cannot update all of them"):
        Placement(params=SHARDED, grads=SHARDED, optim=REPLICATED)


def test_what_is_refused_no_more():
    """Two microbatches whose forwards come first (1F1B), and a tied gradient that is summed at each of its uses."""
    actions, geometry = step("2", chain(), 4, accumulation=2, no_sync=True)
    turn, again = actions.index(Phase("backward")), actions.index(Phase("forward", 1))
    second = actions.index(Phase("backward", 1))
    check([*actions[:turn], *actions[again:second], *actions[turn:again], *actions[second:]], geometry)
    actions, geometry = step("2", tied(), 4)
    check([b for a in actions for b in ([a, ReduceScatterGrad(0)] if a == Backward(2, 0) else [a])], geometry)
