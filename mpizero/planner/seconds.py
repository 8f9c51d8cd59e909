"""How long a step might take: an estimate, from the same list of actions.

[Note: How time is estimated]
In each phase of a step (forward, backward with its reductions, update) everything overlaps with everything: a phase
lasts as long as its busiest resource, a step as long as its phases. Rings follow the alpha-beta model. So what cannot
overlap in the lists, such as a gather after the update, is seen; stalls inside a phase, which `plan timeline` shows,
are not. What a phase lasts beyond the device's own work is exposed: there the device waits.
"""

from __future__ import annotations

import functools
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from mpizero.layout import Axis, Geometry, MeshShape
from mpizero.machine import Machine
from mpizero.planner.question import Question
from mpizero.planner.tiers import Offload
from mpizero.planner.traffic import Sent, sent_by
from mpizero.schedule.actions import Action, Phase
from mpizero.schedule.effects import Effect, effect_of

# of device memory per parameter updated: three float32 in and out, a 16-bit gradient in, a 16-bit parameter out
UPDATE_BYTES = 28
OWN = ("compute", "memory")  # resources of the device itself; the others are links, and the host's CPUs
LINKS = {"down": "PCIe down", "up": "PCIe up", "nvme": "NVMe"}


@dataclass
class Load:
    """What a phase does, whatever the mesh's sizes: collectives; the units that are computed with (each once, however
    many segments use it) and that are updated; where in the list it ends."""

    phase: str
    sends: list[tuple[Action, Effect]] = field(default_factory=list)
    forward: list[int] = field(default_factory=list)
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
    for place, action in enumerate(actions):
        if isinstance(action, Phase) and action.name != "reduce":
            found.append(Load(action.name))
        load, effect = found[-1], effect_of(action, geometry)
        load.end = place + 1
        if effect.sends is not None:
            load.sends.append((action, effect))
        elif effect.work is not None:
            index, kind = effect.work.index, effect.work.kind
            units = {"forward": load.forward, "backward": load.backward, "optim_step": load.updated}[kind]
            units += [index] if kind == "optim_step" else geometry.wrapping.segments[index].meets
    return found


def estimate(question: Question, phases: Sequence[Load], sends: Sequence[Sequence[Sent]], geometry: Geometry,
             offload: Offload, moved: Sequence[Mapping[str, float]]) -> Estimate:
    """sends: of each phase; moved: bytes of each phase by link, as in `tiers.Move`. See [Note: How time is
    estimated]."""
    busy: dict[str, float] = defaultdict(float)
    bound: dict[str, float] = defaultdict(float)
    exposed: dict[str, dict[str, float]] = {}
    own = total = 0.0
    for load, sent, moves in zip(phases, sends, moved, strict=True):
        phase = _phase(question, load, sent, geometry, offload, moves)
        for resource, seconds in phase.items():
            busy[resource] += seconds
        slowest = max(phase, key=phase.__getitem__, default="compute")
        lasts, works = phase.get(slowest, 0.0), max(phase.get(resource, 0.0) for resource in OWN)
        total, own = total + lasts, own + works
        bound[slowest] += lasts
        if lasts > works:
            waits = exposed.setdefault(load.phase, {})
            waits[slowest] = waits.get(slowest, 0.0) + lasts - works
    return Estimate(total, own, exposed, dict(busy), max(bound, key=bound.__getitem__))


def _phase(question: Question, load: Load, sent: Iterable[Sent], geometry: Geometry, offload: Offload,
           moves: Mapping[str, float]) -> dict[str, float]:
    """Seconds that each resource is busy."""
    machine, units = question.machine, geometry.wrapping.units
    busy: dict[str, float] = defaultdict(float)
    trained = [unit for unit in load.backward if not units[unit].frozen]
    # two for the gradient of what comes in, two for that of the parameters
    for kind, per_param in ((load.forward, 2), (load.backward, 4 if question.recompute else 2), (trained, 2)):
        if kind:
            busy["compute"] += machine.compute_seconds(sum(units[unit].numel for unit in kind), question.tokens,
                                                       per_param)
    updated = sum(geometry.kept(unit, geometry.placement.optim) for unit in load.updated)
    if updated and offload.optim == "device":
        busy["memory"] += UPDATE_BYTES * updated / machine.memory_bandwidth
    elif updated:
        busy["CPU update"] += updated * question.sharing / machine.host_adam
    for link, nbytes in moves.items():
        busy[LINKS[link]] += nbytes / (machine.nvme_bandwidth if link == "nvme" else machine.host_bandwidth)
    leaving = frozenset().union(*leaves(geometry.mesh, question.ranks_per_host))
    for send in sent:
        resource, seconds = _wire(machine, send, send.axis not in leaving)
        busy[resource] += seconds
    return busy


def _wire(machine: Machine, sent: Sent, inside: bool) -> tuple[str, float]:
    """A ring goes as fast as its slowest link."""
    bandwidth = machine.intra_bandwidth if inside else machine.inter_bandwidth
    return "intra-host" if inside else "inter-host", machine.message_seconds(sent.nbytes, sent.rounds, bandwidth)


def sends_of(load: Load, geometry: Geometry) -> list[Sent]:
    """What a rank sends in a phase."""
    found = (sent_by(action, effect, geometry) for action, effect in load.sends)
    return [sent for sent in found if sent is not None]


def between_hosts(sends: Iterable[Sent], mesh: MeshShape, ranks_per_host: int) -> int:
    """Bytes of `sends` that leave the host, of the rank of which most do: `links.place` without looking at each
    rank."""
    by_axis: dict[Axis, int] = defaultdict(int)
    for send in sends:
        by_axis[send.axis] += send.nbytes
    return max(sum(by_axis[axis] for axis in axes) for axes in leaves(mesh, ranks_per_host))


@functools.lru_cache(maxsize=1024)
def leaves(mesh: MeshShape, ranks_per_host: int) -> frozenset[frozenset[Axis]]:
    """Along which axes a rank sends to another host: the combinations that ranks have, or the one of all axes.

    Ranks fill hosts in order, so the last one of the first host sends to another along every axis whose rings leave
    hosts at all; unless it stands in the last row of the mesh, which sends back to the first: then all are looked at.
    """
    last = ranks_per_host - 1
    if last >= mesh.ranks - 1:
        return frozenset([frozenset()])
    found: set[frozenset[Axis]] = set()
    for rank in [last] if last < mesh.ranks - mesh.shard else range(mesh.ranks):
        found.add(frozenset(axis for axis in mesh.divided
                            if mesh.successor(rank, axis) // ranks_per_host != rank // ranks_per_host))
        if mesh.divided in found:
            break
    return frozenset(found)
