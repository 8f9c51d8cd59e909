"""Which row of a fit to take, and why: a choice and a sentence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from mpizero.planner.fit import Question, Row, anything_fits
from mpizero.text import in_units

CLOSE = 1.01  # rows within one percent of the fastest count as equally fast
MOST_RANKS = 2**14


@dataclass(frozen=True)
class Recommendation:
    """The row to take, None if nothing fits; and the reason."""

    row: Row | None
    reason: str


def recommend(question: Question, table: Sequence[Row]) -> Recommendation:
    """Of the rows that fit the fastest; among equally fast ones that which sends least, then that which needs least."""
    fitting = [row for row in table if row.fits]
    if not fitting:
        return Recommendation(None, _nothing_fits(question, table))
    fastest = min(row.seconds for row in fitting)
    best = min((row for row in fitting if row.seconds <= CLOSE * fastest),
               key=lambda row: (row.sent_bytes, row.device_bytes))
    return Recommendation(best, _why(question, table, best, fitting))


def _why(question: Question, table: Sequence[Row], best: Row, fitting: Sequence[Row]) -> str:
    free = question.device_memory - best.device_bytes
    text = (f"{name(best)}, the fastest of {len(fitting)} that fit: {best.seconds:.3g} s a step, "
            f"bound by {best.bound_by}, with {in_units(free)} of the device left")
    equal = [row for row in fitting if row is not best and row.seconds <= CLOSE * best.seconds]
    if equal:
        text += f"; no faster, and more to send or to keep: {_listed(equal)}"
    quicker = [row for row in table if row.fits is False and row.seconds < best.seconds / CLOSE]
    if quicker:
        text += f"; faster, but without room: {_listed(quicker)}"
    return text


def _nothing_fits(question: Question, table: Sequence[Row]) -> str:
    unknown = [row for row in table if row.fits is None]
    if unknown:
        least = min(unknown, key=lambda row: row.seconds)
        where = " and ".join(f"{in_units(least.peak[tier])} of {tier} memory" for tier in ("host", "nvme")
                             if least.peak[tier])
        return (f"nothing fits on the devices alone; {name(least)} does if each rank has {where}: tell --host-memory"
                f"{' and --nvme' if least.peak['nvme'] else ''}")
    least = min(table,
                key=lambda row: max(row.needs[tier] / limit for tier, limit in question.capacity.items() if limit))
    missing = ", ".join(f"{in_units(least.needs[tier])} of {tier} memory, of which a rank has "
                        f"{in_units(question.capacity[tier] or 0)}" for tier in least.lacks)
    return f"nothing fits; {name(least)} comes nearest and needs {missing}: {_cure(question)}"


def _cure(question: Question) -> str:
    """How many ranks would do, found by doubling."""
    if question.shard_size is None:
        ranks = question.ranks
        while (ranks := 2 * ranks) <= MOST_RANKS:
            if anything_fits(replace(question, ranks=ranks)):
                return f"use {ranks:,} ranks"
    return "use smaller units, devices with more memory, a smaller batch, or offload"


def name(row: Row) -> str:
    return f"stage {row.stage}" + ("" if row.offload == "none" else f" with offload {row.offload}")


def _listed(table: Sequence[Row]) -> str:
    return ", ".join(name(row) for row in table)
