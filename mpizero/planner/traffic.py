"""Bytes that a rank sends in a step, by walking the list that the executor runs. Rings: Patarasuk and Yuan (2009)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mpizero.layout import SHARDED, Axis, Geometry
from mpizero.schedule.actions import Action
from mpizero.schedule.effects import Effect, effect_of


@dataclass(frozen=True)
class Sent:
    """What an action makes a rank send along `axis`: `rounds` messages (more when chunks are cut up), nbytes in all."""

    action: Action
    op: str
    axis: Axis
    nbytes: int
    rounds: int


def plan_traffic(actions: Iterable[Action], geometry: Geometry) -> list[Sent]:
    """One entry for each collective, in order. Groups of one rank send nothing but are listed."""
    found = (sent_by(action, effect_of(action, geometry), geometry) for action in actions)
    return [sent for sent in found if sent is not None]


def sent_by(action: Action, effect: Effect, geometry: Geometry) -> Sent | None:
    """What `action` sends; None if it is no collective.

    A ring of n ranks passes each of n chunks on n - 1 times: once to reduce-scatter or gather, twice to all-reduce.
    """
    if effect.sends is None:
        return None
    op, unit, extent, axis, passes = effect.sends
    n, elements = geometry.mesh.size(axis), geometry.kept(unit, extent)
    return Sent(action, op, axis, passes * (n - 1) * (elements // n) * geometry.itemsize, passes * (n - 1))


def sent_bytes(sends: Iterable[Sent]) -> int:
    return sum(sent.nbytes for sent in sends)


def sent_between(sends: Iterable[Sent], geometry: Geometry, hosts: Sequence[str], rank: int) -> int:
    """Of the bytes that `rank` sends, those that leave its host. hosts: of each rank, a name.

    A ring sends to the next rank along its axis only.
    """
    return sum(send.nbytes for send in sends if hosts[geometry.mesh.successor(rank, send.axis)] != hosts[rank])


def sent_by_op(sends: Iterable[Sent]) -> dict[str, int]:
    totals: dict[str, int] = defaultdict(int)
    for sent in sends:
        totals[sent.op] += sent.nbytes
    return dict(totals)


def formula_sent(geometry: Geometry, volume: int) -> int:
    """Bytes a rank sends in a step of one microbatch: volume M (F-1)/F + 2 M/F (R-1)/R for M bytes of parameters.

    M is padded, of the parameters that train. volume: 2 or 3, of the strategy (ZeRO sec. 7). Where parameters are
    sharded, a unit is gathered at each use: 2 M_u (F-1)/F more for each segment of a tied one beyond the first; of a
    frozen one M_u (F-1)/F for each forward and each backward that reads it.
    """
    wrapping, shards, replicas = geometry.wrapping, geometry.shards, geometry.replicas
    trained = sum(wrapping.units[unit].padded_numel for unit in wrapping.trained)
    inside = volume * trained
    if geometry.placement.params is SHARDED:
        inside -= 2 * trained  # a gather for forward and one for backward: counted where they are
        inside += sum((1 + segment.backward) * wrapping.units[unit].padded_numel
                      for segment in wrapping.segments for unit in segment.units)
    across = 2 * (replicas - 1) * (trained // (shards * replicas))
    return geometry.itemsize * (inside // shards * (shards - 1) + across)
