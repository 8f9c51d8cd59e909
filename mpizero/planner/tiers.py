"""Bytes on device, host and NVMe, and what moves between them: folds over the list, in which the moves stand.

[Note: What stays on its way]
A gradient shard is reduced on the device and then moves down, so it lies on both until the move is over. A parameter
shard moves up straight into its place in the gathered unit. NVMe is reached through the host, in a few buffers. Updates
of states off the device run on the host (ZeRO-Offload, arXiv:2101.06840, sec. 3; ZeRO-Infinity, arXiv:2104.07857, sec.
5), and so do norms of gradients that are there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from mpizero.layout import DEVICE, HOST, NVME, ActivationBytes, Geometry, Tier, Tiers, offload_text, parse_offload
from mpizero.memory.kinds import MODEL_STATE
from mpizero.planner.books import Doing, Step, gradients_made, walk, walked
from mpizero.planner.stored import at_rest, buffers, value_bytes
from mpizero.schedule.actions import Action
from mpizero.schedule.flow import flow

TIERS = (DEVICE, HOST, NVME)
LINKS = {(DEVICE, HOST): "down", (HOST, DEVICE): "up", (HOST, NVME): "nvme", (NVME, HOST): "nvme"}
Way = tuple[Tier, Tier]


@dataclass(frozen=True)
class Offload:
    """Where states live. stages: where it makes sense."""

    name: str
    tiers: Tiers
    stages: tuple[str, ...]

    @property
    def setting(self) -> str | None:
        """As `StepSettings.offload` has it."""
        return offload_text(self.tiers)


OFFLOADS = (
    Offload("none", Tiers(), ("0", "1", "2", "3")),
    Offload("cpu", Tiers(optimizer=HOST), ("1", "2", "3")),  # ZeRO-Offload
    Offload("cpu+params", Tiers(HOST, HOST), ("3",)),  # ZeRO-Infinity
    Offload("nvme", Tiers(NVME, NVME), ("3",)),
)
NONE = OFFLOADS[0]


def offload_of(text: str) -> Offload:
    """What a setting stands for, at every stage that can have it. ConfigError for what means nothing."""
    tiers = parse_offload(text)
    name = next((each.name for each in OFFLOADS if each.tiers == tiers), offload_text(tiers) or NONE.name)
    return Offload(name, tiers, NONE.stages if tiers.params is DEVICE else ("3",))


@dataclass(frozen=True)
class Moving:
    """Bytes from one tier to the next during one action. place: of the action in the list."""

    place: int
    action: Action
    way: Way
    nbytes: int

    @property
    def link(self) -> str:
        """down (device to host), up, or nvme (reads and writes)."""
        return LINKS[self.way]


@dataclass
class TierPlan:
    """Bytes of a rank by tier. at_rest, peak, device_points (the most on the device during each action): of model
    states alone. full_peak, full_points: of everything that is known, workspace included."""

    at_rest: dict[str, int]
    peak: dict[str, int]
    full_peak: dict[str, int]
    device_points: list[int] = field(default_factory=list)
    full_points: list[int] = field(default_factory=list)
    moves: list[Moving] = field(default_factory=list)


def plan_tiers(actions: Iterable[Action], geometry: Geometry, activations: ActivationBytes | None = None) -> TierPlan:
    """Walk a whole step, from rest to rest. activations: of a microbatch; None leaves them out. The device's bytes are
    those of `plan_memory`."""
    return tiers_of(flow(actions, geometry), geometry, activations)


def tiers_of(steps: Iterable[Step], geometry: Geometry, activations: ActivationBytes | None = None) -> TierPlan:
    """The same of what `flow` tells of a list."""
    states = {str(tier): sum(at_rest(geometry, tier).values()) for tier in TIERS}
    every = {tier: nbytes + buffers(geometry, activations, Tier(tier)) for tier, nbytes in states.items()}
    plan = TierPlan(dict(states), dict(states), dict(every))
    for place, doing in enumerate(walked(steps, geometry, activations)):
        most, full = states[DEVICE], every[DEVICE]
        known = doing.inside is not None
        if doing.inside is not None:
            full += gradients_made(doing.deltas) + doing.inside
        for kind, change, tier in doing.deltas:
            every[tier] += change
            if tier is not DEVICE:
                plan.full_peak[tier] = max(plan.full_peak[tier], every[tier])
            if kind in MODEL_STATE:
                states[tier] += change
                plan.peak[tier] = max(plan.peak[tier], states[tier])
            most, full = max(most, states[DEVICE]), full if known else max(full, every[DEVICE])
        plan.device_points.append(most)
        plan.full_points.append(max(full, every[DEVICE]))
        plan.full_peak[DEVICE] = max(plan.full_peak[DEVICE], plan.full_points[-1])
        plan.moves += [Moving(place, doing.action, way, nbytes)
                       for way, nbytes in moved(doing, geometry, activations) if nbytes]
    return plan


def moved(doing: Doing, geometry: Geometry, activations: ActivationBytes | None) -> Iterator[tuple[Way, int]]:
    """What an action moves, by way. Between device and NVMe it goes through the host; what is added to something in
    files reads that first."""
    for value, source, target in doing.effect.carries:
        nbytes = value_bytes(value, geometry, activations)
        adds = value in doing.effect.adds and not any(delta.tier is target for delta in doing.deltas)
        if target is NVME and adds:
            yield (NVME, HOST), nbytes
        route = (source, target) if HOST in (source, target) else (source, HOST, target)
        for way in pairwise(route):
            yield way, nbytes


def moved_by_link(actions: Iterable[Action], geometry: Geometry, activations: ActivationBytes | None = None,
                  after: Sequence[Action] = ()) -> dict[str, int]:
    """Bytes of a step over each link, both directions together: keys device-host and host-nvme. after: as `walk` takes
    it."""
    totals = {f"{DEVICE}-{HOST}": 0, f"{HOST}-{NVME}": 0}
    if geometry.placement.tiers == Tiers():  # all rests on the device
        return totals
    for doing in walk(actions, geometry, activations, after):
        for way, nbytes in moved(doing, geometry, activations):
            totals[link_name(way)] += nbytes
    return totals


def link_name(way: Way) -> str:
    """The faster tier first, whatever the direction."""
    return "-".join(sorted(way, key=TIERS.index))
