"""Bytes by tier and moves between tiers: equal to the plan without offload, and to the data-flow graph's optimum with
it."""

from __future__ import annotations

import pytest

from mpizero.layout import HOST, NVME, Tier, optimizer_spec
from mpizero.memory.kinds import MODEL_STATE
from mpizero.papers.partition import best, infinity
from mpizero.planner import plan_memory
from mpizero.planner.tiers import OFFLOADS, moved_by_link, plan_tiers
from mpizero.schedule import STRATEGIES
from mpizero.schedule.actions import Backward, DownloadGrad, FetchParam, OptimStep, ReduceScatterGrad
from tests.schedule.toys import chain, mlp5, step, tied

OFFLOAD = {offload.name: offload for offload in OFFLOADS}
TWO = chain((320, 448))
PSI = 768
SHARD = 768 // 4


def planned(stage, name, spec=TWO, ranks=4, **options):
    return plan_tiers(*step(stage, spec, ranks, offload=OFFLOAD[name].setting, **options))


def moved(tiers, *links):
    return sum(move.nbytes for move in tiers.moves if move.link in links)


@pytest.mark.parametrize("accumulation", [1, 3])
@pytest.mark.parametrize("spec", [mlp5(), tied()], ids=["mlp", "tied"])
@pytest.mark.parametrize("stage", list(STRATEGIES))
def test_without_offload_it_is_the_memory_plan(stage, spec, accumulation):
    actions, geometry = step(stage, spec, 4, accumulation=accumulation)
    plan, tiers = plan_memory(actions, geometry), plan_tiers(actions, geometry)
    assert tiers.device_points == [point.peak_bytes for point in plan.points]
    assert tiers.full_points == [point.device_bytes for point in plan.points]
    assert tiers.at_rest == {"device": plan.at_rest_bytes, "host": 0, "nvme": 0}
    assert tiers.peak == {"device": plan.peak_bytes, "host": 0, "nvme": 0}
    assert tiers.full_peak == {"device": plan.device_peak_bytes, "host": 0, "nvme": 0}
    assert tiers.moves == []


@pytest.mark.parametrize("ranks", [1, 4])
@pytest.mark.parametrize("name, stage", [(offload.name, stage) for offload in OFFLOADS for stage in offload.stages])
def test_what_leaves_the_device_arrives_elsewhere(name, stage, ranks):
    tiers = planned(stage, name, ranks=ranks)
    assert sum(tiers.at_rest.values()) == plan_memory(*step(stage, TWO, ranks)).at_rest_bytes
    actions, geometry = step(stage, TWO, ranks, offload=OFFLOAD[name].setting)
    for tier in Tier:
        plan = plan_memory(actions, geometry, tier=tier)
        assert (plan.peak_bytes, plan.device_peak_bytes) == (tiers.peak[tier], tiers.full_peak[tier])


def test_on_one_device_it_is_the_data_flow_graphs_answer():
    """ZeRO-Offload: 4M over PCIe, 2M stay. ZeRO-Infinity: 6M, nothing stays."""
    (optimum,), far = best(PSI), infinity(PSI)
    offload = planned("2", "cpu", ranks=1)
    found = (moved(offload, "down", "up"), offload.at_rest["device"])
    assert found == (optimum.traffic, optimum.device_bytes) == (4 * PSI, 2 * PSI)
    everything = planned("3", "cpu+params", ranks=1)
    found = (moved(everything, "down", "up"), everything.at_rest["device"])
    assert found == (far.traffic, far.device_bytes) == (6 * PSI, 0)


def states_peak(stage, name, tier, **options):
    """Of model states alone, without workspace."""
    return plan_memory(*step(stage, TWO, 4, offload=OFFLOAD[name].setting, **options), tier=tier).peak_bytes


def test_zero_offload_on_four_ranks_by_hand():
    """Units of 320 and 448 elements. On the device: whole parameters; unit 1's backward adds its whole gradient, its
    reduction a shard."""
    tiers = planned("2", "cpu")
    whole = 2 * PSI
    assert tiers.at_rest == {"device": whole, "host": 12 * SHARD, "nvme": 0}
    assert states_peak("2", "cpu", Tier.DEVICE) == whole + 2 * 448 + 2 * 448 // 4
    # the gradients, and of the unit being updated a block in float32 and its new parameters
    assert states_peak("2", "cpu", HOST) == (12 + 2) * SHARD + (4 + 2) * 448 // 4
    assert (moved(tiers, "down"), moved(tiers, "up"), moved(tiers, "nvme")) == (2 * SHARD, 2 * SHARD, 0)
    assert moved_by_link(*step("2", TWO, 4, offload="optimizer=cpu")) == {"device-host": 4 * SHARD, "host-nvme": 0}


