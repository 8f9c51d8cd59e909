"""Bytes that a rank sends in a step, by walking the list that the executor runs. Rings: Patarasuk and Yuan (2009)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

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
