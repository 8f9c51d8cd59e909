"""How long each action of a list takes: given by hand, or from a model and a machine."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from mpizero.errors import ConfigError
from mpizero.layout import DEVICE, MASTER, ActivationBytes, Axis, Geometry, stored_states
from mpizero.machine import Machine
from mpizero.planner.links import route
from mpizero.planner.model import PlannedModel
from mpizero.planner.traffic import plan_traffic
from mpizero.schedule.actions import (
    Action, AllGatherLoss, AllReduceActivation, AllReduceGrad, AllReduceInputGrad, AllReduceShard, Broadcast,
    GatherKept, ReduceGrad, ReduceScatterGrad, Share, Unshard, bucket_name,
)
from mpizero.schedule.effect import Work

Seconds = float | Sequence[float]
# kinds of work; the others are of units
OF_SEGMENTS = ("forward", "backward", "recompute", "download_kept", "upload_kept", "all_reduce_activation",
               "all_reduce_input_grad", "gather_kept", "all_gather_loss")
OF_UNITS = ("all_gather", "reduce_scatter", "all_reduce", "all_reduce_shard", "all_reduce_copied", "optim_step",
            "broadcast", "reduce", "download", "upload")


@dataclass(frozen=True)
class Costs:
    """Seconds of each kind of work: one number for all, or one for each segment (`OF_SEGMENTS`) or unit.
    recompute: None: as forward."""

    forward: Seconds = 0.0
    backward: Seconds = 0.0
    all_gather: Seconds = 0.0
    reduce_scatter: Seconds = 0.0
    all_reduce: Seconds = 0.0  # of a whole gradient
    all_reduce_shard: Seconds = 0.0  # of its reduced part, across replicas
    all_reduce_copied: Seconds = 0.0  # of the same, among tensor parallel ranks that hold the unit alike
    optim_step: Seconds = 0.0
    broadcast: Seconds = 0.0
    reduce: Seconds = 0.0
    download: Seconds = 0.0  # to the host, of this rank's part
    upload: Seconds = 0.0
    download_kept: Seconds = 0.0  # of a segment
    upload_kept: Seconds = 0.0
    all_reduce_activation: Seconds = 0.0  # among tensor parallel ranks, of what a segment gives
    all_reduce_input_grad: Seconds = 0.0
    gather_kept: Seconds = 0.0
    all_gather_loss: Seconds = 0.0
    recompute: Seconds | None = None
    # of a reduction, what does not depend on its size: a bucket of several units takes it once
    reduce_scatter_start: float = 0.0
    all_reduce_start: float = 0.0
    buckets: Mapping[str, float] = field(default_factory=dict)  # by name, those that were measured

    def __post_init__(self) -> None:
        for name, seconds in vars(self).items():
            several = seconds.values() if isinstance(seconds, Mapping) else seconds or []
            for value in [seconds] if isinstance(seconds, int | float) else several:
                if not (math.isfinite(value) and value >= 0):
                    raise ConfigError(f"{name.replace('_', '-')} cannot take {value} seconds: give a number of at "
                                      "least 0, as in 1.5")

    def of(self, work: Work) -> float:
        """Seconds that `work` takes. AttributeError for a kind that has no cost."""
        again = work.kind == "recompute" and self.recompute is None
        seconds: Seconds = self.forward if again else getattr(self, work.kind)
        if work.pieces and (measured := self.buckets.get(bucket_name(work.pieces))) is not None:
            return measured
        if work.pieces:
            start: float = getattr(self, f"{work.kind}_start")
            return start + math.fsum(piece.size / piece.width * (_at(seconds, piece.unit) - start)
                                     for piece in work.pieces)
        return _at(seconds, work.index)


def _at(seconds: Seconds, index: int) -> float:
    return seconds if isinstance(seconds, int | float) else seconds[index]


def machine_costs(model: PlannedModel, geometry: Geometry, machine: Machine, tokens: int,
                  ranks_per_host: int, table: ActivationBytes | None = None) -> Costs:
    """Costs when a rank has `tokens` tokens in a microbatch: those of `planner.seconds`, action by action. table: of a
    microbatch, without which what tensor parallel ranks share costs nothing."""
    units = range(len(geometry.wrapping.units))

    def rings(actions: Iterable[Action]) -> list[float]:
        return [machine.wire_seconds(*sent.busiest, route(geometry.mesh, sent.axis, ranks_per_host))
                for sent in plan_traffic(actions, geometry, table)]

    def shared(make: Callable[[int], Share | None]) -> list[float]:
        """Of each segment, if there is such an action."""
        made = [make(segment.index) for segment in geometry.wrapping.segments]
        return [0.0 if action is None or table is None else rings([action])[0] for action in made]

    def start(rounds: int, axis: Axis) -> float:
        return machine.wire_seconds(0, rounds * (geometry.mesh.size(axis) - 1), route(geometry.mesh, axis,
                                                                                      ranks_per_host))

    def part(unit: int) -> int:
        return geometry.kept(unit, geometry.placement.optim)

    def update(unit: int) -> float:
        if geometry.placement.tiers.optimizer is DEVICE:
            return update_seconds(unit, geometry, machine)
        return part(unit) * min(geometry.mesh.ranks, ranks_per_host) / machine.host_adam

    segments = geometry.wrapping.segments
    # whole gradients go round the shard group, or among replicas where nothing is sharded
    axis = Axis.SHARD if geometry.shards > 1 else Axis.REPLICATE
    return Costs(forward=[flops * tokens / machine.flops for flops in model.forward_flops],
                 backward=[flops * tokens / machine.flops for flops in model.backward_flops],
                 all_gather=rings(map(Unshard, units)), reduce_scatter=rings(map(ReduceScatterGrad, units)),
                 all_reduce=rings([AllReduceGrad(unit, axis) for unit in units]),
                 all_reduce_shard=rings(map(AllReduceShard, units)),
                 all_reduce_copied=rings([AllReduceShard(unit, Axis.TENSOR) for unit in units]),
                 all_reduce_activation=shared(lambda i: AllReduceActivation(i, 0) if segments[i].sums else None),
                 all_reduce_input_grad=shared(lambda i: AllReduceInputGrad(i, 0) if segments[i].sums_back else None),
                 gather_kept=shared(lambda i: GatherKept(i, 0) if i and segments[i - 1].sums else None),
                 all_gather_loss=shared(lambda i: AllGatherLoss(0) if table and table.loss_parts else None),
                 optim_step=list(map(update, units)),
                 broadcast=rings(map(Broadcast, units)), reduce=rings(map(ReduceGrad, units)),
                 download=[geometry.sum_itemsize * part(unit) / machine.host_bandwidth for unit in units],
                 upload=[geometry.itemsize * part(unit) / machine.host_bandwidth for unit in units],
                 reduce_scatter_start=start(1, Axis.SHARD), all_reduce_start=start(2, axis))


def update_bytes(geometry: Geometry) -> int:
    """Of device memory per parameter updated: optimizer states in and out, the gradient in, the parameter out, and in
    as well where it is its own master weight. 28 for Adam."""
    own = MASTER not in stored_states(geometry.optimizer, geometry.dtype)
    return 2 * geometry.optimizer_bytes + geometry.sum_itemsize + (2 if own else 1) * geometry.itemsize


def update_seconds(unit: int, geometry: Geometry, machine: Machine) -> float:
    """Of a rank's part of `unit`, on the device: as long as its memory takes."""
    rate = machine.update_bandwidth or machine.memory_bandwidth
    return update_bytes(geometry) * geometry.kept(unit, geometry.placement.optim) / rate
