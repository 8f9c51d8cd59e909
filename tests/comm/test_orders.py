"""The collectives on groups whose ranks are turned round, mixed, or not neighbours. Every rank has data of its own."""

from __future__ import annotations

import time

import numpy as np
import pytest

from mpizero.comm import (
    TrafficLog, all_gather, all_gather_values, all_reduce, barrier, broadcast, chunk, reduce_scatter)
from mpizero.comm.mpi import reference

ORDERS = [(1, 0), (3, 1), (0, 2), (2, 1, 0), (1, 3, 0), (3, 2, 1, 0), (0, 3, 1), (2, 0, 3, 1)]
NUMELS = (0, 1, 3, 8, 97, 20_011)

dtypes = pytest.mark.parametrize("dtype", ["float16", "float32", "int64"])


@pytest.fixture(params=ORDERS, ids=lambda ranks: "".join(map(str, ranks)))
def group(request, world):
    """These ranks in this order; None, and no test, on the others (see tests/support/ranks.py)."""
    if max(request.param) >= world.size:
        pytest.skip(f"needs rank {max(request.param)}, there are {world.size} ranks")
    return world.subgroup(request.param, f"ranks {request.param}", log=TrafficLog())


def values(world_rank, numel, dtype="int64"):
    """Whole numbers, others on each rank and at neighbouring places; sums of four are exact in float16 too."""
    return ((np.arange(numel) * 7 + 100 * world_rank) % 509).astype(dtype)


def total(group, numel, dtype):
    return sum(values(rank, numel) for rank in group.ranks).astype(dtype)


def own_chunk(group, numel):
    return chunk(numel, group.rank, group.size)


def test_numbering(group, world):
    """A rank's number in a group is its place in the order given."""
    assert group.ranks[group.rank] == world.rank
    assert all_gather_values(group, [world.rank]).ravel().tolist() == list(group.ranks)


@dtypes
def test_reduce_scatter(group, world, dtype):
    """The chunk of group rank r is r's, wherever r stands in the world."""
    for numel in NUMELS:
        own = own_chunk(group, numel)
        mine = values(world.rank, numel, dtype)
        out = np.full(own.stop - own.start, 5, dtype)
        reduce_scatter(group, mine.copy(), out)
        assert np.array_equal(out, total(group, numel, dtype)[own])
        reduce_scatter(group, mine.copy(), out, accumulate=True)
        assert np.array_equal(out, 2 * total(group, numel, dtype)[own])
        reduce_scatter(group, mine, mine[own])
        assert np.array_equal(mine[own], total(group, numel, dtype)[own])


@dtypes
def test_all_gather(group, world, dtype):
    """Chunk r comes from group rank r. What a rank held elsewhere does not count."""
    for numel in NUMELS:
        flat = np.full(numel, -1, dtype)
        own = own_chunk(group, numel)
        flat[own] = values(world.rank, numel, dtype)[own]
        all_gather(group, flat)
        parts = [values(rank, numel, dtype)[chunk(numel, place, group.size)] for place, rank in enumerate(group.ranks)]
        assert np.array_equal(flat, np.concatenate(parts))


@dtypes
def test_all_reduce(group, world, dtype):
    for numel in NUMELS:
        flat = values(world.rank, numel, dtype)
        all_reduce(group, flat)
        assert np.array_equal(flat, total(group, numel, dtype))


@dtypes
def test_broadcast(group, world, dtype):
    """The root is a rank of the group, not of the world."""
    for numel in NUMELS:
        for root in range(group.size):
            flat = values(world.rank, numel, dtype)
            broadcast(group, flat, root)
            assert np.array_equal(flat, values(group.ranks[root], numel, dtype))


def test_as_mpis_own(group, world):
    """MPI numbers the ranks of the communicator in the same order."""
    numel = 300 * group.size
    mine = values(world.rank, numel)
    ours, mpis = (np.empty(300, np.int64) for _ in range(2))
    reduce_scatter(group, mine.copy(), ours)
    reference.mpi_reduce_scatter(group, mine, mpis)
    assert np.array_equal(ours, mpis)
    for function, mpi_function in ((all_gather, reference.mpi_all_gather), (all_reduce, reference.mpi_all_reduce)):
        ours, mpis = mine.copy(), mine.copy()
        function(group, ours)
        mpi_function(group, mpis)
        assert np.array_equal(ours, mpis)
    ours, mpis = mine.copy(), mine.copy()
    broadcast(group, ours, group.size - 1)
    reference.mpi_broadcast(group, mpis, group.size - 1)
    assert np.array_equal(ours, mpis)


def test_order_of_additions_is_that_of_the_group(group, world):
    """((x[c+1] + x[c+2]) + ...) + x[c] with the group's numbers: other bits than in the world's order."""
    width = 400

    def floats(world_rank):
        return np.random.default_rng(world_rank).standard_normal(width * group.size).astype(np.float32)

    flat, flats = floats(world.rank), [floats(rank) for rank in group.ranks]
    all_reduce(group, flat)
    for c in range(group.size):
        part = chunk(flat.size, c, group.size)
        want = flats[(c + 1) % group.size][part]
        for step in range(2, group.size + 1):
            want = want + flats[(c + step) % group.size][part]
        assert flat[part].tobytes() == want.tobytes()


def test_a_barrier_waits_for_all(group):
    """Each in turn comes last; nobody leaves before. Ranks of one machine have one clock."""
    if len(set(group.hosts)) > 1:
        pytest.skip("clocks of several machines")
    for last in range(group.size):
        if group.rank == last:
            time.sleep(0.05)
        come = time.monotonic()
        barrier(group)
        come, left = all_gather_values(group, [come, time.monotonic()]).T
        assert left.min() >= come.max()
