"""Bytes by tier and moves between tiers: equal to the plan without offload, and to the data-flow graph's optimum with
it."""

from __future__ import annotations

import pytest

from mpizero.layout import optimizer_spec
from mpizero.papers.partition import best, infinity
from mpizero.planner import plan_memory
from mpizero.planner.tiers import NONE, OFFLOADS, plan_tiers
from mpizero.schedule import STRATEGIES
from mpizero.schedule.actions import Backward, Begin, End, OptimStep, ReduceScatterGrad, Unshard
from tests.schedule.toys import chain, mlp5, step, tied

OFFLOAD = {offload.name: offload for offload in OFFLOADS}
PSI = 5 * 64 + 7 * 64


@pytest.mark.parametrize("accumulation", [1, 3])
@pytest.mark.parametrize("spec", [mlp5(), tied()], ids=["mlp", "tied"])
@pytest.mark.parametrize("stage", list(STRATEGIES))
def test_without_offload_it_is_the_memory_plan(stage, spec, accumulation):
    actions, geometry = step(stage, spec, 4, accumulation=accumulation)
    plan, tiers = plan_memory(actions, geometry), plan_tiers(actions, geometry, NONE)
    assert tiers.device_points == [point.peak_bytes for point in plan.points]
    assert tiers.full_points == [point.device_bytes for point in plan.points]
    assert tiers.at_rest == {"device": plan.at_rest_bytes, "host": 0,
                             "nvme": 0} and tiers.peak["device"] == plan.peak_bytes
    assert tiers.moves == []


@pytest.mark.parametrize("ranks", [1, 4])
@pytest.mark.parametrize("name, stage", [(offload.name, stage) for offload in OFFLOADS for stage in offload.stages])
def test_what_leaves_the_device_arrives_elsewhere(name, stage, ranks):
    actions, geometry = step(stage, chain((5 * 64, 7 * 64)), ranks)
    tiers = plan_tiers(actions, geometry, OFFLOAD[name])
    assert sum(tiers.at_rest.values()) == plan_memory(actions, geometry).at_rest_bytes


def moved(tiers, *links):
    return sum(move.nbytes for move in tiers.moves if move.link in links)


def test_on_one_device_it_is_the_data_flow_graphs_answer():
    """ZeRO-Offload: 4M over PCIe, 2M stay. ZeRO-Infinity: 6M, nothing stays."""
    (optimum,), far = best(PSI), infinity(PSI)
    offload = plan_tiers(*step("2", chain((5 * 64, 7 * 64)), 1), OFFLOAD["cpu"])
    found = (moved(offload, "down", "up"), offload.at_rest["device"])
    assert found == (optimum.traffic, optimum.device_bytes) == (4 * PSI, 2 * PSI)
    everything = plan_tiers(*step("3", chain((5 * 64, 7 * 64)), 1), OFFLOAD["cpu+params"])
    found = (moved(everything, "down", "up"), everything.at_rest["device"])
    assert found == (far.traffic, far.device_bytes) == (6 * PSI, 0)


def test_zero_offload_on_four_ranks_by_hand():
    """Units of 320 and 448 elements. On the device: whole parameters; unit 1's backward adds its whole gradient, its
    reduction a shard."""
    tiers = plan_tiers(*step("2", chain((320, 448)), 4), OFFLOAD["cpu"])
    whole, shard = 2 * 768, 768 // 4
    assert tiers.at_rest == {"device": whole, "host": 12 * shard, "nvme": 0}
    assert tiers.peak["device"] == whole + 2 * 448 + 2 * 448 // 4
    assert tiers.peak["host"] == (12 + 2) * shard + 4 * 448 // 4  # and the float32 gradient of the block being updated
    assert (moved(tiers, "down"), moved(tiers, "up"), moved(tiers, "nvme")) == (2 * shard, 2 * shard, 0)


def test_nvme_passes_through_the_host():
    tiers = plan_tiers(*step("3", chain((320, 448)), 4), OFFLOAD["nvme"])
    shard = 768 // 4
    assert tiers.at_rest == {"device": 0, "host": 0, "nvme": 14 * shard} and tiers.peak["nvme"] == 16 * shard
    # states, gradient, new parameters, float32 gradient of the largest unit
    assert tiers.peak["host"] == (12 + 2 + 2 + 4) * 448 // 4
    assert tiers.peak["device"] == 2 * 448 + 2 * 448  # the largest unit, whole: parameters and gradient
    assert moved(tiers, "up") == 2 * 2 * shard and moved(tiers, "down") == 2 * shard
    gathers, gradient, states, parameters = 2 * 2, 2 + 2, 12 + 12, 2  # in twice; out and in; in and out; out
    assert moved(tiers, "nvme") == (gathers + gradient + states + parameters) * shard


