"""The five-layer MLP in float16: what a rank stores and sends. Source of the numbers: the lecture's experiments 02,
recomputed by hand."""

from __future__ import annotations

import pytest

from mpizero.layout import UPDATE_BLOCK
from mpizero.memory.kinds import WORKSPACE
from mpizero.planner import formula_after_backward, plan_memory, plan_traffic, sent_bytes
from mpizero.schedule import STRATEGIES
from mpizero.schedule.actions import Backward, OptimStep
from tests.planner.golden import AFTER_BACKWARD, SENT, STAGES
from tests.schedule.toys import chain, mlp5, step


def plans(stage, ranks, shards=None, **options):
    actions, geometry = step(stage, mlp5(), ranks, shards, **options)
    return plan_memory(actions, geometry), plan_traffic(actions, geometry), geometry


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("index", range(5), ids=STAGES)
def test_bytes_and_traffic(ranks, index):
    memory, traffic, geometry = plans(STAGES[index], ranks)
    assert memory.after_backward_bytes == formula_after_backward(geometry) == AFTER_BACKWARD[ranks][index]
    assert sent_bytes(traffic) == SENT[ranks][index]
    assert sum(send.rounds for send in traffic) == (ranks - 1) * 5 * STRATEGIES[STAGES[index]].volume
    assert memory.points[-1].live == memory.at_rest | {WORKSPACE: 0}  # a step ends where it began


def test_peaks_on_four_ranks():
    memory, *_ = plans("3", 4)
    shards, reduced, whole = 114_296, (1552 + 9312 + 9312) // 4 * 2, 9312 * 2 * 2
    assert (memory.peak_bytes, memory.peak_action) == (161_632, Backward(1, 0))
    assert memory.peak_bytes == shards + reduced + whole
    memory, *_ = plans("0", 4)
    assert (memory.peak_bytes, memory.peak_action) == (559_744, OptimStep(1))
    assert memory.peak_bytes == 522_496 + 4 * 9312


def test_hybrid():
    memory, traffic, geometry = plans("3", 4, 2)
    assert sent_bytes(traffic) == 130_624
    assert memory.after_backward_bytes == 8 * 32_656 == formula_after_backward(geometry)


def test_padding():
    units = plans("0", 3)[2].wrapping.units
    assert [unit.padded_numel - unit.numel for unit in units] == [0, 0, 0, 0, 2]


@pytest.mark.parametrize("stage", ["2", "3"])
def test_accumulation_trades_memory_for_traffic(stage):
    """Reducing after each microbatch: K times the gradient traffic, 1/N of the bytes. no_sync: once, and whole
    gradients."""
    every, once = plans(stage, 4, accumulation=4), plans(stage, 4, accumulation=4, no_sync=True)
    grads = [sum(send.nbytes for send in traffic if send.op == "reduce_scatter") for _, traffic, _ in (every, once)]
    assert grads == [4 * 48_984, 48_984]
    assert every[0].after_backward_bytes == plans(stage, 4)[0].after_backward_bytes
    assert once[0].peak_by_kind["unsharded_grad"] == 2 * 32_656
    assert every[0].peak_by_kind["unsharded_grad"] == 2 * 9312


def test_float32_parameters_are_their_own_master_weights():
    assert plan_memory(*step("0", mlp5(), 4, dtype="float32")).after_backward_bytes == (4 + 4 + 8) * 32_656


def test_a_model_of_any_size_is_planned_without_arrays():
    """1T parameters on 1024 ranks, ZeRO table 1: 15.6 GB a rank at stage 3."""
    assert round(plan_memory(*step("3", chain((10**9,) * 1000), 1024)).after_backward_bytes / 1e9, 1) == 15.6


def test_an_update_takes_a_float32_block_of_the_gradient():
    """Of what a rank updates, but no more than a block at once."""
    for numel, block in ((100, 100), (UPDATE_BLOCK, UPDATE_BLOCK), (10 * UPDATE_BLOCK, UPDATE_BLOCK)):
        for stage, shards in (("0", 1), ("3", 4)):
            plan = plan_memory(*step(stage, chain((numel,)), 4))
            assert plan.peak_by_kind["grad_fp32"] == 4 * min(numel // shards, block)
