"""The validator refuses what a run would not notice: actions left out, done twice, or in another order."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module

import pytest

from mpizero.layout import Axis
from mpizero.schedule import STRATEGIES, IllegalSchedule, effect_of
from mpizero.schedule import values as v
from mpizero.schedule.actions import (
    AllGatherParam, AllReduceGrad, AllReduceShard, Backward, Forward, FreeGrad, LoadBatch, Loss, LossBackward,
    OptimStep, Phase, ReduceScatterGrad, Reshard, Save, Unshard,
)
from tests.schedule.changes import before, exchanged, refused, twice, without, without_all
from tests.schedule.toys import chain, check, step, tied

FOUR = chain((5, 7, 3, 4))


def recomputed(k):
    """Recompute of a segment, written with actions that do not say so."""
    def change(actions):
        return [b for a in actions
                for b in ([replace(a, save=Save.NOTHING)] if a == Forward(k, 0) else
                          [Forward(k, 0), a] if a == Backward(k, 0) else [a])]
    return change


@pytest.mark.parametrize("action, stage, options, words", [
    (LoadBatch(0), "2", {}, "Forward(0, mb=0): it reads x[0, mb=0], which is not there"),
    (Unshard(1), "3", {}, "Forward(1, mb=0): it reads whole[1], which is not there"),
    (Reshard(1), "3", {}, "Unshard(1): it makes whole[1], which is there already"),
    (Forward(1, 0), "2", {}, "Forward(2, mb=0): it reads x[2, mb=0], which is not there"),
    (Loss(0), "2", {}, "LossBackward(mb=0): it reads saved[3, mb=0], which is not there"),
    (LossBackward(0), "2", {}, "Backward(2, mb=0): it reads dy[2, mb=0], which is not there"),
    (Backward(1, 0), "2", {}, "ReduceScatterGrad(1): it reads grad[1], which is not there"),
    (Backward(1, 0), "1", {}, "Backward(0, mb=0): it reads dy[0, mb=0], which is not there"),
    (Backward(0, 0), "2", {"spec": tied()}, "Agree(): dy[0, mb=0], saved[0, mb=0] is still there"),
    (ReduceScatterGrad(1), "2", {}, "Agree(): it reads reduced[1], which is not there"),
    (AllReduceGrad(2, Axis.REPLICATE), "0", {}, "Agree(): it reads reduced[2], which is not there"),
    (AllReduceShard(0), "3", {"shards": 2}, "Agree(): reduced[0] is not summed along replicate"),
    (OptimStep(1), "1", {}, "AllGatherParam(1): it reads part[1], which is not there"),
    (OptimStep(1), "2", {}, "AllGatherParam(1): it reads part[1], which is not there"),
    (OptimStep(1), "3", {}, "shard[1] is stale: it lacks an update that others have had"),
    (OptimStep(1), "0", {}, "whole[1] is stale: it lacks an update that others have had"),
    (AllGatherParam(1), "2", {}, "whole[1] is stale: unit 1 must be gathered after its update"),
    (AllGatherParam(0), "1", {}, "whole[0] is stale: unit 0 must be gathered after its update"),
    (FreeGrad(2), "2", {}, "at the end of the step: reduced[2] is still there"),
])
def test_an_action_left_out(action, stage, options, words):
    refused(words, without(action), stage, **options)


@pytest.mark.parametrize("action, stage, words", [
    (LoadBatch(0), "2", "it makes x[0, mb=0], which is there already"),
    (Forward(1, 0), "2", "it reads x[1, mb=0], which is not there"),
    (Loss(0), "2", "it reads x[3, mb=0], which is not there"),
    (LossBackward(0), "2", "it reads saved[3, mb=0], which is not there"),
    (Backward(1, 0), "2", "it reads saved[1, mb=0], which is not there"),
    (ReduceScatterGrad(1), "2", "it reads grad[1], which is not there"),
    (AllReduceGrad(1, Axis.REPLICATE), "0", "it reads grad[1], which is not there"),
    (AllReduceShard(1), "2", "reduced[1] is summed along replicate already"),
    (OptimStep(1), "0", "reduced[1] has been used for an update"),
    (OptimStep(1), "2", "it frees whole[1], which is not there"),
    (OptimStep(1), "3", "reduced[1] has been used for an update"),
    (AllGatherParam(1), "2", "it reads part[1], which is not there"),
    (Unshard(1), "3", "it makes whole[1], which is there already"),
    (Reshard(2), "3", "it frees whole[2], which is not there"),
    (FreeGrad(1), "0", "it frees reduced[1], which is not there"),
])
def test_an_action_done_twice(action, stage, words):
    options = {"shards": 2} if isinstance(action, AllReduceShard) else {}
    refused(words, twice(action), stage, **options)


# -- the flow of a microbatch ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stage", STRATEGIES)
def test_two_backwards_exchanged(stage):
    change = exchanged(Backward(2, 0), Backward(3, 0))
    lacking = "whole[2]" if stage[0] == "3" else "dy[2, mb=0]"
    refused(f"Backward(2, mb=0): it reads {lacking}, which is not there", change, stage, FOUR)
    refused("Backward(2, mb=0): it reads dy[2, mb=0], which is not there", change, stage, FOUR,
            policy=lambda name: "all")


@pytest.mark.parametrize("stage", STRATEGIES)
@pytest.mark.parametrize("segment", [0, 1, 3], ids=["first", "middle", "last"])
def test_a_recompute_that_does_not_say_so(stage, segment):
    """Its input is gone: no forward without `save` keeps it."""
    refused(f"Forward({segment}, mb=0): it reads x[{segment}, mb=0], which is not there", recomputed(segment), stage,
            FOUR)


@pytest.mark.parametrize("one, other", [(0, 1), (1, 2), (0, 3)])
def test_two_forwards_exchanged(one, other):
    refused(f"it reads x[{other}, mb=0], which is not there", exchanged(Forward(one, 0), Forward(other, 0)), "2", FOUR)


@pytest.mark.parametrize("stage", STRATEGIES)
def test_a_second_saved_forward(stage):
    """Of the whole model, with a batch of its own: where its input is there, what the first one saved is in the way."""
    def change(actions):
        return [b for a in actions for b in (
            [Loss(0), LoadBatch(0), *(action for action in actions[:actions.index(Loss(0))] if action != LoadBatch(0))]
            if a == Loss(0) else [a])]
    refused("Forward(0, mb=0): it makes saved[0, mb=0], which is there already", change, stage)


def test_a_loss_without_its_backward():
    backward = [LossBackward(0), *(Backward(segment, 0) for segment in range(3)), *map(ReduceScatterGrad, range(3)),
                *map(OptimStep, range(3)), *map(AllGatherParam, range(3)), *map(FreeGrad, range(3))]
    refused("Agree(): it reads reduced[0], which is not there", without_all(*backward), "2")


def test_a_forward_whose_loss_is_never_computed():
    end = (Loss(0), LossBackward(0), Backward(2, 0), Backward(1, 0), Backward(0, 0))
    refused("ReduceScatterGrad(2): it reads grad[2], which is not there", without(*end), "1")


def test_a_microbatch_loaded_twice():
    """As two microbatches it is one whose samples count twice."""
    def change(actions):
        return [replace(action, mb=0) if getattr(action, "mb", 0) == 1 else action for action in actions]
    for stage in STRATEGIES:
        refused("Loss(mb=0): the loss of microbatch 0 has been counted in this step", change, stage, accumulation=2)


def test_a_microbatch_may_come_again_in_the_next_step():
    actions, geometry = step("2", chain(), 4, accumulation=2)
    check([*actions, *actions, *actions], geometry)


def test_half_a_step_is_not_freed():
    """One gradient of three is gone: the others still hold the microbatch."""
    refused("LoadBatch(mb=0): it makes x[0, mb=0] before the gradients of the step are freed",
            before(FreeGrad(1), LoadBatch(0)), "2")


def test_the_place_of_a_mistake_is_told():
    actions, geometry = step("2", chain(), 4)
    with pytest.raises(IllegalSchedule, match=r"^action 2, Forward\(0, mb=0\): it reads x\[0, mb=0\]"):
        check([actions[0], Phase("forward"), *actions[2:]], geometry)


def test_the_effects_are_those_of_the_dtypes_that_run(monkeypatch):
    """A float32 sum of float16 gradients needs storage of its own; a float16 one takes theirs."""
    seen = []
    monkeypatch.setattr(import_module("mpizero.schedule.validate"), "effect_of",
                        lambda *asked: seen.append(effect_of(*asked)) or seen[-1])
    for sums, expected in (("float32", ((v.reduced(0),), None, (v.grad(0),))),
                           ("float16", ((), (v.grad(0), v.reduced(0)), ()))):
        seen.clear()
        step("0", chain(), 4, sum_dtype=sums)
        assert {(effect.adds, effect.becomes, effect.frees) for effect in seen
                if effect.sums is not None and effect.sums.source == v.grad(0)} == {expected}
