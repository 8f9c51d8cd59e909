"""How long each action of a list takes: given by hand, or from a model and a machine."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mpizero.errors import ConfigError
from mpizero.layout import Axis, Geometry
from mpizero.machine import Machine
from mpizero.planner.traffic import plan_traffic
from mpizero.schedule.actions import Action, AllReduceGrad, AllReduceShard, ReduceScatterGrad, Unshard
from mpizero.schedule.effects import Work

Seconds = float | Sequence[float]


@dataclass(frozen=True)
class Costs:
    """Seconds of each kind of work: one number for all, or one for each segment (forward, backward) or unit."""

    forward: Seconds = 0.0
    backward: Seconds = 0.0
    all_gather: Seconds = 0.0
    reduce_scatter: Seconds = 0.0
    all_reduce: Seconds = 0.0  # of a whole gradient
    all_reduce_shard: Seconds = 0.0
    optim_step: Seconds = 0.0

    def __post_init__(self) -> None:
        for name, seconds in vars(self).items():
            for value in [seconds] if isinstance(seconds, int | float) else seconds:
                if not (math.isfinite(value) and value >= 0):
                    raise ConfigError(f"{name.replace('_', '-')} cannot take {value} seconds: give a number of at "
                                      "least 0, as in 1.5")

    def of(self, work: Work) -> float:
        """Seconds that `work` takes. AttributeError for a kind that has no cost."""
        seconds: Seconds = getattr(self, work.kind)
        return seconds if isinstance(seconds, int | float) else seconds[work.index]


def machine_costs(geometry: Geometry, machine: Machine, tokens: int, *, bandwidth: float | None = None,
                  replica_bandwidth: float | None = None) -> Costs:
    """Costs when a rank has `tokens` tokens in a microbatch. The update is not estimated: it takes no time.

    bandwidth: bytes a second in the shard group (that between hosts unless given); replica_bandwidth: likewise across
    the replicas. A segment computes with all parameters of its units, so the lookup of an embedding counts as if it
    were a matrix product.
    """
    wrapping, units = geometry.wrapping, range(len(geometry.wrapping.units))
    # whole gradients go round the shard group, or among replicas where nothing is sharded
    axis, speed = (Axis.SHARD, bandwidth) if geometry.shards > 1 else (Axis.REPLICATE, replica_bandwidth)

    def rings(actions: Iterable[Action], speed: float | None) -> list[float]:
        speed = speed or machine.inter_bandwidth
        return [machine.message_seconds(send.nbytes, send.rounds, speed) for send in plan_traffic(actions, geometry)]

    sizes = [sum(wrapping.units[unit].numel for unit in segment.units) for segment in wrapping.segments]
    trained = [sum(wrapping.units[unit].numel for unit in segment.trains) for segment in wrapping.segments]
    return Costs(forward=[machine.compute_seconds(size, tokens, 2) for size in sizes],
                 backward=[machine.compute_seconds(size + own, tokens, 2)
                           for size, own in zip(sizes, trained, strict=True)],
                 all_gather=rings(map(Unshard, units), bandwidth),
                 reduce_scatter=rings(map(ReduceScatterGrad, units), bandwidth),
                 all_reduce=rings([AllReduceGrad(unit, axis) for unit in units], speed),
                 all_reduce_shard=rings(map(AllReduceShard, units), replica_bandwidth))
