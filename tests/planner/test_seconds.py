"""Seconds of a step: shortcuts over lists, meshes and hosts give what the long way gives."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mpizero.layout import Axis, MeshShape, mesh_shape, optimizer_spec
from mpizero.machine import Machine
from mpizero.planner import links, plan_traffic
from mpizero.planner.candidate import Candidate
from mpizero.planner.fit import STAGES, offloads, rows
from mpizero.planner.model import flat, gpt, mlp
from mpizero.planner.question import Question, divisors
from mpizero.planner.seconds import between_hosts, leaves, update_bytes
from mpizero.planner.traffic import Sent, sent_bytes
from mpizero.schedule import StepSettings, set_up
from mpizero.schedule.actions import AllReduceShard, Unshard
from tests.schedule.toys import chain, setup

ASK = Question(gpt(2, 8, 2, 11, context=6), ranks=12, ranks_per_host=4, device_memory=10**9, host_memory=None,
               nvme=None, machine=Machine(), tokens=18, batch_size=3, accumulation=2)


@pytest.mark.parametrize("stage, size", [("0", 1), *((stage, size) for stage in STAGES[1:] for size in (1, 2, 4, 12))])
def test_lists_are_those_of_a_run(stage, size):
    """One list for all meshes, weighed on this one, is the list that a run on it executes."""
    for model in (ASK.model, mlp()):
        step = set_up(model.spec, 12, StepSettings(stage, None if stage == "0" else size, 2))
        candidate = Candidate(replace(ASK, model=model), stage, offloads(stage)[0], size)
        actions = step.lists.step()
        assert candidate.geometry == step.geometry and candidate._step[0] == actions
        sends = [sent for phase in candidate.sends for sent in phase]
        assert sends == plan_traffic(actions, step.geometry)
        placed = links.place(sends, step.geometry, 4)
        assert (sent_bytes(sends), between_hosts(sends, step.geometry.mesh, 4)) == (
            placed.sent_bytes, placed.inter_host_bytes)


@pytest.mark.parametrize("ranks", [1, 2, 6, 12, 16, 30])
def test_what_leaves_hosts(ranks):
    """Against a look at every rank."""
    one = [Sent(Unshard(0), "all_gather", Axis.SHARD, 3, 1),
           Sent(AllReduceShard(0), "all_reduce", Axis.REPLICATE, 5, 1)]
    for size in divisors(ranks):
        geometry = replace(Candidate(ASK, "3", offloads("3")[0], 1).geometry, mesh=mesh_shape(ranks, size))
        sends = [sent for sent in one if sent.axis in geometry.mesh.divided]
        for per_host in range(1, ranks + 2):
            assert between_hosts(sends, geometry.mesh, per_host) == (
                links.place(sends, geometry, per_host).inter_host_bytes), (size, per_host)
            found = frozenset().union(*leaves(geometry.mesh, per_host))
            assert found == {axis for axis in geometry.mesh.divided if not links.stays_inside(axis, geometry, per_host)}


def test_a_million_ranks_need_no_million_looks(monkeypatch):
    looks = []
    successor = MeshShape.successor
    monkeypatch.setattr(MeshShape, "successor",
                        lambda mesh, rank, axis: looks.append(rank) or successor(mesh, rank, axis))
    for size in divisors(10**6):
        leaves(mesh_shape(10**6, size), 8)
    assert len(looks) < 10_000


@pytest.mark.parametrize("stage, name", [(stage, each.name) for stage in STAGES[1:] for each in offloads(stage)[1:]])
def test_what_moves_shrinks_with_the_shards(stage, name):
    """So that memory need not be planned for every size."""
    offload = next(each for each in offloads(stage) if each.name == name)
    all_of_them = [Candidate(ASK, stage, offload, size) for size in (1, 2, 3, 4, 6, 12)]
    for candidate in all_of_them:
        for here, there in zip(candidate.moved, all_of_them[-1].moved, strict=True):
            assert here == {link: nbytes * 12 / candidate.size for link, nbytes in there.items()}
    assert sum(nbytes for phase in all_of_them[0].moved for nbytes in phase.values()) == sum(
        move.nbytes for move in all_of_them[0].tiers.moves)


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


@pytest.mark.parametrize("name, dtype, master, right", [
    ("adam", "float16", True, 28), ("adam", "float32", True, 28), ("lion", "bfloat16", True, 20),
    ("sgd", "float16", False, 14), ("lion", "float32", True, 20),
])
def test_what_an_update_reads_and_writes(name, dtype, master, right):
    """States in and out, gradient in, parameter out; in as well where it has no master weight."""
    geometry = setup("0", chain(), 1, dtype=dtype, optimizer=optimizer_spec(name, master=master)).geometry
    assert update_bytes(geometry) == right
