"""What to say when nothing fits: how much is missing, and which numbers would do. Flags are fields in backticks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from mpizero.planner.fit import Row, anything_fits
from mpizero.planner.question import Question
from mpizero.quantities import in_units

MOST_RANKS, MOST_UNITS = 2**14, 2**8
TIER_WORDS = {"device": "device", "host": "host", "nvme": "NVMe"}


def nothing_fits(question: Question, table: Sequence[Row]) -> str:
    """How far away the nearest row is, and what would fit."""
    found = list(_cures(question, table))
    untold = [row for row in table if not row.lacks]
    if untold:
        return (_tell(question, min(untold, key=lambda row: row.seconds))
                + (f". Without offload, any one of these would do: {'; '.join(found)}" if found else ""))
    least = min(table, key=lambda row: max(row.needs[tier] / limit
                                           for tier, limit in question.capacity.items() if limit))
    missing = ", ".join(
        f"{in_units(least.needs[tier] - (question.capacity[tier] or 0))} of {TIER_WORDS[tier]} memory "
        f"(a rank needs {in_units(least.needs[tier])} and has {in_units(question.capacity[tier] or 0)})"
        for tier in least.lacks)
    offload = "" if least.offload == "none" else f" with offload {least.offload}"
    return (f"nothing fits. Stage {least.stage}{offload} comes nearest and lacks {missing}. "
            + (f"Any one of these would do: {'; '.join(found)}" if found else
               "No single change would do: combine more `ranks`, a smaller batch, offload"))


def _tell(question: Question, row: Row) -> str:
    """A row that fits if hosts have enough of what was not told."""
    flags = {"host": "host_memory", "nvme": "nvme"}
    needed = [tier for tier in flags if row.needs[tier] and tier in row.unknown]
    where = " and ".join(f"{in_units(enough(row.needs[tier] * question.sharing))} of {TIER_WORDS[tier]} memory"
                         for tier in needed)
    return (f"nothing fits on the devices alone. Stage {row.stage} with offload {row.offload} does if each host has "
            f"{where}: say so by {' and '.join(f'`{flags[tier]}`' for tier in needed)}")


def _cures(question: Question, table: Sequence[Row]) -> Iterator[str]:
    """Each alone would do: it was tried."""
    if question.shard_size is not None and anything_fits(replace(question, shard_size=None)):
        yield f"`shard_size` {question.ranks}"
    yield from _fewer_activations(question, table)
    if question.model.cut is not None and any(
            row.lacks == ("device",) and row.at_rest["device"] + (row.activations or 0) < question.room
            for row in table):
        yield from _cut(question, len(question.model.spec.params))
    yield from _more_ranks(question)
    for tier, field, sharing, words in (("device", "device_memory", 1, "devices of"),
                                        ("host", "host_memory", question.sharing, "hosts of")):
        sizes = [row.needs[tier] for row in table if row.lacks == (tier,) and set(row.unknown) <= {"activations"}]
        if sizes:
            least = min(sizes) * sharing if tier != "device" else math.ceil(min(sizes) / (1 - question.margin)) + 1
            yield f"{words} {in_units(enough(least))} (`{field}`)"


def _fewer_activations(question: Question, table: Sequence[Row]) -> Iterator[str]:
    """Where shapes are known, what was tried; where bytes were told, how many would do, and how to come there."""
    if question.activations is not None:
        missing = [row.device_bytes - question.room for row in table
                   if row.lacks == ("device",) and set(row.unknown) <= {"activations"}]
        if missing and min(missing) < question.activations:
            most = _suffices(question.activations - min(missing))
            yield f"`activations` of at most {in_units(most)}, by recomputing blocks or a smaller batch"
    elif question.table is not None:
        alone = {"`recompute`": replace(question, recompute=True), "`fused_loss`": replace(question, fused_loss=True)}
        found = [words for words, other in alone.items() if other != question and anything_fits(other)]
        both = replace(question, recompute=True, fused_loss=True)
        if not found and both not in alone.values() and anything_fits(both):
            found = [" with ".join(alone)]
        yield from found
        yield from _halved(question)


def _halved(question: Question) -> Iterator[str]:
    """A smaller batch."""
    batch = question.batch_size
    while (batch := batch // 2) >= 1:
        if anything_fits(question.batch(batch)):
            yield f"`batch_size` {batch} (and more `accumulation`)"
            return


def _cut(question: Question, units: int) -> Iterator[str]:
    """Smaller units."""
    assert question.model.cut is not None
    while (units := 2 * units) <= MOST_UNITS:
        if anything_fits(replace(question, model=question.model.cut(units))):
            yield f"`units` {units} (smaller ones)"
            return


def _more_ranks(question: Question) -> Iterator[str]:
    """The least power of two times the ranks. More ranks never need more, so halving the doublings finds it."""
    most = (MOST_RANKS // question.ranks).bit_length() - 1

    def do(doublings: int) -> bool:
        return anything_fits(replace(question, ranks=question.ranks << doublings))

    if most < 1 or not do(most):
        return
    low, high = 0, most  # low does not do, high does
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if do(middle) else (middle, high)
    yield f"`ranks` {question.ranks << high}"


def _suffices(nbytes: int) -> int:
    """Rounded down to three digits."""
    step = 10 ** max(0, len(str(nbytes)) - 3)
    return nbytes // step * step


def enough(nbytes: int) -> int:
    """Rounded up to three digits, so that what is printed suffices."""
    step = 10 ** max(0, len(str(nbytes)) - 3)
    return -(-nbytes // step) * step
