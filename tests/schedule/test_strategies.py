"""The lists themselves, written out by hand; and their legality on a grid."""

from __future__ import annotations

import pytest

from mpizero.errors import ConfigError
from mpizero.layout import OptimizerSpec, Sees
from mpizero.schedule import STRATEGIES, IllegalSchedule, StepSettings, set_up, show
from mpizero.schedule.actions import OptimStep, Phase, ReduceScatterGrad, Reshard, Unshard
from mpizero.schedule.strategies import Zero1, Zero2, Zero3
from tests.schedule.toys import chain, check, step, tied


def shown(*arguments, **options):
    actions, _ = step(*arguments, **options)
    return [show(action) for action in actions if not isinstance(action, Phase)]


FORWARD = ["LoadBatch(mb=0)", "Forward(0, mb=0)", "Forward(1, mb=0)", "Loss(mb=0)", "LossBackward(mb=0)",
           "Backward(1, mb=0)"]


def test_data_parallel():
    assert shown("0", chain((5, 7)), 4) == [
        *FORWARD, "AllReduceGrad(1, replicate)", "Backward(0, mb=0)", "AllReduceGrad(0, replicate)",
        "Agree()", "OptimStep(0)", "OptimStep(1)", "FreeGrad(0)", "FreeGrad(1)"]


def test_stage_1_reduces_after_backward_and_stage_2_inside_it():
    end = ["Agree()", "OptimStep(0)", "AllGatherParam(0)", "OptimStep(1)", "AllGatherParam(1)", "FreeGrad(0)",
           "FreeGrad(1)"]
    assert shown("1", chain((5, 7)), 4) == [
        *FORWARD, "Backward(0, mb=0)", "ReduceScatterGrad(1)", "ReduceScatterGrad(0)", *end]
    assert shown("1-allreduce", chain((5, 7)), 4) == [
        *FORWARD, "Backward(0, mb=0)", "AllReduceGrad(1, shard)", "AllReduceGrad(0, shard)", *end]
    assert shown("2", chain((5, 7)), 4) == [
        *FORWARD, "ReduceScatterGrad(1)", "Backward(0, mb=0)", "ReduceScatterGrad(0)", *end]


def test_stage_3_gathers_and_frees_around_every_use():
    assert shown("3", chain((5, 7)), 4) == [
        "LoadBatch(mb=0)",
        "Unshard(0)", "Forward(0, mb=0)", "Reshard(0)", "Unshard(1)", "Forward(1, mb=0)", "Reshard(1)",
        "Loss(mb=0)", "LossBackward(mb=0)",
        "Unshard(1)", "Backward(1, mb=0)", "Reshard(1)", "ReduceScatterGrad(1)",
        "Unshard(0)", "Backward(0, mb=0)", "Reshard(0)", "ReduceScatterGrad(0)",
        "Agree()", "OptimStep(0)", "OptimStep(1)", "FreeGrad(0)", "FreeGrad(1)"]


def test_a_tied_unit_is_gathered_at_each_use_and_reduced_once_after_the_last():
    actions = shown("3", tied(), 4)
    assert actions.count("Unshard(0)") == 4 and actions.count("ReduceScatterGrad(0)") == 1
    reduced, first, last = map(actions.index, ("ReduceScatterGrad(0)", "Backward(0, mb=0)", "Backward(2, mb=0)"))
    assert reduced > first > last


@pytest.mark.parametrize("stage", ["1", "1-allreduce", "2", "3"])
def test_hybrid_sums_across_replicas_at_the_last_microbatch_only(stage):
    """Megatron PR#5743: traffic between the groups must not grow with the number of microbatches."""
    for microbatches in (1, 3):
        actions = shown(stage, chain(), 4, 2, accumulation=microbatches)
        assert [actions.count(f"AllReduceShard({unit})") for unit in range(3)] == [1, 1, 1]


def test_no_sync_reduces_once():
    reductions = [sum("Grad(" in action and "Free" not in action
                      for action in shown("2", chain(), 4, accumulation=3, no_sync=no_sync))
                  for no_sync in (False, True)]
    assert reductions == [9, 3]


