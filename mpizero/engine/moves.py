"""What moves between tiers: of a unit, as actions say it, and any array, into a room there or from one."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from mpizero.comm import adder
from mpizero.engine.pending import Pending
from mpizero.engine.rooms import Array, Kept
from mpizero.engine.unit import Unit
from mpizero.layout import DEVICE, HOST
from mpizero.layout.links import Way, chunk_numel
from mpizero.memory.kinds import GRAD, WORKSPACE
from mpizero.memory.ledger import Ledger
from mpizero.memory.links import Link, Transfer
from mpizero.memory.regions import Region

DOWN, UP = (DEVICE, HOST), (HOST, DEVICE)
Links = Mapping[Way, Link]


def moved_bytes(links: Links) -> dict[str, int]:
    """What the records of the links come to, by name, both directions together."""
    totals = dict.fromkeys((link.name for link in links.values()), 0)
    for link in links.values():
        totals[link.name] += sum(record.nbytes for record in link.records)
    return totals


def bring_down(source: Array, away: Kept, links: Links, what: str, label: str,
               put: Callable[[Array, Array], object] = np.copyto, *, reads: bool = False) -> Transfer:
    """Off the device; into a file a block at a time, each written while the next one comes. put: as `Link.move` has it.
    reads: whether it asks what is there."""
    if isinstance(away, Region):
        chunks = ((block, source[span])
                  for span, block in away.blocks(slice(0, source.size), reads=reads, writes=True))
        return Transfer(links[DOWN], chunks, source.nbytes, what, label, put)
    return links[DOWN].move(source, away, what, label, put)


def bring_up(away: Kept, target: Array, links: Links, what: str, label: str, *, lane: str | None = None) -> Transfer:
    """To the device; from a file a block at a time, as soon as it is read."""
    if isinstance(away, Region):
        chunks = ((target[span], block) for span, block in away.blocks(slice(0, away.size), lane=lane))
        return Transfer(links[UP], chunks, away.nbytes, what, label)
    return links[UP].move(away, target, what, label)


def download_grad(unit: Unit, links: Links) -> Pending:
    """This rank's part of the reduced gradient is copied, or added, to what is there of earlier microbatches."""
    reduced = unit.reduced
    assert reduced is not None, f"unit {unit.layout.name} has no reduced gradient"
    part = unit.part_of(reduced, unit.range_of(unit.placement.optim))
    first = unit.offloaded is None
    put = np.copyto if first else _adding(part, unit.updating)
    unit.offloaded = away = unit.room_for_grad(part) if unit.offloaded is None else unit.offloaded

    def done() -> None:
        unit.ledger.discard(reduced)
        unit.reduced = None

    return Pending(bring_down(part, away, links, "grad", unit.layout.name, put, reads=not first), done)


def _adding(part: Array, ledger: Ledger) -> Callable[[Array, Array], object]:
    """What lands beside a chunk of the sum and is added to it, rounded once, as a ring adds."""
    landing = ledger.empty(chunk_numel(part.size, part.itemsize), part.dtype, WORKSPACE)
    add = adder(part.dtype, landing.size, ledger)

    def put(total: Array, values: Array) -> None:
        landed = landing[: values.size]
        np.copyto(landed, values)
        add(total, landed, total)

    return put


def upload_grad(unit: Unit, links: Links) -> Pending:
    """Back to the device, where more is to be summed."""
    away = unit.offloaded
    assert away is not None and unit.reduced is None, f"unit {unit.layout.name} has no gradient off the device"
    unit.reduced = unit.ledger.empty(away.size, away.dtype, GRAD)

    def done() -> None:
        unit.discard(away)
        unit.offloaded = None

    return Pending(bring_up(away, unit.reduced, links, "grad", unit.layout.name, lane="upload"), done)


def upload_param(unit: Unit, links: Links) -> Pending:
    """What the update gave, into the parameters that are kept."""
    new = unit.new
    assert new is not None, f"unit {unit.layout.name} has no new parameters"

    def done() -> None:
        unit.discard(new)
        unit.new = None

    return Pending(bring_up(new, unit.updated_param, links, "param", unit.layout.name), done)


def fetch_param(unit: Unit, links: Links) -> Pending:
    """What this rank keeps, to its place in whole parameters, which are not gathered yet."""
    whole = unit.open_param()
    return Pending(bring_up(unit.param, whole[unit.shard], links, "param", unit.layout.name))
