"""Who is in which group, and that groups do not hear each other."""

from __future__ import annotations

import zlib

import numpy as np
import pytest

from mpizero.dist import TrafficLog, all_gather_values, all_reduce, mesh, start
from mpizero.dist.lane import Lane
from mpizero.errors import ConfigError
from mpizero.memory import Ledger


def test_world(world):
    from mpi4py import MPI

    assert (world.rank, world.size) == (MPI.COMM_WORLD.Get_rank(), MPI.COMM_WORLD.Get_size())
    assert world.ranks == tuple(range(world.size))
    assert len(world.hosts) == world.size and all(world.hosts)
    assert world.hosts[world.rank] == MPI.Get_processor_name()
    assert "MPI" in world.library
    again = start()
    assert again is not world and again.ranks == world.ranks


@pytest.mark.mpi(min_size=4)
def test_ranks_keep_the_given_order(world):
    group = world.subgroup((3, 1), "odd")
    assert (group is None) == (world.rank not in (3, 1))
    if group is not None:
        assert group.ranks == (3, 1) and group.ranks[group.rank] == world.rank
        assert all_gather_values(group, [world.rank]).ravel().tolist() == [3, 1]
        inner = group.subgroup((1,), "inner")  # numbered as in `group`
        assert (inner is None) == (world.rank == 3)
        if inner is not None:
            assert inner.ranks == (1,) and inner.hosts == (world.hosts[1],)


def test_the_same_group_again_costs_no_communicator(world):
    groups = [world.subgroup(range(world.size), "again") for _ in range(5000)]  # MPICH has about 2,000
    assert len({id(group._comm) for group in groups}) == 1
    assert world.subgroup(range(world.size), "another")._comm is not groups[0]._comm


@pytest.mark.parametrize("ranks", [(0, 0), (-1,), (0, 99)])
def test_impossible_groups(world, ranks):
    with pytest.raises(ConfigError, match="must be different and lie in"):
        world.subgroup(ranks, "impossible")


def test_books_can_be_others(world):
    log, ledger = TrafficLog(), Ledger()
    group = world.using(log=log, mem=ledger)
    before = len(world.log.records)
    all_reduce(group, np.ones(3))
    assert len(log.records) == 1 and len(world.log.records) == before
    assert group.mem is ledger and world.mem is not ledger
    assert group.subgroup(range(world.size), "books").log is log


@pytest.mark.mpi(min_size=4)
@pytest.mark.parametrize("shard_size", [1, 2, 4])
def test_mesh(world, shard_size):
    four = world.subgroup(range(4), "four")
    if four is None:
        return
    grid = mesh(four, shard_size)
    first = four.rank // shard_size * shard_size
    assert grid.shard.ranks == tuple(range(first, first + shard_size))  # neighbours
    assert grid.replicate.ranks == tuple(range(four.rank % shard_size, 4, shard_size))
    assert grid.replicate.size * grid.shard.size == grid.world.size == 4
    value = np.array([10.0**four.rank])
    all_reduce(grid.shard, value)
    all_reduce(grid.replicate, value)
    assert value == [1111]


@pytest.mark.parametrize("shard_size", [0, -1, 99])
def test_impossible_mesh(world, shard_size):
    with pytest.raises(ConfigError, match=r"replicate \* shard\(.*use --shard-size 1"):
        mesh(world, shard_size)


def test_traffic_of_users_and_of_other_groups_stays_apart(group):
    """User messages with our very tags, from any source, wait on COMM_WORLD during our collectives; groups of the same ranks mix."""
    from mpi4py import MPI

    user = MPI.COMM_WORLD
    left, right = group.ranks[group.rank - 1], group.ranks[(group.rank + 1) % group.size]
    call = zlib.crc32(b"all_reduce///float64/1000")
    ours_next = [(group._shared.calls + n) % 128 * 256 + call % 256 for n in range(1, 8)]
    tags = sorted({*range(0, 32768, 97), *ours_next})
    got = np.full((len(tags), 3), -1.0)
    receives = [user.Irecv(row, source=left, tag=tag) for row, tag in zip(got, tags, strict=True)]
    other = group.subgroup(range(group.size), "other")
    for width in (1, 1000):
        ours, others = np.full(width, group.rank + 1.0), np.full(width, 2.0)
        all_reduce(group, ours)
        all_reduce(other, others)
        assert (ours == group.size * (group.size + 1) / 2).all() and (others == 2 * group.size).all()
    assert Lane(group, "all_reduce", dtype="float64", numel=1000)._tag in ours_next
    sends = [user.Isend(np.full(3, float(tag)), dest=right, tag=tag) for tag in tags]
    ours = np.full(1000, group.rank + 1.0)
    all_reduce(group, ours)
    assert (ours == group.size * (group.size + 1) / 2).all()
    MPI.Request.Waitall(receives + sends)
    assert np.array_equal(got, [[tag] * 3 for tag in tags])


def test_totals():
    from mpizero.dist import Record, Totals

    log = TrafficLog()
    for op, sent in (("all_gather", 5), ("all_reduce", 7), ("all_gather", 1)):
        log.append(Record(op, "", "", "world", "float32", 9, sent, 2, 3, 0.5))
    assert log.totals() == {"all_gather": Totals(2, 6, 4, 6, 1.0), "all_reduce": Totals(1, 7, 2, 3, 0.5)}
    log.clear()
    assert log.totals() == {}
