"""Does it fit, where, and how fast? Bytes are exact, from the lists of actions; seconds are an estimate, and say of what.

[Note: How time is estimated]
In each phase of a step (forward, backward with its reductions, update) everything overlaps with everything: a phase lasts as long as its
busiest resource, a step as long as its phases. Rings follow the alpha-beta model. So what cannot overlap in the lists, such as a gather
after the update, is seen; stalls inside a phase, which `plan timeline` shows, are not.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mpizero.layout import replica_count, wrap
from mpizero.planner import links
from mpizero.planner.activations import plan_activations, recompute_checkpoints, recompute_working_memory
from mpizero.planner.geometry import Geometry
from mpizero.planner.machine import Machine
from mpizero.planner.model import PlannedModel
from mpizero.planner.tiers import OFFLOADS, TIERS, Offload, TierPlan, plan_tiers
from mpizero.planner.traffic import Send, plan_traffic
from mpizero.schedule import STRATEGIES, Action, Axis, training_lists
from mpizero.schedule.actions import Backward, Forward, OptimStep, Phase

STAGES = ("0", "1", "2", "3")
UPDATE_BYTES = 28  # of device memory per parameter updated: three float32 in and out, a 16-bit gradient in, a 16-bit parameter out
LINKS = {"down": "PCIe down", "up": "PCIe up", "nvme": "NVMe"}  # resources beside compute, memory, CPU update, intra-host, inter-host


@dataclass(frozen=True)
class Question:
    """What is to run on what. Memories in bytes: the device's is a rank's, the host's and NVMe's are a host's; None: not told."""

    model: PlannedModel
    ranks: int
    ranks_per_host: int
    device_memory: int
    host_memory: int | None
    nvme: int | None
    machine: Machine
    tokens: int  # of a rank in a microbatch
    batch_size: int = 1
    accumulation: int = 1
    dtype: str = "float16"
    shard_size: int | None = None
    activations: int | None = None  # bytes set aside; None: from the model's own table
    recompute: bool = False

    @property
    def capacity(self) -> dict[str, int | None]:
        """What a rank may take of each tier."""
        sharing = min(self.ranks, self.ranks_per_host)
        return {"device": self.device_memory, "host": None if self.host_memory is None else self.host_memory // sharing,
                "nvme": None if self.nvme is None else self.nvme // sharing}


@dataclass(frozen=True)
class Row:
    """One stage with one offload. at_rest and peak: model-state bytes of a rank by tier. device_bytes: the most on the device, with
    activations. fits: None when the capacity of a tier that it needs is not told."""

    stage: str
    offload: str
    shard_size: int
    at_rest: dict[str, int]
    peak: dict[str, int]
    activations: int
    device_bytes: int
    sent_bytes: int
    inter_host_bytes: int
    seconds: float
    by_resource: dict[str, float]  # seconds that each resource is busy
    bound_by: str
    fits: bool | None
    lacks: tuple[str, ...]  # tiers that are too small

    @property
    def needs(self) -> dict[str, int]:
        return {**self.peak, "device": self.device_bytes}


def rows(question: Question) -> list[Row]:
    """Every stage with every offload that makes sense for it."""
    return [row for stage in STAGES for row in _rows(question, stage)]


def anything_fits(question: Question) -> bool:
    """Whether some row fits: bytes alone, without the seconds."""
    for stage in reversed(STAGES):
        actions, geometry = _step(question, stage)
        for offload in OFFLOADS:
            if stage in offload.stages:
                tiers = plan_tiers(actions, geometry, offload)
                if _fits(question, {**tiers.peak, "device": _with_activations(question, actions, tiers)[1]})[0]:
                    return True
    return False


def _step(question: Question, stage: str) -> tuple[list[Action], Geometry]:
    """The actions of a step."""
    shards = 1 if stage == "0" else question.shard_size or question.ranks
    replicas = replica_count(question.ranks, shards, "--ranks")
    wrapping = wrap(question.model.spec, question.ranks)
    actions = training_lists(STRATEGIES[stage], wrapping, replicas, shards, accumulation=question.accumulation).step()
    return actions, Geometry(wrapping, STRATEGIES[stage].placement, replicas, shards, question.dtype)


def _rows(question: Question, stage: str) -> Iterator[Row]:
    actions, geometry = _step(question, stage)
    sends = plan_traffic(actions, geometry)
    placed = links.place(sends, geometry, question.ranks_per_host)
    for offload in OFFLOADS:
        if stage in offload.stages:
            tiers = plan_tiers(actions, geometry, offload)
            activations, device = _with_activations(question, actions, tiers)
            seconds, busy, bound = _time(question, actions, geometry, sends, tiers, offload)
            fits, lacks = _fits(question, {**tiers.peak, "device": device})
            yield Row(stage, offload.name, geometry.shards, tiers.at_rest, tiers.peak, activations, device, placed.sent_bytes,
                      placed.inter_host_bytes, seconds, busy, bound, fits, lacks)


def _with_activations(question: Question, actions: Sequence[Action], tiers: TierPlan) -> tuple[int, int]:
    """Bytes of activations, and the most on the device of states and activations together."""
    if question.activations is not None or question.model.activations is None:
        kept = question.activations or 0
        return kept, tiers.peak["device"] + kept
    if question.recompute and question.model.transformer:
        layers, hidden, heads = question.model.transformer
        shape = (question.batch_size, question.model.context)
        kept = recompute_checkpoints(hidden, *shape, layers) + recompute_working_memory(hidden, heads, *shape)
        return kept, tiers.peak["device"] + kept
    table = question.model.activations(question.batch_size, question.model.context, question.dtype)
    live = plan_activations(actions, table)
    before = [0, *live[:-1]]
    return max(live), max(states + max(pair) for states, *pair in zip(tiers.device_points, live, before, strict=True))


def _fits(question: Question, needs: dict[str, int]) -> tuple[bool | None, tuple[str, ...]]:
    capacity = question.capacity
    lacks = tuple(tier for tier in TIERS if (limit := capacity[tier]) is not None and needs[tier] > limit)
    unknown = any(needs[tier] and capacity[tier] is None for tier in TIERS)
    return (False if lacks else None if unknown else True), lacks


def _time(question: Question, actions: Sequence[Action], geometry: Geometry, sends: Sequence[Send], tiers: TierPlan,
          offload: Offload) -> tuple[float, dict[str, float], str]:
    """Seconds of a step, busy seconds by resource, and the resource that bounds. See [Note: How time is estimated]."""
    carried: dict[int, list[tuple[str, float]]] = defaultdict(list)
    inside = {axis: links.stays_inside(axis, geometry, question.ranks_per_host) for axis in Axis}
    for send in sends:
        carried[id(send.action)].append(_wire(question.machine, send, inside[links.axis_of(send.action)]))
    for move in tiers.moves:
        rate = question.machine.nvme_bandwidth if move.link == "nvme" else question.machine.host_bandwidth
        carried[id(move.action)].append((LINKS[move.link], move.nbytes / rate))
    phases: list[dict[str, float]] = []
    for action in actions:
        if isinstance(action, Phase) and action.name != "reduce":  # reductions wait for gradients alone, so they may go on beside backward
            phases.append(defaultdict(float))
        for resource, seconds in [*_work(question, action, geometry, offload), *carried[id(action)]]:
            phases[-1][resource] += seconds
    return _sum_up(phases)


def _sum_up(phases: Sequence[dict[str, float]]) -> tuple[float, dict[str, float], str]:
    busy: dict[str, float] = defaultdict(float)
    critical: dict[str, float] = defaultdict(float)
    total = 0.0
    for phase in phases:
        for resource, seconds in phase.items():
            busy[resource] += seconds
        if phase:
            slowest = max(phase, key=phase.__getitem__)
            critical[slowest] += phase[slowest]
            total += phase[slowest]
    return total, dict(busy), max(critical, key=critical.__getitem__)


def _work(question: Question, action: Action, geometry: Geometry, offload: Offload) -> list[tuple[str, float]]:
    """Computing. A unit's operations count once, at the first stage that uses it."""
    machine, stages = question.machine, geometry.wrapping.stages
    match action:
        case Forward(stage, _) | Backward(stage, _):
            per_param = 2 if isinstance(action, Forward) else 6 if question.recompute else 4
            params = sum(geometry.wrapping.units[unit].numel for unit in stages[stage].completes)
            return [("compute", machine.compute_seconds(params, question.tokens, per_param))]
        case OptimStep(unit):
            updated = geometry.kept(unit, geometry.placement.optim)
            if offload.optim == "device":
                return [("memory", UPDATE_BYTES * updated / machine.memory_bandwidth)]
            return [("CPU update", updated * min(question.ranks, question.ranks_per_host) / machine.host_adam)]
    return []


def _wire(machine: Machine, send: Send, inside: bool) -> tuple[str, float]:
    """A ring goes as fast as its slowest link."""
    bandwidth = machine.intra_bandwidth if inside else machine.inter_bandwidth
    return "intra-host" if inside else "inter-host", machine.message_seconds(send.nbytes, send.rounds, bandwidth)
