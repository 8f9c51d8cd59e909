"""What moves of a unit between tiers, as actions say it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from mpizero.comm import adder
from mpizero.engine.unit import Array, Pending, Unit
from mpizero.layout import DEVICE, HOST
from mpizero.layout.links import chunk_numel
from mpizero.memory.kinds import GRAD, WORKSPACE
from mpizero.memory.ledger import Ledger
from mpizero.memory.links import Link, Way

DOWN, UP = (DEVICE, HOST), (HOST, DEVICE)
Links = Mapping[Way, Link]


def moved_bytes(links: Links) -> dict[str, int]:
    """What the records of the links come to, by name, both directions together."""
    totals = dict.fromkeys((link.name for link in links.values()), 0)
    for link in links.values():
        totals[link.name] += sum(record.nbytes for record in link.records)
    return totals


def download_grad(unit: Unit, links: Links) -> Pending:
    """This rank's part of the reduced gradient is copied, or added, to what is there of earlier microbatches."""
    reduced = unit.reduced
    assert reduced is not None, f"unit {unit.layout.name} has no reduced gradient"
    part = unit.part_of(reduced, unit.range_of(unit.placement.optim))
    put: Callable[[Array, Array], object]
    if unit.offloaded is None:
        put, away = np.copyto, unit.home.empty(part.size, part.dtype, GRAD)
    else:
        put, away = _adding(part, unit.home), unit.offloaded
    unit.offloaded = away

    def done() -> None:
        unit.ledger.discard(reduced)
        unit.reduced = None

    return Pending(links[DOWN].move(part, away, "grad", unit.layout.name, put), done)


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
        unit.home.discard(away)
        unit.offloaded = None

    return Pending(links[UP].move(away, unit.reduced, "grad", unit.layout.name), done)


def upload_param(unit: Unit, links: Links) -> Pending:
    """What the update gave, into the parameters that are kept."""
    new = unit.new
    assert new is not None, f"unit {unit.layout.name} has no new parameters"

    def done() -> None:
        unit.home.discard(new)
        unit.new = None

    return Pending(links[UP].move(new, unit.updated_param, "param", unit.layout.name), done)


def fetch_param(unit: Unit, links: Links) -> Pending:
    """What this rank keeps, to its place in whole parameters, which are not gathered yet."""
    whole = unit.open_param()
    return Pending(links[UP].move(unit.param, whole[unit.shard], "param", unit.layout.name), lambda: None)
