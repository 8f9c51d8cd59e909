"""Seconds of a step: shortcuts over lists, meshes and hosts give what the long way gives."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import product

import pytest

from mpizero.layout import Axis, MeshShape, mesh_shape, optimizer_spec
from mpizero.machine import GPUS, Machine, Route
from mpizero.planner import links, plan_traffic
from mpizero.planner.candidate import Candidate
from mpizero.planner.costs import machine_costs
from mpizero.planner.fit import STAGES, offloads, rows
from mpizero.planner.model import flat, gpt, mlp
from mpizero.planner.question import SETTINGS, Question, divisors
from mpizero.planner.costs import update_bytes
from mpizero.planner.timeline import simulate
from mpizero.planner.traffic import Sent, sent_bytes
from mpizero.schedule import StepSettings, set_up
from mpizero.schedule.actions import AllReduceShard, Unshard
from tests.schedule.toys import chain, setup

ASK = Question(gpt(2, 8, 2, 11, context=6), ranks=12, ranks_per_host=4, device_memory=10**9, host_memory=None,
               nvme=None, machine=Machine(), tokens=18, batch_size=3, accumulation=2)


@pytest.mark.parametrize("more", [{}, {"recompute": True, "recompute_interval": 2}, {"bucket_size": "1KiB"}],
                         ids=["plain", "recompute", "buckets"])
@pytest.mark.parametrize("stage, size", [("0", 1), *((stage, size) for stage in STAGES[1:] for size in (1, 2, 4, 12))])
def test_lists_are_those_of_a_run(stage, size, more):
    """One list for all meshes, weighed on this one, is the list that a run on it executes."""
    for model, offload in product((ASK.model, mlp()), offloads(stage)):
        settings = StepSettings(stage, None if stage == "0" else size, 2, offload=offload.setting, **SETTINGS, **more)
        step = set_up(model.spec, 12, settings)
        candidate = Candidate(replace(ASK, model=model, **more), stage, offload, size)
        actions = step.lists.step()
        assert candidate.settings == settings
        assert candidate.geometry == step.geometry and candidate.actions == actions
        sends = [sent for phase in candidate.sends for sent in phase]
        assert sends == plan_traffic(actions, step.geometry)
        placed = links.split({0: sends}, step.geometry, 4)
        assert (sent_bytes(sends), links.leaving_bytes(sends, step.geometry.mesh, 4)) == (
            placed.sent_bytes, placed.host_bytes)


@pytest.mark.parametrize("ranks", [1, 2, 6, 12, 16, 30])
def test_what_leaves_hosts(ranks):
    """Against a look at every rank."""
    one = [Sent(Unshard(0), "all_gather", Axis.SHARD, 3, 1),
           Sent(AllReduceShard(0), "all_reduce", Axis.REPLICATE, 5, 1)]
    for size in divisors(ranks):
        geometry = replace(Candidate(ASK, "3", offloads("3")[0], 1).geometry, mesh=mesh_shape(ranks, size))
        sends = [sent for sent in one if sent.axis in geometry.mesh.divided]
        for per_host in range(1, ranks + 2):
            assert links.leaving_bytes(sends, geometry.mesh, per_host) == (
                links.split({0: sends}, geometry, per_host).host_bytes), (size, per_host)
            for axis in Axis:
                most = max(Counter(rank // per_host for rank in range(ranks) if rank // per_host
                                   != geometry.mesh.successor(rank, axis) // per_host).values(), default=0)
                assert links.route(geometry.mesh, axis, per_host) == Route(most, per_host), (axis, size, per_host)


def test_a_million_ranks_need_no_million_looks(monkeypatch):
    looks = []
    successor = MeshShape.successor
    monkeypatch.setattr(MeshShape, "successor",
                        lambda mesh, rank, axis: looks.append(rank) or successor(mesh, rank, axis))
    for size in divisors(10**6):
        links.leaving(mesh_shape(10**6, size), 8)
    assert len(looks) < 10_000


@pytest.mark.parametrize("stage, name", [(stage, each.name) for stage in STAGES[1:] for each in offloads(stage)[1:]])
def test_what_moves_shrinks_with_the_shards(stage, name):
    """So that memory need not be planned for every size."""
    offload = next(each for each in offloads(stage) if each.name == name)
    all_of_them = [Candidate(replace(ASK, accumulation=1), stage, offload, size) for size in (1, 2, 3, 4, 6, 12)]
    for candidate in all_of_them:
        for here, there in zip(candidate.moved, all_of_them[-1].moved, strict=True):
            assert here == {link: nbytes * 12 / candidate.size for link, nbytes in there.items()}
    assert sum(nbytes for phase in all_of_them[0].moved for nbytes in phase.values()) == sum(
        move.nbytes for move in all_of_them[0].tiers.moves)


def test_what_replicas_sum_of_several_microbatches_moves_twice_more():
    ask = replace(ASK, accumulation=3)
    half, full = (Candidate(ask, "2", offloads("2")[1], size) for size in (6, 12))
    down, shard = ([sum(phase.get("down", 0) for phase in each.moved) for each in (half, full)],
                   sum(phase.get("down", 0) for phase in full.moved) / 3)
    assert down == [(3 + 1) * 2 * shard, 3 * shard]
    assert half.estimate(full).by_resource["PCIe down"] == down[0] / ask.machine.host_bandwidth


@pytest.mark.parametrize("bandwidth", [1e3, 1e6, 1e12])
def test_a_step_is_own_work_and_waiting(bandwidth):
    ask = replace(ASK, machine=replace(ASK.machine, inter_bandwidth=bandwidth), host_memory=10**9, nvme=10**9)
    for row in rows(ask):
        assert row.exposed_seconds >= 0
        assert row.compute_seconds + row.exposed_seconds == pytest.approx(row.seconds)
        assert row.compute_seconds == pytest.approx(row.by_resource["compute"] + row.by_resource.get("memory", 0))
        assert set(row.exposed) <= {"forward", "backward", "update"}


def test_a_gather_after_the_update_is_exposed():
    """By hand: stage 2 gathers all parameters there, stage 3 nothing."""
    psi, ranks = 13 * 10**9, 64
    ask = Question(flat(psi), ranks, 8, 10**12, None, None, Machine(), 16_384, shard_size=64, activations=1)
    found = {row.stage: row for row in rows(ask) if row.offload == "none"}
    ring = 32 * 63 * 1e-5 + 2 * psi * 63 / 64 / 50e9
    update = 28 * psi / 64 / 3.35e12
    assert found["2"].exposed == {"update": {"inter-host": pytest.approx(ring - update)}}
    assert found["3"].exposed == {}


# -- rings across hosts ------------------------------------------------------------------------------------------------

G = gpt(40, 5120, 40, 32_000, context=4096)  # 13B; by hand: 12 h^2 a block, h = 5120, and 40 blocks
LARGE = Question(G, 64, 8, 80 * 10**9, None, None, Machine(all_nics=True), 4096)
M = 2 * G.spec.psi


@pytest.mark.parametrize("all_nics, nics, rate", [(False, None, 50e9), (True, None, 400e9), (True, 2, 100e9),
                                                  (False, 2, 50e9), (True, 16, 450e9)])
def test_a_flat_ring_leaves_each_host_once(all_nics, nics, rate):
    """Of mpizero over one NIC, of NCCL over all of them, up to the links inside."""
    machine, flat_ring = Machine(alpha=1e-30, all_nics=all_nics, nics=nics), mesh_shape(64, 64)
    assert machine.wire_seconds(M, 63, links.route(flat_ring, Axis.SHARD, 8)) == pytest.approx(M / rate)


@pytest.mark.parametrize("all_nics, nics, seconds", [(False, None, 1.0), (True, None, 1.0), (False, 1, 8.0),
                                                     (True, 1, 8.0), (False, 4, 2.0), (True, 4, 2.0)])
def test_rings_of_replicas_leave_a_host_side_by_side(all_nics, nics, seconds):
    """8 of them share its NICs, whichever way."""
    machine = Machine(alpha=1e-30, all_nics=all_nics, nics=nics)
    assert machine.wire_seconds(50e9, 14, links.route(mesh_shape(64, 8), Axis.REPLICATE, 8)) == pytest.approx(seconds)


def test_a_ring_inside_a_host_uses_its_links():
    for axis, size in ((Axis.SHARD, 8), (Axis.REPLICATE, 1)):
        ranks = 64 if axis is Axis.SHARD else 8
        assert links.route(mesh_shape(ranks, size), axis, 8) == Route(0, 8)
    assert Machine().wire_seconds(450e9, 0, Route(0, 8)) == 1.0
    slow = Machine(intra_bandwidth=1e9)  # a ring that leaves its host as well is no faster than the links there
    assert slow.wire_seconds(1e9, 0, Route(1, 8)) == 1.0 and slow.wire_seconds(50e9, 0, Route(1, 1)) == 1.0


def test_13b_on_64_h100_by_hand():
    """6 psi + 12 L h s operations a token at half of 989.4 TFLOP/s hide all rings of stage 3 in one shard group; in
    groups of 8 a step is longer by the update of 8 times as many parameters, no more: the 2 M/8 (7/8) bytes between
    replicas hide behind backward."""
    computing = 4096 * (6 * G.spec.psi + 12 * 40 * 5120 * 4096) / (989.4e12 / 2)
    row = next(row for row in rows(replace(LARGE, margin=0.05)) if (row.stage, row.offload) == ("3", "none"))
    update = 28 * G.spec.psi / 3.35e12
    assert row.seconds_by_size[64] == pytest.approx(computing + update / 64) and round(computing, 2) == 0.72
    assert row.seconds_by_size[8] == pytest.approx(computing + update / 8)
    assert row.shard_size == 64


# -- the same question to the simulator --------------------------------------------------------------------------------


@pytest.mark.parametrize("model, ranks, size, batch", [(G, 8, 8, 1), (G, 64, 64, 1), (G, 64, 8, 1),
                                                       (gpt(48, 1600, 25, 50_257), 8, 8, 16)])
@pytest.mark.parametrize("gpu", ["h100", "a100"])
def test_fit_and_timeline_agree(model, ranks, size, batch, gpu):
    """They price the same actions alike. What a timeline adds are stalls: the first gather, the last reduction, an
    update unit by unit; less than 5 % where computing hides the rest."""
    sheet = GPUS[gpu]
    machine = Machine(sheet.peak_flops, inter_bandwidth=sheet.inter_bandwidth, intra_bandwidth=sheet.intra_bandwidth,
                      memory_bandwidth=sheet.memory_bandwidth, all_nics=True)
    ask = replace(LARGE, model=model, ranks=ranks, shard_size=size, machine=machine, device_memory=10**12).batch(batch)
    row = next(row for row in rows(ask) if (row.stage, row.offload) == ("3", "none"))
    settings = StepSettings("3", size, backward_prefetch=1, forward_prefetch=1, overlap=True)
    step = set_up(model.spec, ranks, settings)
    costs = machine_costs(model, step.geometry, machine, ask.tokens, 8)
    timeline = simulate(step.lists.step(), step.geometry, costs)
    assert timeline.compute == pytest.approx(row.compute_seconds)
    assert row.seconds <= timeline.finish * (1 + 1e-9) and timeline.finish <= 1.05 * row.seconds


@pytest.mark.parametrize("name, dtype, master, right", [
    ("adam", "float16", True, 28), ("adam", "float32", True, 28), ("lion", "bfloat16", True, 20),
    ("sgd", "float16", False, 14), ("lion", "float32", True, 20),
])
def test_what_an_update_reads_and_writes(name, dtype, master, right):
    """States in and out, gradient in, parameter out; in as well where it has no master weight."""
    geometry = setup("0", chain(), 1, dtype=dtype, optimizer=optimizer_spec(name, master=master)).geometry
    assert update_bytes(geometry) == right
