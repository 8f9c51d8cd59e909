"""What an action can do: a value that every reader of a list folds over."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from mpizero.layout.mesh import Axis
from mpizero.layout.placement import Keep
from mpizero.layout.tiers import Tier
from mpizero.schedule import values as v
from mpizero.schedule.actions import Piece
from mpizero.schedule.values import Value

Values = tuple[Value, ...]


class Sum(NamedTuple):
    """Gradients are summed along `axis` (None: only moved); the sum becomes `target`, or is added to it. extent: of the
    unit, what the target then holds. piece: of the gradient, unless all of it."""

    source: Value
    target: Value
    axis: Axis | None
    extent: Keep
    piece: Piece | None = None


class Send(NamedTuple):
    """What goes along `axis`, in a ring unless it comes from the unit's owner (broadcast) or goes there (reduce).
    extent: of the unit, what is sent. chunk: elements of each chunk, where that is a bucket, of pieces up to one of
    `unit`."""

    op: str
    unit: int
    extent: Keep
    axis: Axis
    chunk: int | None = None


class Shared(NamedTuple):
    """What tensor parallel ranks sum (all_reduce) or gather (all_gather): as many bytes as `value` holds."""

    op: str
    value: Value


class Carry(NamedTuple):
    """What moves between tiers: as many bytes as `value` holds."""

    value: Value
    source: Tier
    target: Tier


@dataclass(frozen=True, slots=True)
class Work:
    """What takes time. kind: as `planner.costs` and charts name it; index: of the segment or unit. pieces: of a
    bucket, up to one of that unit."""

    kind: str
    index: int
    pieces: tuple[Piece, ...] = ()


@dataclass(frozen=True)
class Effect:
    """What an action does to values.

    reads: must be there and current. makes: must not be there, and is afterwards. adds: is made unless it is there,
    then added to. becomes: the storage of the first of a pair turns into the second, or is added to it and freed.
    frees: must be there, and is not afterwards. during: lives while the action runs. agrees: gradients are complete,
    and all ranks know it. updates: the unit whose states are new afterwards. refreshes: the unit of whose kept
    parameters this rank's part is new afterwards. awaits: the host waits for the memory that this value held. begins,
    ends: the effect of the collective or move that is set going, or waited for: meanwhile nobody else may use what it
    makes, or change what it reads.
    """

    reads: Values = ()
    makes: Values = ()
    adds: Values = ()
    becomes: tuple[tuple[Value, Value], ...] = ()
    frees: Values = ()
    during: Values = ()
    sums: tuple[Sum, ...] = ()
    agrees: bool = False
    updates: int | None = None
    refreshes: int | None = None
    sends: Send | None = None
    shares: Shared | None = None
    carries: tuple[Carry, ...] = ()
    work: Work | None = None
    awaits: Value | None = None
    begins: Effect | None = None
    ends: Effect | None = None

    @property
    def computes(self) -> bool:
        """Whether its work is this rank's own, not a ring's or a link's."""
        return self.work is not None and self.sends is None and self.shares is None and not self.moves

    @property
    def moves(self) -> bool:
        """Whether its work is to move something."""
        return bool(self.carries) and self.updates is None and not self.agrees

    @cached_property
    def touched(self) -> frozenset[Value]:
        """The values that are made, freed or changed."""
        turned = (*(value for pair in self.becomes for value in pair), *(each.target for each in self.sums))
        states = () if self.updates is None else (v.states(self.updates),)
        fresh = () if self.refreshes is None else (v.shard(self.refreshes), v.own(self.refreshes),
                                                   v.whole(self.refreshes), v.part(self.refreshes))
        return frozenset((*self.makes, *self.adds, *self.frees, *turned, *states, *fresh))

    @cached_property
    def used(self) -> frozenset[Value]:
        """The values that are read or touched."""
        return self.touched.union(self.reads)

    def meets(self, other: Effect) -> bool:
        """Whether the two must come one after the other: one touches what the other uses."""
        return not (self.touched.isdisjoint(other.used) and self.used.isdisjoint(other.touched))