def test_an_upload_that_goes_on_holds_its_parameters_meanwhile():
    alone, beside = (states_peak("2", "cpu", HOST, overlap=overlap) for overlap in (False, True))
    assert beside == alone + 2 * 320 // 4


def test_nvme_passes_through_the_host():
    tiers = planned("3", "nvme")
    assert tiers.at_rest == {"device": 0, "host": 0, "nvme": 14 * SHARD} and tiers.peak["nvme"] == 16 * SHARD
    assert states_peak("3", "nvme", Tier.DEVICE) == 2 * 448 + 2 * 448  # the largest unit: parameters and gradient
    assert states_peak("3", "nvme", NVME) == 16 * SHARD
    assert moved(tiers, "up") == 2 * 2 * SHARD and moved(tiers, "down") == 2 * SHARD
    # in twice; out, in for the norm, in for the update; in and out; out
    gathers, gradient, states, parameters = 2 * 2, 2 + 2 + 2, 12 + 12, 2
    assert moved(tiers, "nvme") == (gathers + gradient + states + parameters) * SHARD


@pytest.mark.parametrize("name, updated", [("cpu+params", 4), ("cpu", 4 + 2), ("none", 0)])
def test_what_a_moment_takes_on_the_host(name, updated):
    """Bytes of an element of the shard, above what rests there, by one action alone."""
    _, geometry = step("3", TWO, 4, offload=OFFLOAD[name].setting)

    def above_rest(*actions):
        plan = plan_memory(actions, geometry, tier=HOST)
        return (plan.peak_bytes - plan.at_rest_bytes) / (448 // 4)

    if name == "cpu+params":
        assert above_rest(FetchParam(1)) == 0
    assert above_rest(Backward(1, 0), ReduceScatterGrad(1), DownloadGrad(1)) == (0 if name == "none" else 2)
    assert above_rest(OptimStep(1)) == updated


def test_a_gradient_lies_on_the_device_until_it_is_down():
    for name in ("cpu", "cpu+params", "nvme"):
        _, geometry = step("3", TWO, 4, offload=OFFLOAD[name].setting)
        plan = plan_memory([Backward(1, 0), ReduceScatterGrad(1), DownloadGrad(1)], geometry)
        whole, shard, rest = 2 * 448, 2 * 448 // 4, plan.at_rest_bytes
        assert [point.peak_bytes - rest for point in plan.points] == [whole, whole + shard, shard]
        assert sum(plan.points[-1].live[kind] for kind in MODEL_STATE) == rest


def test_accumulated_gradients_go_down_each_time():
    once, thrice = (planned("2", "cpu", accumulation=count) for count in (1, 3))
    assert moved(thrice, "down") == 3 * moved(once, "down") and moved(thrice, "up") == moved(once, "up")


def test_float32_parameters_need_master_weights_elsewhere():
    assert planned("2", "cpu", dtype="float32").at_rest == {"device": 4 * PSI, "host": 12 * SHARD, "nvme": 0}
    assert planned("3", "cpu+params", dtype="float32").at_rest["host"] == 12 * SHARD


def test_states_of_other_optimizers_elsewhere():
    """None at all of SGD without momentum; but what is updated must be there: 16-bit weights without master weights."""
    for master, param in ((True, 4), (False, 2)):
        spec = optimizer_spec("sgd", 0.0, master)
        assert planned("2", "cpu", optimizer=spec).at_rest == {"device": 2 * PSI, "host": param * SHARD, "nvme": 0}
    assert planned("3", "cpu+params", optimizer=spec).at_rest == {"device": 0, "host": 2 * SHARD, "nvme": 0}
    lion = planned("3", "nvme", optimizer=optimizer_spec("lion"))
    assert lion.at_rest == {"device": 0, "host": 0, "nvme": (2 + 8) * SHARD}


def test_gradients_that_nvme_holds_already_are_read_and_written():
    once, thrice = (planned("3", "nvme", accumulation=count) for count in (1, 3))
    gathers, gradient = 2 * 2 * SHARD, 2 * SHARD
    assert moved(thrice, "nvme") == moved(once, "nvme") + 2 * (gathers + 2 * gradient)


def test_float32_sums_go_down_and_lie_there_as_float32():
    """Gradients alone: 4 bytes of an element of a shard, at each microbatch, and in and out of NVMe."""
    for name, tier in (("cpu", HOST), ("nvme", NVME)):
        half, full = (planned("3", name, accumulation=3, sum_dtype=sums) for sums in (None, "float32"))
        more = 2 * SHARD
        assert moved(full, "down") == moved(half, "down") + 3 * more
        peaks = [states_peak("3", name, tier, accumulation=3, sum_dtype=sums) for sums in (None, "float32")]
        assert peaks[1] == peaks[0] + more
        assert moved(full, "nvme") == moved(half, "nvme") + (7 * more if name == "nvme" else 0)
        assert moved(full, "up") == moved(half, "up")
