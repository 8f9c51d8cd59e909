"""Reductions of several units' gradients, or of pieces of them, through one buffer: see `schedule.passes.bucket`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate

import numpy as np

from mpizero.comm import adder, begin_all_reduce, begin_reduce_scatter
from mpizero.engine.pending import Pending
from mpizero.engine.rooms import Array
from mpizero.engine.unit import Unit
from mpizero.memory.kinds import GRAD, WORKSPACE
from mpizero.schedule.actions import Bucket, Piece, ReduceScatterBucket, bucket_name

Put = Callable[[Array, Array], object]  # (total, values)


def reduce_bucket(units: Sequence[Unit], action: Bucket) -> Pending:
    """Copy the pieces of whole gradients into one buffer of a slot for each rank along the axis, and sum it; the sums
    become, or are added to, reduced gradients. What all takes is `layout.rings.bucket_bytes`."""
    one, scatters = units[action.pieces[0].unit], isinstance(action, ReduceScatterBucket)
    group, mem = one.mesh.group(action.axis), one.ledger
    width, in_place = sum(piece.size for piece in action.pieces), one.grad_dtype == one.dtype
    flat = mem.empty(group.size * width, one.dtype, WORKSPACE)
    slots = flat.reshape(group.size, width)
    out = (slots[group.rank] if scatters else flat) if in_place else mem.empty(
        width if scatters else flat.size, one.grad_dtype, WORKSPACE)
    places = list(_places(units, action.pieces))
    for unit, piece, place in places:
        if not piece.begin:
            _start(unit, scatters, in_place)
        slots[:, place] = _columns(unit.summing, group.size, piece)
    add = adder(one.grad_dtype, width, mem)  # taken also where nothing is added: no plan depends on the microbatch
    begin = begin_reduce_scatter if scatters else begin_all_reduce
    ring = begin(group, flat, out, wire=one.wire, unit=bucket_name(action.pieces), phase=one.phase)

    def done() -> None:
        sums = out.reshape(-1, width)
        for unit, piece, place in places:
            target = unit.summing if unit.reduced is None else unit.reduced
            _put(_columns(target, len(sums), piece), sums[:, place],
                 (lambda total, values: add(total, values, total)) if unit.adds else np.copyto)
            if piece.last:
                _finish(unit)
        mem.discard(flat)  # and held until now, also where the ring has not needed it for long

    return Pending(ring, done)


def _places(units: Sequence[Unit], pieces: Sequence[Piece]) -> Iterator[tuple[Unit, Piece, slice]]:
    """Where in a slot each lies."""
    for piece, end in zip(pieces, accumulate(piece.size for piece in pieces), strict=True):
        yield units[piece.unit], piece, slice(end - piece.size, end)


def _columns(flat: Array | None, chunks: int, piece: Piece) -> Array:
    """The elements of the piece in each of so many chunks."""
    assert flat is not None
    return flat.reshape(chunks, -1)[:, piece.begin:piece.end]


def _put(target: Array, sums: Array, put: Put) -> None:
    for total, values in zip(target, sums, strict=True):
        put(total, values)


def _start(unit: Unit, scatters: bool, in_place: bool) -> None:
    """Close the whole gradient; where it does not become the sum, this has storage of its own."""
    unit.summing, unit.adds = unit.close_grad(), unit.reduced is not None
    if not unit.adds and (scatters or not in_place):
        numel = unit.shard_numel if scatters else unit.summing.size
        unit.reduced = unit.ledger.empty(numel, unit.grad_dtype, GRAD)


def _finish(unit: Unit) -> None:
    """The whole gradient is summed: it is the sum, or free."""
    flat, unit.summing = unit.summing, None
    assert flat is not None
    if unit.reduced is None:
        unit.reduced = unit.ledger.rekind(flat, GRAD)
    else:
        unit.ledger.discard(flat)