@pytest.mark.parametrize("name, gathered, reduced, updated", [
    ("nvme", 2, 2, 12 + 2 + 2 + 4),  # a shard up, a shard down; states, gradient, new parameters, float32 gradient
    ("cpu+params", 0, 2, 4), ("cpu", 0, 2, 4), ("none", 0, 0, 0),  # the reduced gradient stays on the host
])
def test_what_a_moment_takes_on_the_host(name, gathered, reduced, updated):
    """Bytes of an element of the shard, above what rests there, by one action alone."""
    _, geometry = step("3", chain((320, 448)), 4)

    def above_rest(*actions):
        tiers = plan_tiers(actions, geometry, OFFLOAD[name])
        return (tiers.peak["host"] - tiers.at_rest["host"]) / (448 // 4)

    assert above_rest(Unshard(1)) == gathered
    assert above_rest(Backward(1, 0), ReduceScatterGrad(1)) == reduced
    assert above_rest(OptimStep(1)) == updated


def test_what_is_reduced_beside_computation_is_on_its_way_until_it_ends():
    """The shard lies on the device from Begin to End, and then on the host alone."""
    _, geometry = step("3", chain((320, 448)), 4)
    reduction, shard = ReduceScatterGrad(1), 2 * 448 // 4
    actions = [Backward(1, 0), Begin(reduction), Backward(0, 0), End(reduction)]
    made, begun, meanwhile, ended = plan_tiers(actions, geometry, OFFLOAD["cpu"]).device_points
    assert (begun - made, meanwhile - begun, ended - meanwhile) == (shard, 2 * 320, 0)
    after = plan_tiers([*actions, Backward(1, 1)], geometry, OFFLOAD["cpu"]).device_points[-1]
    assert after == meanwhile - shard - 2 * 448 + 2 * 448


def test_a_gradient_lies_on_the_device_until_it_is_reduced():
    _, geometry = step("3", chain((320, 448)), 4)
    whole, shard = 2 * 448, 2 * 448 // 4
    for name in ("cpu", "cpu+params", "nvme", "none"):
        tiers = plan_tiers([Backward(1, 0), ReduceScatterGrad(1)], geometry, OFFLOAD[name])
        rest = tiers.at_rest["device"]
        assert [point - rest for point in tiers.device_points] == [whole, whole + shard]


def test_accumulated_gradients_go_down_each_time():
    once, thrice = (plan_tiers(*step("2", chain((320, 448)), 4, accumulation=count), OFFLOAD["cpu"])
                    for count in (1, 3))
    assert moved(thrice, "down") == 3 * moved(once, "down") and moved(thrice, "up") == moved(once, "up")
    assert thrice.peak == once.peak


def test_float32_parameters_need_master_weights_elsewhere():
    tiers = plan_tiers(*step("2", chain((320, 448)), 4, dtype="float32"), OFFLOAD["cpu"])
    assert tiers.at_rest == {"device": 4 * 768, "host": 12 * 768 // 4, "nvme": 0}
    assert plan_tiers(*step("3", chain((320, 448)), 4, dtype="float32"),
                      OFFLOAD["cpu+params"]).at_rest["host"] == 12 * 768 // 4


def test_states_of_other_optimizers_elsewhere():
    """None at all of SGD without momentum; but what is updated must be there: 16-bit weights without master weights."""
    for master, param in ((True, 4), (False, 2)):
        spec = optimizer_spec("sgd", 0.0, master)
        tiers = plan_tiers(*step("2", chain((320, 448)), 4, optimizer=spec), OFFLOAD["cpu"])
        assert tiers.at_rest == {"device": 2 * 768, "host": param * 768 // 4, "nvme": 0}
    tiers = plan_tiers(*step("3", chain((320, 448)), 4, optimizer=spec), OFFLOAD["cpu+params"])
    assert tiers.at_rest == {"device": 0, "host": 2 * 768 // 4, "nvme": 0}
    lion = plan_tiers(*step("3", chain((320, 448)), 4, optimizer=optimizer_spec("lion")), OFFLOAD["nvme"])
    assert lion.at_rest == {"device": 0, "host": 0, "nvme": (2 + 8) * 768 // 4}


def test_gradients_that_nvme_holds_already_are_read_and_written():
    once, thrice = (plan_tiers(*step("3", chain((320, 448)), 4, accumulation=count), OFFLOAD["nvme"])
                    for count in (1, 3))
    gathers, gradient = 2 * 2 * 768 // 4, 2 * 768 // 4
    assert moved(thrice, "nvme") == moved(once, "nvme") + 2 * (gathers + 2 * gradient)


def test_float32_sums_go_down_and_lie_there_as_float32():
    """Gradients alone: 4 bytes of an element of a shard, at each microbatch, and in and out of NVMe."""
    for name in ("cpu", "nvme"):
        half, full = (plan_tiers(*step("3", chain((320, 448)), 4, accumulation=3, sum_dtype=sums), OFFLOAD[name])
                      for sums in (None, "float32"))
        more = 2 * 768 // 4
        assert moved(full, "down") == moved(half, "down") + 3 * more
        assert full.peak["host" if name == "cpu" else "nvme"] == half.peak["host" if name == "cpu" else "nvme"] + more
        assert moved(full, "nvme") == moved(half, "nvme") + (6 * more if name == "nvme" else 0)
        assert moved(full, "up") == moved(half, "up")
