"""The lists themselves, written out by hand; and their legality on a grid."""

from __future__ import annotations

import pytest

from mpizero.schedule import STRATEGIES, show, validate
from mpizero.schedule.actions import Phase
from tests.schedule.toys import chain, step, tied


def shown(*arguments, **options):
    actions, *_ = step(*arguments, **options)
    return [show(action) for action in actions if not isinstance(action, Phase)]


def test_data_parallel():
    assert shown("0", chain((5, 7)), 4) == [
        "Forward(0, mb=0)", "Forward(1, mb=0)",
        "Backward(1, mb=0)", "AllReduceGrad(1, replicate)", "Backward(0, mb=0)", "AllReduceGrad(0, replicate)",
        "OptimStep(0)", "OptimStep(1)", "FreeGrad(0)", "FreeGrad(1)"]


def test_stage_1_reduces_after_backward_and_stage_2_inside_it():
    end = ["OptimStep(0)", "AllGatherParam(0)", "OptimStep(1)", "AllGatherParam(1)", "FreeGrad(0)", "FreeGrad(1)"]
    begin = ["Forward(0, mb=0)", "Forward(1, mb=0)", "Backward(1, mb=0)"]
    assert shown("1", chain((5, 7)), 4) == [*begin, "Backward(0, mb=0)", "ReduceScatterGrad(1)", "ReduceScatterGrad(0)", *end]
    assert shown("1-allreduce", chain((5, 7)), 4) == [*begin, "Backward(0, mb=0)", "AllReduceGrad(1, shard)", "AllReduceGrad(0, shard)", *end]
    assert shown("2", chain((5, 7)), 4) == [*begin, "ReduceScatterGrad(1)", "Backward(0, mb=0)", "ReduceScatterGrad(0)", *end]


def test_stage_3_gathers_and_frees_around_every_use():
    assert shown("3", chain((5, 7)), 4) == [
        "Unshard(0)", "Forward(0, mb=0)", "Reshard(0)", "Unshard(1)", "Forward(1, mb=0)", "Reshard(1)",
        "Unshard(1)", "Backward(1, mb=0)", "Reshard(1)", "ReduceScatterGrad(1)",
        "Unshard(0)", "Backward(0, mb=0)", "Reshard(0)", "ReduceScatterGrad(0)",
        "OptimStep(0)", "OptimStep(1)", "FreeGrad(0)", "FreeGrad(1)"]


def test_a_tied_unit_is_gathered_at_each_use_and_reduced_once_after_the_last():
    actions = shown("3", tied(), 4)
    assert actions.count("Unshard(0)") == 4 and actions.count("ReduceScatterGrad(0)") == 1
    assert actions.index("ReduceScatterGrad(0)") > actions.index("Backward(0, mb=0)") > actions.index("Backward(2, mb=0)")


@pytest.mark.parametrize("stage", ["1", "1-allreduce", "2", "3"])
def test_hybrid_sums_across_replicas_at_the_last_microbatch_only(stage):
    """Megatron PR#5743: traffic between the groups must not grow with the number of microbatches."""
    for microbatches in (1, 3):
        actions = shown(stage, chain(), 4, 2, microbatches)
        assert [actions.count(f"AllReduceShard({unit})") for unit in range(3)] == [1, 1, 1]


def test_no_sync_reduces_once():
    reductions = [sum("Grad(" in a and "Free" not in a for a in shown("2", chain(), 4, microbatches=3, no_sync=no_sync)) for no_sync in (False, True)]
    assert reductions == [9, 3]


GRID = [(stage, spec, ranks, shards, microbatches, no_sync, policy)
        for stage in STRATEGIES for spec in (chain(), tied()) for ranks in (1, 2, 3, 4, 6)
        for shards in ([1] if stage == "0" else [f for f in range(1, ranks + 1) if ranks % f == 0])
        for microbatches in (1, 2, 3) for no_sync in (False, True) for policy in (None, lambda name: "all")]


def test_every_list_is_legal():
    for stage, spec, ranks, shards, microbatches, no_sync, policy in GRID:
        actions, wrapping, *mesh = step(stage, spec, ranks, shards, microbatches, no_sync, policy)
        validate(actions, wrapping, STRATEGIES[stage].placement, *mesh)
    assert len(GRID) > 500
