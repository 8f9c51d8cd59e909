"""Bytes that a rank sends in a step, by walking the list that the executor runs. Rings: Patarasuk and Yuan (2009).

Gradients go as `geometry.wire`, and what was summed of them, where others get it, as `geometry.sums`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mpizero.dtypes import ITEMSIZE
from mpizero.layout import SHARDED, Axis, Geometry, Placement
from mpizero.schedule.actions import Action
from mpizero.schedule.effects import Effect, effect_of


@dataclass(frozen=True)
class Sent:
    """What an action makes a rank send along `axis`: `rounds` messages (more when chunks are cut up), nbytes in all.

    straight: of nbytes, those that go to each of the others alike, not to the next one along the axis.
    """

    action: Action
    op: str
    axis: Axis
    nbytes: int
    rounds: int
    straight: int = 0


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
    n = geometry.mesh.size(axis)
    elements = (n - 1) * (geometry.kept(unit, extent) // n)
    if op == "all_gather":
        return Sent(action, op, axis, elements * geometry.itemsize, passes * (n - 1))
    reduced, gathered = elements * geometry.wire_itemsize, (passes - 1) * elements * geometry.sum_itemsize
    straight = 0 if geometry.wire == geometry.sums else reduced
    return Sent(action, op, axis, reduced + gathered, passes * (n - 1), straight)


def sent_bytes(sends: Iterable[Sent]) -> int:
    return sum(sent.nbytes for sent in sends)


def sent_between(sends: Iterable[Sent], geometry: Geometry, hosts: Sequence[str], rank: int) -> int:
    """Of the bytes that `rank` sends, those that leave its host. hosts: of each rank, a name.

    A ring sends to the next rank along its axis only.
    """
    mesh = geometry.mesh

    def leaving(send: Sent) -> int:
        ring = send.nbytes - send.straight if hosts[mesh.successor(rank, send.axis)] != hosts[rank] else 0
        far = sum(hosts[other] != hosts[rank] for other in mesh.group(rank, send.axis)) if send.straight else 0
        return ring + send.straight // max(mesh.size(send.axis) - 1, 1) * far

    return sum(map(leaving, sends))


def sent_by_op(sends: Iterable[Sent]) -> dict[str, int]:
    totals: dict[str, int] = defaultdict(int)
    for sent in sends:
        totals[sent.op] += sent.nbytes
    return dict(totals)


def formula_sizes(placement: Placement, volume: int, dtype: str, wire: str, sums: str) -> list[int]:
    """Bytes of an element in each of the `volume` times that it is sent: a gradient to be summed, its sum where ranks
    gather that, and parameters where they are gathered, once a step or, where they are sharded, twice."""
    gathers = 2 if placement.params is SHARDED else 1 if placement.optim is SHARDED else 0
    assert volume > gathers, f"{volume} psi are too few for {gathers} gathers and a reduction"
    return [ITEMSIZE[name] for name in (wire, *[sums] * (volume - 1 - gathers), *[dtype] * gathers)]


def formula_sent(geometry: Geometry, volume: int) -> int:
    """Bytes a rank sends in a step of one microbatch: volume M (F-1)/F + 2 M/F (R-1)/R for M bytes of parameters.

    Where gradients have other sizes on the wire or as sums, `formula_sizes` stands for `volume` times M per parameter;
    across replicas both of theirs do. M is padded, of the parameters that train. volume: 2 or 3, of the strategy (ZeRO
    sec. 7). Where parameters are sharded, a unit is gathered at each use: 2 M_u (F-1)/F more for each segment of a tied
    one beyond the first; of a frozen one M_u (F-1)/F for each forward and each backward that reads it.
    """
    wrapping, shards, replicas = geometry.wrapping, geometry.shards, geometry.replicas
    trained = sum(wrapping.units[unit].padded_numel for unit in wrapping.trained)
    sizes = formula_sizes(geometry.placement, volume, geometry.dtype, geometry.wire, geometry.sums)
    inside = sum(sizes) * trained
    if geometry.placement.params is SHARDED:
        inside -= 2 * trained * geometry.itemsize  # a gather for forward and one for backward: counted where they are
        inside += geometry.itemsize * sum((1 + segment.backward) * wrapping.units[unit].padded_numel
                                          for segment in wrapping.segments for unit in segment.units)
    across = (geometry.wire_itemsize + geometry.sum_itemsize) * (replicas - 1) * (trained // (shards * replicas))
    return inside // shards * (shards - 1) + across