GRID = [(stage, spec, ranks, shards, policy, microbatches, no_sync)
        for stage in STRATEGIES for spec in (chain(), tied()) for ranks in (1, 2, 3, 4, 6)
        for shards in ([1] if stage == "0" else [f for f in range(1, ranks + 1) if ranks % f == 0])
        for policy in (None, lambda name: "all") for microbatches, no_sync in ((1, False), (3, False), (3, True))]


def test_every_list_is_legal():
    for *arguments, microbatches, no_sync in GRID:
        check(*step(*arguments, accumulation=microbatches, no_sync=no_sync))
    assert len(GRID) > 500


# -- a strategy that is wrong: each list is looked at ------------------------------------------------------------------


class ForgetsToGather(Zero2):
    """So the next step computes with old parameters."""

    def update(self, unit):
        yield OptimStep(unit)


class ReducesInTheUpdate(Zero1):
    """So a step whose update is skipped has gradients left."""

    def reduce(self, unit, mb):
        yield from ()

    def update(self, unit):
        yield ReduceScatterGrad(unit)
        yield from super().update(unit)


class KeepsWholeUnits(Zero3):
    """Where no reduction follows, as in an evaluation."""

    def forward(self, segment, mb):
        return (action for action in super().forward(segment, mb) if mb.sync or not isinstance(action, Reshard))


@pytest.mark.parametrize("stage, wrong, words", [
    ("2", ForgetsToGather, "Forward(0, mb=0): whole[0] is stale"),
    ("1", ReducesInTheUpdate, "Agree(): it reads reduced[0], which is not there"),
    ("3", KeepsWholeUnits, "at the end of the step: whole[0], whole[1], whole[2] is still there"),
])
def test_a_wrong_strategy_gives_no_lists(monkeypatch, stage, wrong, words):
    monkeypatch.setitem(STRATEGIES, stage, wrong())
    with pytest.raises(IllegalSchedule) as error:
        step(stage, chain(), 4)
    assert words in str(error.value)


# -- settings ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings, words", [
    ({"stage": "4"}, "`stage` '4' is none of 0, 1, 1-allreduce, 2, 3"),
    ({"accumulation": 0}, "`accumulation` 0 is impossible: it must be at least 1, and below 2^40"),
    ({"shard_size": -1}, "`shard_size` -1 is impossible: it must be at least 1"),
    ({"limit_all_gathers": 0}, "`limit_all_gathers` 0 is impossible: it must be at least 1"),
    ({"backward_prefetch": -1}, "`backward_prefetch` -1 is impossible: it must be at least 0"),
    ({"forward_prefetch": 2**40}, "`forward_prefetch` 1099511627776 is impossible"),
])
def test_settings_that_cannot_work(settings, words):
    with pytest.raises(ConfigError) as error:
        StepSettings(**settings)
    assert words in str(error.value)


def test_stage_0_has_no_shard_size():
    assert StepSettings("0", 1).mesh(4) == StepSettings("0").mesh(4)
    with pytest.raises(ConfigError, match="`stage` 0 shards nothing, so `shard_size` 2 has no meaning"):
        StepSettings("0", 2).mesh(4)


@pytest.mark.parametrize("sees", [Sees.ROW, Sees.MATRIX])
def test_an_optimizer_that_looks_at_more_than_elements_is_refused(sees):
    with pytest.raises(ConfigError, match=f"`optimizer` wide updates a {sees.value} at a time"):
        set_up(chain(), 4, optimizer=OptimizerSpec("wide", (), sees))


# -- a strategy that is wrong where its update is skipped --------------------------------------------------------------


class GathersForItsUpdate(Zero3):
    """And frees only in the update."""

    def reduce(self, unit, mb):
        yield Unshard(unit)

    def update(self, unit):
        yield Reshard(unit)
        yield from super().update(unit)


def test_a_strategy_that_is_wrong_in_a_skipped_step_gives_no_lists(monkeypatch):
    monkeypatch.setitem(STRATEGIES, "3", GathersForItsUpdate())
    with pytest.raises(IllegalSchedule, match=r"Unshard\(0\): it makes whole\[0\], which is there already"):
        step("3", chain(), 4)
