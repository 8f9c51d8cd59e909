"""Who is in which group, and that groups do not hear each other."""

from __future__ import annotations

import socket
import zlib
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import pytest

from mpizero.comm import Record, Totals, TrafficLog, all_gather_values, all_reduce, mesh, start
from mpizero.comm.channel import Channel
from mpizero.errors import ConfigError
from mpizero.layout import Axis, MeshShape
from mpizero.layout import mesh as layout_mesh
from mpizero.memory.ledger import Ledger


def test_world(world):
    from mpi4py import MPI

    assert (world.rank, world.size) == (MPI.COMM_WORLD.Get_rank(), MPI.COMM_WORLD.Get_size())
    assert world.ranks == tuple(range(world.size))
    assert len(world.hosts) == world.size and all(world.hosts)
    assert world.hosts[world.rank].split("#")[0] == socket.gethostname()
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


on_four_ranks = pytest.mark.parametrize("group", [4], indirect=True)


@on_four_ranks
@pytest.mark.parametrize("shards", [1, 2, 4])
def test_mesh(group, shards):
    grid = mesh(group, MeshShape(replicate=4 // shards, shard=shards))
    shard, replicate = grid.group(Axis.SHARD), grid.group(Axis.REPLICATE)
    first = group.rank // shards * shards
    assert shard.ranks == tuple(range(first, first + shards))  # neighbours
    assert replicate.ranks == tuple(range(group.rank % shards, 4, shards))
    assert (shard.name, replicate.name) == ("shard", "replicate")
    assert grid.world is group and grid.shape.ranks == replicate.size * shard.size == 4
    check_sum_along_all_axes(grid, Axis)


def check_sum_along_all_axes(grid, axes):
    """Of a digit a rank: each rank is counted once."""
    value = np.array([10.0**grid.world.rank])
    for axis in axes:
        all_reduce(grid.group(axis), value)
    assert value == [1111]


class FourAxes(StrEnum):
    REPLICATE = "replicate"
    SHARD = "shard"
    TENSOR = "tensor"
    FOURTH = "fourth"


@dataclass(frozen=True)
class FourAxesShape(MeshShape):
    fourth: int = 1


@on_four_ranks
@pytest.mark.parametrize("sizes", [(2, 2, 1, 1), (2, 1, 1, 2), (1, 2, 1, 2), (1, 1, 2, 2), (1, 1, 1, 4)])
def test_another_axis_is_another_name_in_the_layout(group, monkeypatch, sizes):
    monkeypatch.setattr(layout_mesh, "Axis", FourAxes)
    monkeypatch.setitem(mesh.__globals__, "Axis", FourAxes)
    grid = mesh(group, FourAxesShape(*sizes))
    assert [grid.group(axis).size for axis in FourAxes] == list(sizes)
    assert [grid.group(axis).name for axis in FourAxes] == ["replicate", "shard", "tensor", "fourth"]
    check_sum_along_all_axes(grid, FourAxes)


def test_mesh_of_another_number_of_ranks(world):
    """Nobody should come so far: `layout.mesh_shape` makes shapes that suit."""
    with pytest.raises(AssertionError, match="ranks"):
        mesh(world, MeshShape(shard=world.size + 1))


def test_traffic_of_users_and_of_other_groups_stays_apart(group):
    """User messages with our very tags wait on COMM_WORLD during our collectives; groups of the same ranks mix."""
    from mpi4py import MPI

    user = MPI.COMM_WORLD
    left, right = group.ranks[group.rank - 1], group.ranks[(group.rank + 1) % group.size]
    call = zlib.crc32(b"all_reduce///float64/1000")
    ours_next = [(group._shared.calls + n) % 127 * 256 + call % 256 for n in range(1, 8)]
    tags = sorted({*range(0, 32768, 97), *ours_next})
    got = np.full((len(tags), 3), -1.0)
    receives = [user.Irecv(row, source=left, tag=tag) for row, tag in zip(got, tags, strict=True)]
    other = group.subgroup(range(group.size), "other")
    for width in (1, 1000):
        ours, others = np.full(width, group.rank + 1.0), np.full(width, 2.0)
        all_reduce(group, ours)
        all_reduce(other, others)
        assert (ours == group.size * (group.size + 1) / 2).all() and (others == 2 * group.size).all()
    assert Channel(group, "all_reduce", dtype="float64", numel=1000)._tag in ours_next
    sends = [user.Isend(np.full(3, float(tag)), dest=right, tag=tag) for tag in tags]
    ours = np.full(1000, group.rank + 1.0)
    all_reduce(group, ours)
    assert (ours == group.size * (group.size + 1) / 2).all()
    MPI.Request.Waitall(receives + sends)
    assert np.array_equal(got, [[tag] * 3 for tag in tags])


def test_totals():
    log = TrafficLog()
    for op, sent in (("all_gather", 5), ("all_reduce", 7), ("all_gather", 1)):
        log.append(Record(op, "", "", "world", "float32", 9, sent, 2, 3, 0.5))
    assert log.totals() == {"all_gather": Totals(2, 6, 4, 6, 1.0), "all_reduce": Totals(1, 7, 2, 3, 0.5)}
    log.clear()
    assert log.totals() == {}
