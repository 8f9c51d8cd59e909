"""Rings are timed on the ranks that share a host, on one of each host, side by side, and on all."""

from __future__ import annotations

from collections import Counter

import pytest

from mpizero.comm import TrafficLog
from mpizero.doctor import rings
from mpizero.engine.gather import gather_data

pytestmark = pytest.mark.mpi(min_size=4)


@pytest.fixture
def spread(world, monkeypatch):
    """spread("aabb"): four ranks as if on these hosts."""
    monkeypatch.setattr(rings, "SIZES", (1024, 4000))
    monkeypatch.setattr(rings, "MOST", 3)

    def made(hosts):
        group = world.subgroup(range(4), f"on {hosts}", log=TrafficLog())
        if group is not None:
            group.hosts = tuple(hosts)
        return group
    return made


@pytest.mark.parametrize("hosts, members", [("aaaa", [4] * 4), ("aabb", [2] * 4), ("abbb", [0, 3, 3, 3]),
                                            ("abcd", [0] * 4)])
def test_inside_hosts(spread, hosts, members):
    world = spread(hosts)
    if world is None:
        return
    found = rings.inside(world)
    assert len(found) == (4 if members[world.rank] else 0)
    for each in found:
        assert (each.ranks, each.leaving, each.ranks_per_host) == (members[world.rank], 0, members[world.rank])
        assert each.where == f"inside {hosts[world.rank]}" and each.seconds > 0
    assert {(each.op, each.nbytes) for each in found} <= {
        (op, size) for op in ("all_gather", "reduce_scatter") for size in (1024, 4000, 1032, 4008)}


@pytest.mark.parametrize("hosts, alone, beside", [
    ("aabb", {("between hosts", 2, 1, 1): 4, ("over all ranks", 4, 1, 2): 4},
     {("between hosts, 2 at once", 2, 2, 2): 4}),
    ("aaab", {("between hosts", 2, 1, 1): 4, ("over all ranks", 4, 1, 3): 4}, {}),
    ("abcd", {("over all ranks", 4, 1, 1): 4}, {}),
])
def test_between_hosts(spread, hosts, alone, beside):
    """Each as (where, ranks, leaving a host, of a host). Rank 0 takes part in all."""
    world = spread(hosts)
    if world is None:
        return
    found = rings.between(world)
    kinds = [Counter((each.where, each.ranks, each.leaving, each.ranks_per_host) for each in part)
             for part in found[:2]]
    if world.rank == 0:
        assert [dict(kind) for kind in kinds] == [alone, beside]
    assert isinstance(found[2], dict)
    seconds = gather_data(world, [each.seconds for each in found[0] if each.where == "over all ranks"])
    assert all(each == seconds[0] for each in seconds)  # the slowest rank's, whoever tells


def test_ranks_beside_each_other_begin_together(spread):
    """A barrier of all of them stands before every call, or they would not share what leaves a host."""
    world = spread("aabb")
    if world is None:
        return
    met = []
    rings_barrier = rings.barrier
    try:
        rings.barrier = lambda group: (met.append(group.size), rings_barrier(group))[1]
        rings._side_by_side(world, ["a", "b"], 2)
    finally:
        rings.barrier = rings_barrier
    assert set(met) == {4}
