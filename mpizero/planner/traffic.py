"""Bytes that a rank sends in a step, by walking the list that the executor runs. Rings: Patarasuk and Yuan (2009)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from mpizero.layout import SHARDED
from mpizero.planner.geometry import Geometry
from mpizero.schedule.actions import Action, AllGatherParam, AllReduceGrad, AllReduceShard, Axis, ReduceScatterGrad, Unshard


@dataclass(frozen=True)
class Send:
    """What one action makes a rank send: `rounds` messages (more when chunks are cut up) of nbytes in all."""

    action: Action
    op: str
    nbytes: int
    rounds: int


def plan_traffic(actions: Iterable[Action], geometry: Geometry) -> list[Send]:
    """One entry for each collective, in order. Groups of one rank send nothing but are listed."""
    return list(_sends(actions, geometry))


def sent_bytes(sends: Iterable[Send]) -> int:
    return sum(send.nbytes for send in sends)


def sent_by_op(sends: Iterable[Send]) -> dict[str, int]:
    totals: dict[str, int] = defaultdict(int)
    for send in sends:
        totals[send.op] += send.nbytes
    return dict(totals)


def formula_sent(geometry: Geometry, volume: int) -> int:
    """Bytes a rank sends in a step of one microbatch, in closed form: volume M (F-1)/F + 2 M/F (R-1)/R for M bytes of padded parameters.

    volume: 2 or 3, of the strategy (ZeRO sec. 7). A tied unit whose parameters are sharded is gathered at each use: 2 M_u (F-1)/F more for
    each stage beyond the first.
    """
    wrapping, shards, replicas = geometry.wrapping, geometry.shards, geometry.replicas
    uses = [sum(unit in stage.units for stage in wrapping.stages) for unit in range(len(wrapping.units))]
    again = 0
    if geometry.placement.params is SHARDED:
        again = sum((used - 1) * unit.padded_numel for used, unit in zip(uses, wrapping.units, strict=True))
    inside = (volume * wrapping.padded_numel + 2 * again) // shards * (shards - 1)
    across = 2 * (replicas - 1) * (wrapping.padded_numel // (shards * replicas))
    return geometry.itemsize * (inside + across)


def _sends(actions: Iterable[Action], geometry: Geometry) -> Iterator[Send]:
    ranks = {Axis.REPLICATE: geometry.replicas, Axis.SHARD: geometry.shards}

    def send(op: str, elements: int, axis: Axis, passes: int) -> Send:
        """A ring of n ranks passes each of n chunks on n - 1 times: once to reduce-scatter or gather, twice to all-reduce."""
        n = ranks[axis]
        return Send(action, op, passes * (n - 1) * (elements // n) * geometry.itemsize, passes * (n - 1))

    for action in actions:
        match action:
            case Unshard(unit) | AllGatherParam(unit):
                yield send("all_gather", geometry.wrapping.units[unit].padded_numel, Axis.SHARD, 1)
            case ReduceScatterGrad(unit):
                yield send("reduce_scatter", geometry.wrapping.units[unit].padded_numel, Axis.SHARD, 1)
            case AllReduceGrad(unit, axis):
                yield send("all_reduce", geometry.wrapping.units[unit].padded_numel, axis, 2)
            case AllReduceShard(unit):
                yield send("all_reduce", geometry.wrapping.units[unit].shard_numel(geometry.shards), Axis.REPLICATE, 2)
