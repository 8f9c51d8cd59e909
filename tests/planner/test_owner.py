"""Units that have owners: what ranks of a shard group keep and send, by hand."""

from __future__ import annotations

import pytest

from mpizero.layout import Axis, rings
from mpizero.machine import Machine, Route
from mpizero.planner import (
    formula_after_backward, formula_sent, fullest_and_emptiest, links, plan_memory, plan_traffic_by_shard_rank,
    sent_between, sent_bytes,
)
from mpizero.planner.costs import Costs, machine_costs
from mpizero.planner.model import PlannedModel
from mpizero.planner.timeline import simulate
from mpizero.planner.traffic import plan_traffic
from mpizero.schedule.actions import AllReduceShard, Broadcast, ReduceGrad
from tests.schedule.toys import chain, mlp5, setup, step, tied

M = 2 * 12  # bytes of a unit of 12 elements


def sends_of(action, geometry):
    """Of each rank of the shard group: bytes, messages, bytes to the owner, and the busiest link."""
    found = [plan_traffic([action], geometry.at(rank))[0] for rank in range(geometry.shards)]
    return [(sent.nbytes, sent.rounds, sent.home, sent.busiest) for sent in found]


def test_a_broadcast_goes_down_a_chain_from_its_owner():
    """Unit 1 is rank 1's: 1, 2, 3, 0. A unit that is not cut is sent three times, one after the other."""
    _, geometry = step("3-broadcast", chain((8, 12)), 4)
    assert sends_of(Broadcast(1), geometry) == [(0, 0, 0, (3 * M, 3))] + [(M, 1, 0, (3 * M, 3))] * 3
    _, large = step("3-broadcast", chain((2**21,)), 4)
    assert sends_of(Broadcast(0), large)[0] == (2**22, 1, 0, (2**22 + 2 * 2**21, 3))
    assert rings.SEGMENT_BYTES == 2**21


@pytest.mark.parametrize("sums, size", [("float16", 2), ("float32", 4)])
def test_a_reduction_is_a_ring_and_a_part_of_the_sum_from_all_but_the_owner(sums, size):
    _, geometry = step("3-broadcast", chain((8, 12)), 4, sum_dtype=sums)
    path = 3 * M // 4 + 3 * size * 3, 4  # over the owner's link: the ring, then three parts of 3 elements
    other = 3 * M // 4 + size * 3, 4, size * 3, path
    assert sends_of(ReduceGrad(1), geometry) == [other, (3 * M // 4, 3, 0, path), other, other]


def test_across_replicas_the_owner_alone_sums():
    """Three replicas of two shards: a ring for each shard."""
    _, geometry = step("3-broadcast", chain((8, 12)), 6, 2)
    each = 2 * 2 * M // 3, 2 * 2 * 2
    assert sends_of(AllReduceShard(1), geometry) == [(0, 0, 0, each), (*each, 0, each)]


def test_one_rank_sends_nothing():
    _, geometry = step("3-broadcast", chain((8, 12)), 4, 1)
    assert sends_of(Broadcast(1), geometry) == sends_of(ReduceGrad(1), geometry) == [(0, 0, 0, (0, 0))]


def test_ranks_that_own_nothing_are_alike_but_for_the_last():
    """Behind the last one the owner of the first unit comes, so a chain ends there."""
    made = setup("3-broadcast", chain((8, 12)), 6)
    assert made.geometry.representatives == [0, 1, 2, 5]
    assert [made.geometry.like(rank) for rank in range(6)] == [0, 1, 2, 2, 2, 5]
    assert [made.geometry.owner(unit) for unit in range(2)] == [0, 1]
    by_shard_rank = plan_traffic_by_shard_rank(made.lists.step(), made.geometry)
    assert sorted(by_shard_rank) == [0, 1, 2, 5]
    for rank in range(6):
        sends = plan_traffic(made.lists.step(), made.geometry.at(rank))
        assert [send.nbytes for send in sends] == [send.nbytes for send in by_shard_rank[made.geometry.like(rank)]]
    assert setup("3", chain((8, 12)), 6).geometry.representatives == [0]


def test_the_fullest_and_the_emptiest():
    fullest, emptiest = fullest_and_emptiest(step("3-broadcast", mlp5(), 4)[1])
    assert (fullest.shard_rank, emptiest.shard_rank) == (1, 0)  # 9,312 elements; 3,168 + 1,552
    assert [formula_after_backward(each) for each in (fullest, emptiest)] == [16 * 9312, 16 * 4720]
    actions, alike = step("3", mlp5(), 4)
    assert fullest_and_emptiest(alike) == (alike, alike) and plan_memory(actions, alike).at_rest_bytes == 14 * 8164


@pytest.mark.parametrize("spec, uses", [(chain((12, 24, 12)), (2, 2, 2)), (tied(), (4, 2, 2))])
@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_formulas_by_hand(spec, uses, ranks):
    """All ranks together send a unit (N - 1) times at each use, and (1 + 1/N) (N - 1) times to be summed."""
    made = setup("3-broadcast", spec, ranks)
    numels = [unit.padded_numel for unit in made.wrapping.units]
    want = sum(2 * numel * (ranks - 1) * (use * ranks + ranks + 1) // ranks
               for numel, use in zip(numels, uses, strict=True))
    everyone = list(map(made.geometry.at, range(ranks)))
    assert sum(formula_sent(geometry, 3) for geometry in everyone) == want
    assert sum(sent_bytes(plan_traffic(made.lists.step(), geometry)) for geometry in everyone) == want
    assert sum(map(formula_after_backward, everyone)) == 16 * sum(numels)


def test_what_leaves_a_host():
    """Six ranks on hosts of four: 0-3 | 4-5. One unit, rank 0's: chains and rings cross behind ranks 3 and 5, but the
    chain ends at 5; ranks 4 and 5 send their parts of the sum to rank 0."""
    made = setup("3-broadcast", chain((12,)), 6)
    ring_bytes, part = 5 * M // 6, M // 6
    found = links.split(plan_traffic_by_shard_rank(made.lists.step(), made.geometry), made.geometry, 4)
    inside = 2 * M + ring_bytes + part
    assert found.by_rank == ((inside - part, 0), (inside, 0), (inside, 0), (part, 2 * M + ring_bytes),
                             (2 * M + ring_bytes, part), (0, ring_bytes + part))
    assert found.sent_bytes == inside and found.host_bytes == 2 * M + ring_bytes
    for rank, (_, between) in enumerate(found.by_rank):
        geometry = made.geometry.at(rank)
        assert sent_between(plan_traffic(made.lists.step(), geometry), geometry.mesh, "aaaabb", rank) == between


def test_seconds():
    """Priced by the busiest link, and played."""
    machine, model = Machine(alpha=1.0, intra_bandwidth=1.0), PlannedModel("chain", chain((12, 12)))
    actions, geometry = step("3-broadcast", chain((12, 12)), 4)
    costs = machine_costs(model, geometry, machine, 1, 8)
    assert Route(0, 8) == links.route(geometry.mesh, Axis.SHARD, 8)
    assert costs.broadcast == [3 * M + 3] * 2 and costs.reduce == [2 * 3 * M // 4 + 4] * 2
    played = simulate(actions, geometry, Costs(forward=1, backward=1, broadcast=10, reduce=100))
    assert (played.communication, played.finish) == (4 * 10 + 2 * 100, 4 * 10 + 2 * 100 + 4)
