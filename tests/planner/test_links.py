"""What leaves a host: hybrid and full sharding of the 13B model, and small meshes by hand."""

from __future__ import annotations

from itertools import product
from operator import le

import pytest

from mpizero.layout import Axis, MeshShape
from mpizero.machine import LECTURE
from mpizero.papers.sharding import full_sharding, hybrid_sharding
from mpizero.planner import links, plan_traffic_by_shard_rank, sent_bytes
from mpizero.planner.model import blocks
from mpizero.schedule import STRATEGIES
from tests.schedule.toys import chain, step

M = 25_493_504_000


def placed(spec, ranks, shards, ranks_per_host, stage="3", **options):
    actions, geometry = step(stage, spec, ranks, shards, **options)
    sends = plan_traffic_by_shard_rank(actions, geometry)
    return links.split(sends, geometry, ranks_per_host), max(map(sent_bytes, sends.values()))


def test_13b_on_8_hosts_of_8():
    hybrid, _ = placed(blocks().spec, 64, 8, 8)
    full, _ = placed(blocks().spec, 64, 64, 8)
    assert hybrid.inter_host_bytes == hybrid_sharding(M, 64, 8) == 2 * 7 * (M // 64)
    assert full.inter_host_bytes == full_sharding(M, 64) == 3 * 63 * (M // 64)
    assert (round(hybrid.inter_host_bytes / 1e9, 2), round(full.inter_host_bytes / 1e9, 2)) == (5.58, 75.29)
    assert full.inter_host_bytes / hybrid.inter_host_bytes == 13.5
    assert round(full.inter_host_bytes / LECTURE.inter_bandwidth, 2) == 1.51


def test_a_ring_leaves_its_hosts_at_the_borders_alone():
    """Every rank of the full ring sends as much, but one in eight sends it to another host; of hybrid's ranks each
    sends its part."""
    full, sent = placed(blocks().spec, 64, 64, 8)
    assert [rank for rank, (_, between) in enumerate(full.by_rank) if between] == list(range(7, 64, 8))
    assert full.host_bytes == full.inter_host_bytes == full.sent_bytes == sent and full.hosts == 8
    hybrid, sent = placed(blocks().spec, 64, 8, 8)
    assert len(set(hybrid.by_rank)) == 1 and hybrid.host_bytes == 8 * hybrid.inter_host_bytes
    assert hybrid.intra_host_bytes == 3 * 7 * (M // 8)
    assert hybrid.intra_host_bytes + hybrid.inter_host_bytes == hybrid.sent_bytes == sent


def test_by_hand():
    """Four ranks on two hosts of three: 0, 1, 2 | 3. Shard groups 0-1 and 2-3, replicas 0-2 and 1-3."""
    found, sent = placed(chain((8,)), 4, 2, 3)
    shard, replicate = 3 * 1 * 4 * 2, 2 * 1 * 2 * 2  # three passes of half the unit; an all-reduce of its shard
    assert found.by_rank == ((shard + replicate, 0), (shard, replicate), (replicate, shard), (0, shard + replicate))
    assert (found.host_bytes, found.hosts, sent) == (replicate + shard, 2, shard + replicate)
    assert found.inter_host_bytes == found.intra_host_bytes == shard + replicate  # by ranks 3 and 0


def test_float32_sums_of_16_bits_leave_a_host_for_each_owner_there():
    """Six ranks on hosts of four: 0-3 | 4-5. A unit of 12 elements, so chunks of 2; parameters go round a ring."""
    found, sent = placed(chain((12,)), 6, 6, 4, "2", sum_dtype="float32")
    ring, each = 5 * 2 * 2, 2 * 2  # bytes of a rank: all chunks but one to the next; a chunk to each owner
    assert found.by_rank == (*[(ring + 3 * each, 2 * each)] * 3, (3 * each, ring + 2 * each),
                             (ring + each, 4 * each), (each, ring + 4 * each))
    assert sent == 2 * ring and found.host_bytes == ring + 4 * 2 * each


def test_float32_sums_of_replicas_by_hand():
    """Shard groups 0-1, 2-3, 4-5 on three hosts, and six replicas' rings of three: each sends both of the others."""
    found, _ = placed(chain((12,)), 6, 2, 2, "2", sum_dtype="float32")
    inside = 2 * 6 * 2  # a half of the unit, to gather and to sum
    across = 2 * 2 * (2 + 4)  # of a shard of 6 elements two thirds: rounded to be summed, and sums
    assert found.by_rank == ((inside, across),) * 6


@pytest.mark.parametrize("stage", list(STRATEGIES))
@pytest.mark.parametrize("sums", [None, "float32"])
def test_one_host_sends_nothing_out(stage, sums):
    found, sent = placed(chain((8, 12)), 4, 4, 4, stage, sum_dtype=sums)
    assert found.inter_host_bytes == found.host_bytes == 0 and found.intra_host_bytes == sent > 0


def test_between_hosts_once_a_step_whatever_the_accumulation():
    once, thrice = (placed(blocks(4, 64, 100).spec, 16, 4, 4, accumulation=count)[0] for count in (1, 3))
    assert once.inter_host_bytes == thrice.inter_host_bytes and thrice.intra_host_bytes == 3 * once.intra_host_bytes


@pytest.mark.parametrize("per_host, leaving",
                         [(1, (1, 1)), (2, (2, 0)), (3, (1, 1)), (4, (0, 0))])
def test_how_many_rings_leave_a_host(per_host, leaving):
    """A mesh of 2 x 2: shard groups 0-1 and 2-3, replicas 0-2 and 1-3."""
    _, geometry = step("3", chain(), 4, 2)
    found = (links.route(geometry.mesh, axis, per_host) for axis in (Axis.REPLICATE, Axis.SHARD))
    assert tuple(route.leaving for route in found) == leaving


@pytest.mark.parametrize("tensor", [1, 2, 3])
def test_no_host_sends_more_than_those_that_are_looked_at(tensor):
    """Of every mesh of up to 3 x 6 x 3 ranks, on hosts of every size."""
    for replicate, shard in product(range(1, 4), range(1, 7)):
        mesh = MeshShape(replicate, shard, tensor)
        for per_host in range(1, mesh.ranks):
            looked_at = [tuple(each[axis] for axis in Axis) for each in links.leaving(mesh, per_host)]
            for first in range(0, mesh.ranks, per_host):
                ranks = range(first, min(first + per_host, mesh.ranks))
                sends = tuple(sum(mesh.successor(rank, axis) not in ranks for rank in ranks) for axis in Axis)
                assert any(all(map(le, sends, most)) for most in looked_at), (mesh, per_host, first)
