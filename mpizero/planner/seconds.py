"""How long a step might take: an estimate, from the same list of actions.

[Note: How time is estimated]
In each phase of a step (forward, backward with its reductions, update) everything overlaps with everything: a phase
lasts as long as its busiest resource, a step as long as its phases. What tensor parallel ranks tell each other overlaps
with nothing, since the next computation waits for it: a phase lasts at least as long as that and the device's own work
together. Rings follow the alpha-beta model, over the links that they use ([Note: Rings across hosts] in machine.py). So
what cannot overlap in the lists, such as a gather after the update, is seen; stalls inside a phase, which `plan
timeline` shows from the same costs, are not. What a phase lasts beyond the device's own work is exposed: there the
device waits.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from mpizero.layout import DEVICE, ActivationBytes, Axis, Geometry
from mpizero.planner.costs import update_seconds
from mpizero.planner.links import route
from mpizero.planner.question import Question
from mpizero.planner.tiers import Offload
from mpizero.planner.traffic import Sent, sent_by
from mpizero.schedule.actions import Action, Phase, Share
from mpizero.schedule.effect import Effect
from mpizero.schedule.effects import effect_of

OWN = ("compute", "memory")  # resources of the device itself; the others are links, and the host's CPUs
LINKS = {"down": "PCIe down", "up": "PCIe up", "nvme": "NVMe"}


@dataclass
class Load:
    """What a phase does, whatever the mesh's sizes: collectives; the segments that are computed, the units that are
    updated; where in the list it ends."""

    phase: str
    sends: list[tuple[Action, Effect]] = field(default_factory=list)
    forward: list[int] = field(default_factory=list)  # and those that are computed again
    backward: list[int] = field(default_factory=list)
    updated: list[int] = field(default_factory=list)
    end: int = 0


@dataclass(frozen=True)
class Estimate:
    """Seconds of a step. compute_seconds: of the device's own work, update included. exposed: by phase and resource,
    what it waits for. by_resource: how long each is busy. bound_by: the one that takes most of the step."""

    seconds: float
    compute_seconds: float
    exposed: dict[str, dict[str, float]]
    by_resource: dict[str, float]
    bound_by: str

    @property
    def exposed_seconds(self) -> float:
        return math.fsum(seconds for waits in self.exposed.values() for seconds in waits.values())


def loads(actions: Iterable[Action], geometry: Geometry) -> list[Load]:
    """The phases of a step. Reductions after backward may go on beside it, so they belong to it."""
    found: list[Load] = []
    for number, action in enumerate(actions, 1):
        if isinstance(action, Phase) and action.name != "reduce":
            found.append(Load(action.name))
        load, effect = found[-1], effect_of(action, geometry)
        load.end = number
        if effect.sends is not None or effect.shares is not None:
            load.sends.append((action, effect))
        elif effect.work is not None and not effect.moves:
            done = {"forward": load.forward, "recompute": load.forward, "backward": load.backward,
                    "optim_step": load.updated}
            done[effect.work.kind].append(effect.work.index)
    return found


def estimate(question: Question, phases: Sequence[Load], sends: Sequence[Sequence[Sent]], geometry: Geometry,
             offload: Offload, moved: Sequence[Mapping[str, float]]) -> Estimate:
    """sends: of each phase; moved: bytes of each phase by link, as in `tiers.Moving`. See [Note: How time is
    estimated]."""
    busy: dict[str, float] = defaultdict(float)
    bound: dict[str, float] = defaultdict(float)
    exposed: dict[str, dict[str, float]] = {}
    own = total = 0.0
    for load, sent, moves in zip(phases, sends, moved, strict=True):
        phase, shared = _phase(question, load, sent, geometry, offload, moves)
        for resource, seconds in phase.items():
            busy[resource] += seconds
        slowest = max(phase, key=phase.__getitem__, default="compute")
        lasts, works = phase.get(slowest, 0.0), max(phase.get(resource, 0.0) for resource in OWN)
        chain = works + math.fsum(shared.values())
        most = slowest
        if chain > lasts:
            lasts, slowest = chain, max(shared, key=shared.__getitem__, default=slowest)
            most = slowest if shared.get(slowest, 0.0) > works else "compute"
        total, own = total + lasts, own + works
        bound[most] += lasts
        if lasts > works:
            waits = exposed.setdefault(load.phase, {})
            waits[slowest] = waits.get(slowest, 0.0) + lasts - works
    return Estimate(total, own, exposed, dict(busy), max(bound, key=bound.__getitem__))


def _phase(question: Question, load: Load, sent: Iterable[Sent], geometry: Geometry, offload: Offload,
           moves: Mapping[str, float]) -> tuple[dict[str, float], dict[str, float]]:
    """Seconds that each resource is busy, and of them those for which computing waits in any case."""
    machine, model, mesh = question.machine, question.model, geometry.mesh
    busy: dict[str, float] = defaultdict(float)
    shared: dict[str, float] = defaultdict(float)
    for segments, flops in ((load.forward, model.forward_flops), (load.backward, model.backward_flops)):
        if segments:
            busy["compute"] += sum(flops[index] for index in segments) * question.tokens / machine.flops
    if load.updated and offload.tiers.optimizer is DEVICE:
        busy["memory"] += math.fsum(update_seconds(unit, geometry, machine) for unit in load.updated)
    elif load.updated:
        updated = sum(geometry.kept(unit, geometry.placement.optim) for unit in load.updated)
        busy["CPU update"] += updated * question.sharing / machine.host_adam
    for link, nbytes in moves.items():
        busy[LINKS[link]] += nbytes / (machine.nvme_bandwidth if link == "nvme" else machine.host_bandwidth)
    routes = {axis: route(mesh, axis, question.ranks_per_host) for axis in Axis}
    for send in sent:
        way = routes[send.axis]
        link, seconds = "inter-host" if way.leaving else "intra-host", machine.wire_seconds(*send.busiest, way)
        busy[link] += seconds
        if isinstance(send.action, Share):
            shared[link] += seconds
    return busy, shared


def sends_of(load: Load, geometry: Geometry, table: ActivationBytes | None = None) -> list[Sent]:
    """What a rank sends in a phase. table: as of `plan_traffic`."""
    found = (sent_by(action, effect, geometry, table) for action, effect in load.sends)
    return [sent for sent in found if sent is not None]
