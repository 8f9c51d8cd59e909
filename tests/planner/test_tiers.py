"""Bytes by tier and moves between tiers: equal to the plan without offload, and to the data-flow graph's optimum with it."""

from __future__ import annotations

import pytest

from mpizero.layout import wrap
from mpizero.planner import Geometry, plan_memory
from mpizero.planner.partition import best, infinity
from mpizero.planner.tiers import NONE, OFFLOADS, plan_tiers
from mpizero.schedule import STRATEGIES, training_lists
from tests.schedule.toys import chain, mlp5, tied

OFFLOAD = {offload.name: offload for offload in OFFLOADS}
PSI = 5 * 64 + 7 * 64


def setup(stage, spec, ranks, dtype="float16", **options):
    wrapping = wrap(spec, ranks)
    shards = 1 if stage == "0" else ranks
    actions = training_lists(STRATEGIES[stage], wrapping, ranks // shards, shards, **options).step()
    return actions, Geometry(wrapping, STRATEGIES[stage].placement, ranks // shards, shards, dtype)


@pytest.mark.parametrize("accumulation", [1, 3])
@pytest.mark.parametrize("spec", [mlp5(), tied()], ids=["mlp", "tied"])
@pytest.mark.parametrize("stage", list(STRATEGIES))
def test_without_offload_it_is_the_memory_plan(stage, spec, accumulation):
    actions, geometry = setup(stage, spec, 4, accumulation=accumulation)
    plan, tiers = plan_memory(actions, geometry), plan_tiers(actions, geometry, NONE)
    assert tiers.device_points == [point.peak_bytes for point in plan.points]
    assert tiers.at_rest == {"device": plan.at_rest_bytes, "host": 0, "nvme": 0} and tiers.peak["device"] == plan.peak_bytes
    assert tiers.moves == []


@pytest.mark.parametrize("ranks", [1, 4])
@pytest.mark.parametrize("name, stage", [(offload.name, stage) for offload in OFFLOADS for stage in offload.stages])
def test_what_leaves_the_device_arrives_elsewhere(name, stage, ranks):
    actions, geometry = setup(stage, chain((5 * 64, 7 * 64)), ranks)
    assert sum(plan_tiers(actions, geometry, OFFLOAD[name]).at_rest.values()) == plan_memory(actions, geometry).at_rest_bytes


def moved(tiers, *links):
    return sum(move.nbytes for move in tiers.moves if move.link in links)


def test_on_one_device_it_is_the_data_flow_graphs_answer():
    """ZeRO-Offload: 4M over PCIe, 2M stay. ZeRO-Infinity: 6M, nothing stays."""
    (optimum,), far = best(PSI), infinity(PSI)
    offload = plan_tiers(*setup("2", chain((5 * 64, 7 * 64)), 1), OFFLOAD["cpu"])
    assert (moved(offload, "down", "up"), offload.at_rest["device"]) == (optimum.traffic, optimum.device_bytes) == (4 * PSI, 2 * PSI)
    everything = plan_tiers(*setup("3", chain((5 * 64, 7 * 64)), 1), OFFLOAD["cpu+params"])
    assert (moved(everything, "down", "up"), everything.at_rest["device"]) == (far.traffic, far.device_bytes) == (6 * PSI, 0)


def test_zero_offload_on_four_ranks_by_hand():
    """Units of 320 and 448 elements. On the device: whole parameters; unit 1's backward adds its whole gradient, its reduction a shard."""
    tiers = plan_tiers(*setup("2", chain((320, 448)), 4), OFFLOAD["cpu"])
    whole, shard = 2 * 768, 768 // 4
    assert tiers.at_rest == {"device": whole, "host": 12 * shard, "nvme": 0}
    assert tiers.peak["device"] == whole + 2 * 448 + 2 * 448 // 4
    assert tiers.peak["host"] == (12 + 2) * shard + 4 * 448 // 4  # and the float32 gradient of the block being updated
    assert (moved(tiers, "down"), moved(tiers, "up"), moved(tiers, "nvme")) == (2 * shard, 2 * shard, 0)


def test_nvme_passes_through_the_host():
    tiers = plan_tiers(*setup("3", chain((320, 448)), 4), OFFLOAD["nvme"])
    shard = 768 // 4
    assert tiers.at_rest == {"device": 0, "host": 0, "nvme": 14 * shard} and tiers.peak["nvme"] == 16 * shard
    assert tiers.peak["host"] == (12 + 2 + 2 + 4) * 448 // 4  # states, gradient, new parameters, float32 gradient of the largest unit
    assert tiers.peak["device"] == 2 * 448 + 2 * 448  # the largest unit, whole: parameters and gradient
    assert moved(tiers, "up") == 2 * 2 * shard and moved(tiers, "down") == 2 * shard
    gathers, gradient, states, parameters = 2 * 2, 2 + 2, 12 + 12, 2  # in twice; out and in; in and out; out
    assert moved(tiers, "nvme") == (gathers + gradient + states + parameters) * shard


def test_accumulated_gradients_go_down_each_time():
    once, thrice = (plan_tiers(*setup("2", chain((320, 448)), 4, accumulation=count), OFFLOAD["cpu"]) for count in (1, 3))
    assert moved(thrice, "down") == 3 * moved(once, "down") and moved(thrice, "up") == moved(once, "up")
    assert thrice.peak == once.peak


def test_float32_parameters_need_master_weights_elsewhere():
    tiers = plan_tiers(*setup("2", chain((320, 448)), 4, "float32"), OFFLOAD["cpu"])
    assert tiers.at_rest == {"device": 4 * 768, "host": 12 * 768 // 4, "nvme": 0}
    assert plan_tiers(*setup("3", chain((320, 448)), 4, "float32"), OFFLOAD["cpu+params"]).at_rest["host"] == 12 * 768 // 4


def test_gradients_that_nvme_holds_already_are_read_and_written():
    once, thrice = (plan_tiers(*setup("3", chain((320, 448)), 4, accumulation=count), OFFLOAD["nvme"]) for count in (1, 3))
    gathers, gradient = 2 * 2 * 768 // 4, 2 * 768 // 4
    assert moved(thrice, "nvme") == moved(once, "nvme") + 2 * (gathers + 2 * gradient)
