"""The groups of a mesh: along every axis, the ranks that differ in their place on that axis alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

from mpizero.comm.group import Group
from mpizero.layout import Axis, MeshShape


@final
@dataclass(frozen=True)
class Mesh:
    """The groups that this rank is in, one along each axis, and the world that they divide.

    groups[axis].size == shape.size(axis), and the sizes of all axes multiply to world.size.
    """

    shape: MeshShape
    groups: Mapping[Axis, Group]
    world: Group

    def group(self, axis: Axis) -> Group:
        return self.groups[axis]


def mesh(world: Group, shape: MeshShape) -> Mesh:
    """Cut `world` along every axis of `shape` into groups that bear the axis's name. Collective over `world`."""
    assert shape.ranks == world.size, f"{shape} has {shape.ranks} ranks, {world} has {world.size}"
    return Mesh(shape, {axis: _cut(world, shape, axis) for axis in Axis}, world)


def _cut(world: Group, shape: MeshShape, axis: Axis) -> Group:
    """This rank's group along `axis`. Every rank takes part in making all of them."""
    groups = [world.subgroup(ranks, axis.value) for ranks in shape.groups(axis)]
    (own,) = [group for group in groups if group is not None]
    return own
