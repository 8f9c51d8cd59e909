"""Does it fit, where, and how fast? Bytes are exact, from the lists of actions; seconds are an estimate.

[Note: How time is estimated]
In each phase of a step (forward, backward with its reductions, update) everything overlaps with everything: a phase
lasts as long as its busiest resource, a step as long as its phases. Rings follow the alpha-beta model. So what cannot
overlap in the lists, such as a gather after the update, is seen; stalls inside a phase, which `plan timeline` shows,
are not.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mpizero.layout import Axis, Geometry
from mpizero.machine import Machine
from mpizero.memory.kinds import ACTIVATION
from mpizero.papers.activations import recompute_checkpoints, recompute_working_memory
from mpizero.planner import links
from mpizero.planner.footprint import plan_memory
from mpizero.planner.model import PlannedModel
from mpizero.planner.tiers import OFFLOADS, TIERS, Offload, TierPlan, plan_tiers
from mpizero.planner.traffic import Sent, plan_traffic, sent_by
from mpizero.schedule import Action, StepSettings, effect_of, set_up
from mpizero.schedule.actions import Phase
from mpizero.schedule.effects import Work

STAGES = ("0", "1", "2", "3")
# of device memory per parameter updated: three float32 in and out, a 16-bit gradient in, a 16-bit parameter out
UPDATE_BYTES = 28
# resources beside compute, memory, CPU update, intra-host, inter-host
LINKS = {"down": "PCIe down", "up": "PCIe up", "nvme": "NVMe"}

Busy = tuple[str, float]  # resource, seconds


@dataclass(frozen=True)
class Question:
    """What is to run on what. Memories in bytes: the device's of a rank, the others of a host; None: not told."""

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
        return {"device": self.device_memory,
                "host": None if self.host_memory is None else self.host_memory // sharing,
                "nvme": None if self.nvme is None else self.nvme // sharing}


@dataclass(frozen=True)
class Row:
    """One stage with one offload. at_rest and peak: model-state bytes of a rank by tier. device_bytes: the most on the
    device, with activations. fits: None when the capacity of a tier that it needs is not told."""

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
        for tiers in (plan_tiers(actions, geometry, offload) for offload in _offloads(stage)):
            device = _with_activations(question, actions, geometry, tiers)[1]
            if _fits(question, {**tiers.peak, "device": device})[0]:
                return True
    return False


def _step(question: Question, stage: str) -> tuple[list[Action], Geometry]:
    """The actions of a step."""
    settings = StepSettings(stage, None if stage == "0" else question.shard_size, question.accumulation)
    setup = set_up(question.model.spec, question.ranks, settings, dtype=question.dtype)
    return setup.lists.step(), setup.geometry


def _offloads(stage: str) -> list[Offload]:
    return [offload for offload in OFFLOADS if stage in offload.stages]


def _rows(question: Question, stage: str) -> Iterator[Row]:
    actions, geometry = _step(question, stage)
    placed = links.place(plan_traffic(actions, geometry), geometry, question.ranks_per_host)
    for offload in _offloads(stage):
        tiers = plan_tiers(actions, geometry, offload)
        activations, device = _with_activations(question, actions, geometry, tiers)
        seconds, busy, bound = _time(question, actions, geometry, tiers, offload)
        fits, lacks = _fits(question, {**tiers.peak, "device": device})
        yield Row(stage, offload.name, geometry.shards, tiers.at_rest, tiers.peak, activations, device,
                  placed.sent_bytes, placed.inter_host_bytes, seconds, busy, bound, fits, lacks)


# -- bytes ------------------------------------------------------------------------------------------------------------


def _with_activations(question: Question, actions: Sequence[Action], geometry: Geometry,
                      tiers: TierPlan) -> tuple[int, int]:
    """Bytes of activations, and the most on the device of states and activations together."""
    model, batch = question.model, question.batch_size
    if question.activations is not None or model.spec.activations is None:
        kept = question.activations or 0
        return kept, tiers.peak["device"] + kept
    if question.recompute and model.gpt is not None:
        gpt = model.gpt
        kept = (recompute_checkpoints(gpt.d_model, batch, gpt.context, gpt.layers)
                + recompute_working_memory(gpt.d_model, gpt.heads, batch, gpt.context))
        return kept, tiers.peak["device"] + kept
    points = plan_memory(actions, geometry, model.spec.activations(model.shape(batch), question.dtype)).points
    live = [point.live[ACTIVATION] for point in points]
    before = [0, *live[:-1]]
    return max(live), max(states + max(pair) for states, *pair in zip(tiers.device_points, live, before, strict=True))


def _fits(question: Question, needs: dict[str, int]) -> tuple[bool | None, tuple[str, ...]]:
    capacity = question.capacity
    lacks = tuple(tier for tier in TIERS if (limit := capacity[tier]) is not None and needs[tier] > limit)
    unknown = any(needs[tier] and capacity[tier] is None for tier in TIERS)
    return (False if lacks else None if unknown else True), lacks


# -- seconds ----------------------------------------------------------------------------------------------------------


def _time(question: Question, actions: Sequence[Action], geometry: Geometry, tiers: TierPlan,
          offload: Offload) -> tuple[float, dict[str, float], str]:
    """Seconds of a step, busy seconds by resource, and the resource that bounds. See [Note: How time is estimated]."""
    machine = question.machine
    inside = {axis: links.stays_inside(axis, geometry, question.ranks_per_host) for axis in Axis}
    moved: dict[int, list[Busy]] = defaultdict(list)  # by place in the list
    for move in tiers.moves:
        rate = machine.nvme_bandwidth if move.link == "nvme" else machine.host_bandwidth
        moved[move.place].append((LINKS[move.link], move.nbytes / rate))
    phases: list[dict[str, float]] = []
    for place, action in enumerate(actions):
        if isinstance(action, Phase) and action.name != "reduce":  # reductions may go on beside backward
            phases.append(defaultdict(float))
        effect = effect_of(action, geometry)
        busy = list(moved[place])
        if effect.work is not None and effect.computes:
            busy += _work(question, effect.work, geometry, offload)
        if (sent := sent_by(action, effect, geometry)) is not None:
            busy.append(_wire(machine, sent, inside[sent.axis]))
        for resource, seconds in busy:
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


def _work(question: Question, work: Work, geometry: Geometry, offload: Offload) -> list[Busy]:
    """Computing. A unit's operations count once, at the first segment that uses it."""
    machine, wrapping = question.machine, geometry.wrapping
    if work.kind == "optim_step":
        updated = geometry.kept(work.index, geometry.placement.optim)
        if offload.optim == "device":
            return [("memory", UPDATE_BYTES * updated / machine.memory_bandwidth)]
        return [("CPU update", updated * min(question.ranks, question.ranks_per_host) / machine.host_adam)]
    per_param = {"forward": 2, "backward": 6 if question.recompute else 4}[work.kind]
    params = sum(wrapping.units[unit].numel for unit in wrapping.segments[work.index].completes)
    return [("compute", machine.compute_seconds(params, question.tokens, per_param))]


def _wire(machine: Machine, sent: Sent, inside: bool) -> Busy:
    """A ring goes as fast as its slowest link."""
    bandwidth = machine.intra_bandwidth if inside else machine.inter_bandwidth
    resource = "intra-host" if inside else "inter-host"
    return resource, machine.message_seconds(sent.nbytes, sent.rounds, bandwidth)
