"""The pass that reduces gradients in buckets of one size, however large the units are: C_B of ZeRO (arXiv:1910.02054),
sec. 6.2.

[Note: bucket] A ring cuts a whole gradient into a chunk for each rank, and the order in which it adds the elements of a
chunk depends on the number of the chunk alone. A bucket has as many slots as there are chunks; slot r holds elements of
chunk r of one unit or of several. So its ring adds every element in the order in which it is added without buckets, and
its size changes no bit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from mpizero.errors import ConfigError
from mpizero.layout.geometry import Geometry
from mpizero.layout.mesh import Axis
from mpizero.layout.placement import REPLICATED
from mpizero.quantities import parse_bytes
from mpizero.schedule.actions import (
    Action,
    Agree,
    AllReduceBucket,
    AllReduceGrad,
    AllReduceShard,
    Bucket,
    Phase,
    Piece,
    ReduceScatterBucket,
    ReduceScatterGrad,
)

ALL = "all"  # of the model: the fused buffer, whose bytes grow with it
MOST = 2**12  # buckets in a list: each is an action, which is composed and validated

Reduction = ReduceScatterGrad | AllReduceGrad


def parse_bucket(text: str) -> int | None:
    """`25MiB` -> bytes; None for `all`. ConfigError for what is no size."""
    try:
        return None if text == ALL else parse_bytes(text)
    except ConfigError as error:
        raise ConfigError(f"`bucket_size`: {error}, or {ALL}") from None


def bucketed(actions: Iterable[Action], geometry: Geometry, nbytes: int | None) -> list[Action]:
    """Reductions of whole gradients share buckets of at most `nbytes` (None: of all that comes), and are cut to fit.

    A bucket is reduced when it is full, or where the phase ends. What is left over of a unit that is larger than a
    bucket does not wait for others, so the gradients that wait fit one bucket. A sum across replicas comes once its
    unit's last piece is reduced. See [Note: bucket]. ConfigError where a bucket has no room for an element of each
    chunk, or there are more than a list can hold.
    """
    out: list[Action] = []
    filling, buckets = _Filling(geometry, nbytes), 0
    for action in actions:
        if isinstance(action, Reduction):
            come = list(filling.take(action))
        elif isinstance(action, Phase | Agree):
            come = [*filling.rest(), action]
        else:
            come = list(filling.put_off(action))
        buckets += sum(isinstance(each, Bucket) for each in come)
        if buckets > MOST:
            raise ConfigError(f"`bucket_size` {nbytes} B cuts the gradients of a step into more than {MOST:,} buckets, "
                              "each of which is an action of its list: use a larger one")
        out += come
    return [*out, *filling.rest()]


class _Filling:
    """The bucket that is not full yet, and what waits for its reduction."""

    def __init__(self, geometry: Geometry, nbytes: int | None):
        self.geometry, self.nbytes = geometry, nbytes
        self.pieces: list[Piece] = []
        self.kind: type[Bucket] = ReduceScatterBucket
        self.axis = Axis.SHARD
        self.waiting: list[AllReduceShard] = []

    def take(self, reduction: Reduction) -> Iterator[Action]:
        """Fill buckets with the unit's gradient; those that are full."""
        kind = ReduceScatterBucket if isinstance(reduction, ReduceScatterGrad) else AllReduceBucket
        if (kind, reduction.axis) != (self.kind, self.axis):
            yield from self.rest()
            self.kind, self.axis = kind, reduction.axis
        width = self.geometry.kept(reduction.unit, REPLICATED) // self.geometry.mesh.size(self.axis)
        room, begin = self._room(width), 0
        while begin < width:
            end = min(width, begin + room - sum(piece.size for piece in self.pieces))
            self.pieces.append(Piece(reduction.unit, begin, end, width))
            begin = end
            if sum(piece.size for piece in self.pieces) == room:
                yield from self.rest()
        if width > room:
            yield from self.rest()

    def put_off(self, action: Action) -> Iterator[Action]:
        """Until its unit is summed, if it is a sum across replicas of one that waits."""
        if isinstance(action, AllReduceShard) and any(piece.unit == action.unit for piece in self.pieces):
            self.waiting.append(action)
        else:
            yield action

    def rest(self) -> Iterator[Action]:
        """What there is, full or not."""
        if self.pieces:
            yield self.kind(tuple(self.pieces), self.axis)
        yield from self.waiting
        self.pieces, self.waiting = [], []

    def _room(self, width: int) -> int:
        """Elements of a slot. width: of each chunk of the unit that comes; where all share one bucket there is more."""
        if self.nbytes is None:
            return sum(piece.size for piece in self.pieces) + width + 1
        size = self.geometry.mesh.size(self.axis)
        if not (room := self.nbytes // (size * self.geometry.itemsize)):
            raise ConfigError(f"`bucket_size` {self.nbytes} B has no room for an element of each of {size} ranks: use "
                              f"at least {size * self.geometry.itemsize} B")
        return room
