"""Bytes that a rank sends in a step, by walking the list that the executor runs. Rings: Patarasuk and Yuan (2009).

Gradients go as `geometry.wire`, and what was summed of them, where others get it, as `geometry.sums`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mpizero.layout import OWNED, REPLICATED, ActivationBytes, Axis, Geometry, rings
from mpizero.planner.activations import storage_bytes, storages
from mpizero.schedule.actions import Action
from mpizero.schedule.effect import Effect, Shared
from mpizero.schedule.effects import effect_of
from mpizero.schedule.values import Name


@dataclass(frozen=True)
class Sent:
    """What an action makes a rank send along `axis`: `rounds` messages (more when chunks are cut up), nbytes in all.

    straight: of nbytes, those that go to each of the others alike, not to the next one along the axis. home: those that
    go straight to the rank that is number `owner` along the axis. path: (bytes, rounds) of the busiest link, where that
    is not this rank's alone: what time depends on.
    """

    action: Action
    op: str
    axis: Axis
    nbytes: int
    rounds: int
    straight: int = 0
    home: int = 0
    owner: int = 0
    path: tuple[int, int] | None = None

    @property
    def ring(self) -> int:
        """Bytes that go to the next one along the axis."""
        return self.nbytes - self.straight - self.home

    @property
    def busiest(self) -> tuple[int, int]:
        """Bytes and rounds of the link that all wait for."""
        return self.path or (self.nbytes, self.rounds)


def plan_traffic(actions: Iterable[Action], geometry: Geometry,
                 table: ActivationBytes | None = None) -> list[Sent]:
    """One entry for each collective, in order. Groups of one rank send nothing but are listed. table: of a microbatch,
    without which what tensor parallel ranks share is left out."""
    found = (sent_by(action, effect_of(action, geometry), geometry, table) for action in actions)
    return [sent for sent in found if sent is not None]


def plan_traffic_by_shard_rank(actions: Sequence[Action], geometry: Geometry,
                               table: ActivationBytes | None = None) -> dict[int, list[Sent]]:
    """The same of each of `geometry.representatives`."""
    return {shard_rank: plan_traffic(actions, geometry.at(shard_rank), table)
            for shard_rank in geometry.representatives}


def sent_by(action: Action, effect: Effect, geometry: Geometry, table: ActivationBytes | None = None) -> Sent | None:
    """What `action` sends; None if it is no collective.

    A ring of n ranks passes each of n chunks on n - 1 times: once to reduce-scatter or gather, twice to all-reduce.
    A reduced gradient is summed in as many rings as `Geometry.rings` says, and ranks that have nothing of it send
    nothing.
    """
    if effect.shares is not None:
        return _shared(action, effect.shares, geometry.tensors, table)
    if effect.sends is None:
        return None
    op, unit, extent, axis, chunk = effect.sends
    n = geometry.mesh.size(axis)
    if op == "broadcast":
        return _broadcast(action, unit, axis, geometry)
    if extent is OWNED and not geometry.owns(unit):  # its owner's replicas sum it
        theirs = sent_by(action, effect, geometry.at(geometry.owner(unit)))
        return theirs and Sent(action, op, axis, 0, 0, path=theirs.busiest)
    elements = (n - 1) * (geometry.kept(unit, extent) // n if chunk is None else chunk)
    if op == "all_gather":
        return Sent(action, op, axis, elements * geometry.itemsize, n - 1)
    reduced, summed = elements * geometry.wire_itemsize, elements * geometry.sum_itemsize
    straight = 0 if geometry.wire == geometry.sums else reduced
    if op == "reduce":
        home = 0 if geometry.owns(unit) else summed // (n - 1)
        return Sent(action, op, axis, reduced + home, n - 1 + (not geometry.owns(unit)), straight, home,
                    geometry.owner(unit), path=(reduced + summed, n) if n > 1 else None)
    passes = 2 if op == "all_reduce" else 1
    rings = geometry.rings(unit, extent, axis) if effect.sums and effect.sums[0].source.name is Name.REDUCED else 1
    return Sent(action, op, axis, reduced + (passes - 1) * summed, rings * passes * (n - 1), straight)


def _shared(action: Action, shared: Shared, n: int, table: ActivationBytes | None) -> Sent | None:
    """Among n tensor parallel ranks."""
    if table is None:
        return None
    passes = 2 if shared.op == "all_reduce" else 1
    nbytes = sum(storage_bytes(storage, table) for storage in storages(shared.value, table)[:1])
    return Sent(action, shared.op, Axis.TENSOR, passes * (n - 1) * (nbytes // n), passes * (n - 1))


def _broadcast(action: Action, unit: int, axis: Axis, geometry: Geometry) -> Sent:
    """Down the chain that begins at the owner: its last rank sends nothing. A segment is handed on when it is there, so
    all is there when the first rank has sent it, and the last segment has come through the others."""
    n, nbytes = geometry.mesh.size(axis), geometry.itemsize * geometry.kept(unit, REPLICATED)
    if n == 1:
        return Sent(action, "broadcast", axis, 0, 0)
    sends = (geometry.shard_rank + 1) % n != geometry.owner(unit)
    return Sent(action, "broadcast", axis, nbytes * sends, int(sends),
                path=(nbytes + (n - 2) * min(nbytes, rings.SEGMENT_BYTES), n - 1))


def sent_bytes(sends: Iterable[Sent]) -> int:
    return sum(sent.nbytes for sent in sends)


def sent_by_op(sends: Iterable[Sent]) -> dict[str, int]:
    totals: dict[str, int] = defaultdict(int)
    for sent in sends:
        totals[sent.op] += sent.nbytes
    return dict(totals)
