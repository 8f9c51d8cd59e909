"""Bytes on device, host and NVMe, and what moves between them, from the same list of actions.

[Note: What stays on its way]
A gradient shard is reduced on the device and then moves down, so it lies on both for the time of the reduction. A
parameter shard moves up straight into its place in the gathered unit. NVMe is reached through the host: one unit's
states lie there during its update, one shard during its gather. What is reduced or gathered beside computation is on
its way from Begin to End. Updates of states off the device run on the host (ZeRO-Offload, arXiv:2101.06840, sec. 3;
ZeRO-Infinity, arXiv:2104.07857, sec. 5), and so do norms of gradients that are there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import final

from mpizero.layout import MASTER, SHARDED, Geometry, stored_states
from mpizero.memory.kinds import GRAD, GRAD_FP32, OPTIM, PARAM, WORKSPACE
from mpizero.planner.footprint import Delta, at_rest, walk
from mpizero.schedule.actions import Action
from mpizero.schedule.effects import Effect
from mpizero.schedule.values import Name

TIERS = ("device", "host", "nvme")


@dataclass(frozen=True)
class Offload:
    """Where states live. Reduced gradients go where the optimizer's states are. stages: where it makes sense."""

    name: str
    optim: str
    param: str
    stages: tuple[str, ...]


OFFLOADS = (
    Offload("none", "device", "device", ("0", "1", "2", "3")),
    Offload("cpu", "host", "device", ("1", "2", "3")),  # ZeRO-Offload
    Offload("cpu+params", "host", "host", ("3",)),  # ZeRO-Infinity
    Offload("nvme", "nvme", "nvme", ("3",)),
)
NONE = OFFLOADS[0]


@dataclass(frozen=True)
class Move:
    """Bytes over a link during one action: down (device to host), up, or nvme (reads and writes). place: of the action
    in the list."""

    place: int
    action: Action
    link: str
    nbytes: int


@dataclass
class TierPlan:
    """Bytes of model states of a rank by tier. device_points: the most on the device during each action; full_points:
    with the workspace of rings, updates and norms."""

    at_rest: dict[str, int]
    peak: dict[str, int]
    device_points: list[int] = field(default_factory=list)
    full_points: list[int] = field(default_factory=list)
    moves: list[Move] = field(default_factory=list)


def plan_tiers(actions: Iterable[Action], geometry: Geometry, offload: Offload = NONE) -> TierPlan:
    """Walk a whole step, from rest to rest. With `NONE` the device's bytes are those of `plan_memory`."""
    states = _States(geometry, offload)
    live = dict.fromkeys(TIERS, 0)
    for kind, nbytes in states.at_rest().items():
        live[states.tier(kind)] += nbytes
    plan, room = TierPlan(dict(live), dict(live)), 0
    for place, (action, effect, deltas, _) in enumerate(walk(actions, geometry)):
        most, full = live["device"], live["device"] + room
        for tier, change in states.placed(effect, deltas):
            if tier == WORKSPACE:
                room += change
            else:
                live[tier] += change
                plan.peak[tier] = max(plan.peak[tier], live[tier])
            most, full = max(most, live["device"]), max(full, live["device"] + room)
        plan.device_points.append(most)
        plan.full_points.append(full)
        plan.moves += [Move(place, action, link, nbytes) for link, nbytes in states.moved(effect, deltas) if nbytes]
    return plan


@final
@dataclass(frozen=True)
class _States:
    """Where each kind lies."""

    geometry: Geometry
    offload: Offload

    def tier(self, kind: str) -> str:
        if kind == GRAD_FP32:
            return "device" if self.offload.optim == "device" else "host"
        return {PARAM: self.offload.param, GRAD: self.offload.optim, OPTIM: self.offload.optim}.get(kind, "device")

    def at_rest(self) -> dict[str, int]:
        units = range(len(self.geometry.wrapping.units))
        return at_rest(self.geometry) | {OPTIM: self.optimizer_bytes * sum(map(self.updated, units))}

    @property
    def optimizer_bytes(self) -> int:
        """Parameters elsewhere cannot be what is updated: then it is a copy of them."""
        geometry = self.geometry
        apart = (MASTER not in stored_states(geometry.optimizer, geometry.dtype)
                 and self.offload.param != self.offload.optim)
        return geometry.optimizer_bytes + (geometry.itemsize if apart else 0)

    def shard_bytes(self, unit: int) -> int:
        return self.geometry.itemsize * self.geometry.kept(unit, SHARDED)

    def grad_bytes(self, unit: int) -> int:
        """Of a reduced gradient."""
        return self.geometry.sum_itemsize * self.geometry.kept(unit, SHARDED)

    def updated(self, unit: int) -> int:
        """Elements that a rank updates."""
        return self.geometry.kept(unit, self.geometry.placement.optim)

    def placed(self, effect: Effect, deltas: list[Delta]) -> Iterator[tuple[str, int]]:
        """(tier, bytes) in order, with what stays on its way; of the device's workspace (`WORKSPACE`, bytes), which an
        update takes where it runs, and a norm where gradients are."""
        here = self.offload.optim == "device" or not effect.agrees and effect.updates is None
        passing = list(self._passing(effect.ends or effect))
        yield from passing if effect.ends is None else ()
        for kind, change in deltas:
            if kind != WORKSPACE:
                yield self.tier(kind), change
            elif here:
                yield WORKSPACE, change
        for tier, nbytes in passing if effect.begins is None else ():
            yield tier, -nbytes

    def _passing(self, effect: Effect) -> Iterator[tuple[str, int]]:
        for value in effect.adds:
            if value.name is Name.REDUCED and self.offload.optim != "device":
                yield "device", self.grad_bytes(value.index)
                if self.offload.optim == "nvme":
                    yield "host", self.grad_bytes(value.index)
        for value in effect.makes:
            if value.name is Name.WHOLE and self.offload.param == "nvme":
                yield "host", self.shard_bytes(value.index)
        if effect.updates is not None and self.offload.optim == "nvme":  # states, gradient, and the new parameters
            each = self.optimizer_bytes + self.geometry.sum_itemsize + self.geometry.itemsize
            yield "host", each * self.updated(effect.updates)

    def moved(self, effect: Effect, deltas: list[Delta]) -> Iterator[tuple[str, int]]:
        """(link, bytes) of an action."""
        optim, param = self.offload.optim, self.offload.param
        for value in effect.adds:
            if value.name is Name.REDUCED and optim != "device":
                yield "down", self.grad_bytes(value.index)
                first = any(kind == GRAD for kind, _ in deltas)
                yield "nvme", self.grad_bytes(value.index) * (1 if first else 2) if optim == "nvme" else 0
        for value in effect.makes:
            if value.name is Name.WHOLE and param != "device":
                yield "up", self.shard_bytes(value.index)
                yield "nvme", self.shard_bytes(value.index) if param == "nvme" else 0
        if effect.updates is not None and optim != "device":
            params = self.geometry.itemsize * self.updated(effect.updates)
            yield "up", params if param == "device" else 0
            if optim == "nvme":  # states in and out, gradient in, parameters out
                grads = self.geometry.sum_itemsize * self.updated(effect.updates)
                yield "nvme", 2 * self.optimizer_bytes * self.updated(effect.updates) + grads + params
