"""The collectives, in place on flat arrays; each leaves one record in the group's traffic log.

As blocking calls, and those that training can do beside computation also as `begin_...`: they give a `Collective`,
which somebody must drive (`stream`) and finish. Until then the arrays belong to it.
"""

from __future__ import annotations

from functools import cache
from itertools import chain
from typing import Any

import numpy as np

from mpizero.comm import mixed, ring
from mpizero.comm.channel import Array, Channel
from mpizero.comm.collective import Collective
from mpizero.comm.group import Group
from mpizero.comm.wait import gave_up, wait
from mpizero.layout.rings import chunk


def reduce_scatter(group: Group, flat: Array, out: Array, **options: Any) -> None:
    """Blocking; see `begin_reduce_scatter`."""
    begin_reduce_scatter(group, flat, out, **options).finish()


def all_gather(group: Group, flat: Array, **options: Any) -> None:
    """Blocking; see `begin_all_gather`."""
    begin_all_gather(group, flat, **options).finish()


def all_reduce(group: Group, flat: Array, out: Array | None = None, **options: Any) -> None:
    """Blocking; see `begin_all_reduce`."""
    begin_all_reduce(group, flat, out, **options).finish()


def broadcast(group: Group, flat: Array, root: int, **options: Any) -> None:
    """Blocking; see `begin_broadcast`."""
    begin_broadcast(group, flat, root, **options).finish()


def reduce(group: Group, flat: Array, out: Array, root: int, **options: Any) -> None:
    """Blocking; see `begin_reduce`."""
    begin_reduce(group, flat, out, root, **options).finish()


def begin_reduce_scatter(
    group: Group, flat: Array, out: Array, *, accumulate: bool = False, wire: np.dtype | None = None, unit: str = "",
    phase: str = ""
) -> Collective:
    """out (numel of this rank's chunk,) = sum over ranks of that chunk of flat (numel,).

    With `accumulate` out = out + sum. wire: what values are sent as (None: as flat's and out's one dtype). The sum is
    made in out's dtype, in an order that depends on chunk and group only, as fits: see `mixed`. The contents of `flat`
    are lost. `out` may be flat's own chunk. Each rank sends (N-1)/N * numel elements.
    """
    _check(flat, "flat")
    _check(out, "out")
    own = chunk(flat.size, group.rank, group.size)
    width = own.stop - own.start
    if out.size != width or wire is None and out.dtype != flat.dtype:
        raise ValueError(f"out has {out.size} elements of {out.dtype}, this rank's chunk has {width} of {flat.dtype}")
    wire = wire or flat.dtype
    channel = Channel(group, "reduce_scatter", unit, phase, _name(wire), flat.size)
    return Collective(channel, mixed.reduce_scatter(channel, flat, out, accumulate, wire))


def begin_all_gather(
    group: Group, flat: Array, *, unit: str = "", phase: str = "", op: str = "all_gather"
) -> Collective:
    """Every rank's own chunk of flat (numel,) is sent to all; afterwards all hold all.

    Each rank sends (N-1)/N of flat's bytes.
    """
    _check(flat, "flat")
    channel = Channel(group, op, unit, phase, _name(flat.dtype), flat.size)
    return Collective(channel, ring.all_gather(channel, flat))


def begin_all_reduce(
    group: Group, flat: Array, out: Array | None = None, *, accumulate: bool = False, wire: np.dtype | None = None,
    parts: int = 1, unit: str = "", phase: str = ""
) -> Collective:
    """out (numel,) = sum over ranks of flat (numel,), bit for bit that of `reduce_scatter` then `all_gather`.

    out: None for flat itself. With `accumulate` out, which all ranks then hold alike, = out + sum. wire: as of
    `reduce_scatter`. Each rank sends (N-1)/N * numel elements of what is sent, and as many of out's dtype. parts: so
    many equal ones are summed one after the other, each as if it was alone, which fixes the order of its additions; of
    0 nothing is sent.
    """
    _check(flat, "flat")
    target = flat if out is None else out
    _check(target, "out")
    if target.size != flat.size or wire is None and target.dtype != flat.dtype:
        raise ValueError(f"out has {target.size} elements of {target.dtype}, flat has {flat.size} of {flat.dtype}")
    wire = wire or flat.dtype
    channel = Channel(group, "all_reduce", unit, phase, _name(wire), flat.size)
    pieces = _split(flat, parts)
    totals = pieces if target is flat else _split(target, parts)
    return Collective(channel, chain(*[mixed.all_reduce(channel, piece, total, accumulate, wire)
                                       for piece, total in zip(pieces, totals, strict=True)]))


def begin_broadcast(group: Group, flat: Array, root: int, *, unit: str = "", phase: str = "") -> Collective:
    """flat (numel,) = that of group rank `root`. All ranks but the last of the chain send flat's bytes once."""
    _check(flat, "flat")
    _check_root(root, group)
    channel = Channel(group, "broadcast", unit, phase, _name(flat.dtype), flat.size)
    return Collective(channel, ring.broadcast(channel, flat, root))


def begin_reduce(
    group: Group, flat: Array, out: Array, root: int, *, accumulate: bool = False, wire: np.dtype | None = None,
    unit: str = "", phase: str = ""
) -> Collective:
    """On group rank `root` out (numel,) = sum over ranks of flat (numel,), bit for bit that of `reduce_scatter`; on
    other ranks `out` is empty. accumulate, wire: as of `reduce_scatter`. The contents of `flat` are lost.

    Each rank sends (N-1)/N * numel elements of what is sent, and all but the root 1/N more of out's dtype.
    """
    _check(flat, "flat")
    _check(out, "out")
    _check_root(root, group)
    numel = flat.size if group.rank == root else 0
    if out.size != numel or wire is None and out.dtype != flat.dtype:
        raise ValueError(f"out has {out.size} elements of {out.dtype}, on this rank the sum has {numel} of "
                         f"{flat.dtype}")
    wire = wire or flat.dtype
    channel = Channel(group, "reduce", unit, phase, _name(wire), flat.size)
    return Collective(channel, mixed.reduce(channel, flat, out, root, accumulate, wire))


def all_gather_values(group: Group, values: Array, *, op: str = "agree", unit: str = "", phase: str = "") -> Array:
    """A few float64 values (k,) of each rank -> (size, k), the same on every rank.

    For agreements: overflow flags, norms, checksums.
    """
    values = np.asarray(values, np.float64).ravel()
    table = np.empty((group.size, values.size))  # tiny: a few values a rank
    table[group.rank] = values
    all_gather(group, table.reshape(-1), op=op, unit=unit, phase=phase)
    return table


def barrier(group: Group) -> None:
    """Wait until every rank of the group is here, sleeping rather than spinning.

    Leaves no record: it carries no bytes.
    """
    channel = Channel(group, "barrier")
    for requests in ring.barrier(channel):
        if not wait(requests.done, tests=group.tests, lack=requests.lack):
            raise gave_up(requests.lack())


_name = cache(lambda dtype: dtype.name)  # NumPy makes the name anew each time, in a microsecond


def _split(array: Array, parts: int) -> list[Array]:
    """In so many equal parts; 0 of an empty array."""
    return np.split(array, parts) if parts > 1 else [array] * parts


def _check_root(root: int, group: Group) -> None:
    if not 0 <= root < group.size:
        raise ValueError(f"root {root} is not a rank of {group}")


def _check(array: Array, name: str) -> None:
    if array.ndim != 1 or not array.flags.c_contiguous:
        raise ValueError(f"{name} must be a flat contiguous array, "
                         f"not of shape {array.shape} and strides {array.strides}")
