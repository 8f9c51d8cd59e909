"""MeshShape: every axis divides the ranks into groups, and every group is a ring."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpizero.errors import ConfigError
from mpizero.layout import Axis, MeshShape, mesh_shape

shapes = st.builds(MeshShape, st.integers(1, 6), st.integers(1, 6))
axes = st.sampled_from(list(Axis))


@given(shapes, axes)
def test_groups_of_an_axis_partition_the_ranks(shape, axis):
    groups = shape.groups(axis)
    assert sorted(rank for group in groups for rank in group) == list(range(shape.ranks))
    assert {len(group) for group in groups} == {shape.size(axis)}
    for group in groups:
        assert [shape.coordinate(rank, axis) for rank in group] == list(range(len(group)))
        assert all(shape.group(rank, axis) == group for rank in group)


@given(shapes)
def test_groups_of_different_axes_meet_in_one_rank(shape):
    for shard in shape.groups(Axis.SHARD):
        for replicate in shape.groups(Axis.REPLICATE):
            assert len(set(shard) & set(replicate)) == 1


@given(shapes, axes)
def test_successors_walk_each_group_in_a_ring(shape, axis):
    for group in shape.groups(axis):
        walk = [group[0]]
        for _ in group:
            walk.append(shape.successor(walk[-1], axis))
        assert walk == [*group, group[0]]


def test_by_hand():
    """2 replicas of 3 shards, row by row: ranks 0 1 2 hold one copy, 3 4 5 the other."""
    shape = MeshShape(2, 3)
    assert shape.ranks == 6 and shape.divided == {Axis.REPLICATE, Axis.SHARD}
    assert [list(group) for group in shape.groups(Axis.SHARD)] == [[0, 1, 2], [3, 4, 5]]
    assert [list(group) for group in shape.groups(Axis.REPLICATE)] == [[0, 3], [1, 4], [2, 5]]
    assert [shape.coordinate(4, axis) for axis in (Axis.REPLICATE, Axis.SHARD)] == [1, 1]
    assert [shape.successor(rank, Axis.SHARD) for rank in range(6)] == [1, 2, 0, 4, 5, 3]
    assert [shape.successor(rank, Axis.REPLICATE) for rank in range(6)] == [3, 4, 5, 0, 1, 2]


@pytest.mark.parametrize(("shape", "divided"), [
    (MeshShape(), set()), (MeshShape(1, 4), {Axis.SHARD}), (MeshShape(4, 1), {Axis.REPLICATE}),
])  # fmt: skip
def test_along_an_axis_of_size_1_each_rank_is_its_own_successor(shape, divided):
    assert shape.divided == divided
    for axis in set(Axis) - divided:
        assert shape.groups(axis) == [range(rank, rank + 1) for rank in range(shape.ranks)]
        assert all(shape.successor(rank, axis) == rank for rank in range(shape.ranks))


@given(shapes)
def test_mesh_shape_of_what_divides(shape):
    assert mesh_shape(shape.ranks, shape.shard) == shape


@pytest.mark.parametrize(("ranks", "shard_size", "says"), [
    (6, 4, "replicate * shard(4) = 6 ranks has no solution: use `shard_size` 1 or 2 or 3 or 6, or `ranks` 8"),
    (4, 8, "replicate * shard(8) = 4 ranks has no solution: use `shard_size` 1 or 2 or 4, or `ranks` 8"),
    (2, 0, "replicate * shard(0) = 2 ranks has no solution: use `shard_size` 1 or 2"),
    (2, -2, "replicate * shard(-2) = 2 ranks has no solution: use `shard_size` 1 or 2"),
])  # fmt: skip
def test_the_error_says_the_equation_and_the_cure(ranks, shard_size, says):
    with pytest.raises(ConfigError) as caught:
        mesh_shape(ranks, shard_size)
    assert str(caught.value) == says
