"""Which row of a fit to take, and why: a choice and sentences. Flags are fields in backticks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from mpizero.planner.cures import nothing_fits
from mpizero.planner.fit import CLOSE, Row, best_size, offloads, preferred
from mpizero.planner.question import Question
from mpizero.quantities import in_units

WAITING = 0.1  # that share of a step, spent waiting, is worth a word
MOST_SAMPLES = 64  # times as many are tried


@dataclass(frozen=True)
class Recommendation:
    """The row to take, None if nothing fits; and the reason."""

    row: Row | None
    reason: str


def recommend(question: Question, table: Sequence[Row]) -> Recommendation:
    """Of the rows that fit, or do unless unknown activations are too large, the preferred one: see `fit.preferred`."""
    fitting = [row for row in table if row.might_fit]
    if not fitting:
        return Recommendation(None, nothing_fits(question, table))
    best = preferred(fitting, question.ranks)
    sentences = [_what(question, best), _why_divided(best), _why_faster(question, best, fitting),
                 _one_group(question, best),
                 _others(best, table, fitting), _less_waiting(question, best)]
    return Recommendation(best, ". ".join(sentence for sentence in sentences if sentence))


def name(question: Question, row: Row) -> str:
    """`stage 3 with offload cpu, shard_size 8`: as little as tells it."""
    offload = "" if row.offload == "none" else f" with offload {row.offload}"
    tensor = f", `tensor_size` {row.tensor_size}" if row.tensor_size > 1 else ""
    shards = f", `shard_size` {row.shard_size}" if _hybrid(question, row) else ""
    return f"stage {row.stage}{offload}{tensor}{shards}"


def _hybrid(question: Question, row: Row) -> bool:
    return row.shard_size not in (1, _group(question, row))


def _group(question: Question, row: Row) -> int:
    """The largest shard group that can be."""
    return question.ranks // row.tensor_size


def _what(question: Question, best: Row) -> str:
    left = in_units(question.room - best.device_bytes)
    waits = f", {seconds(best.exposed_seconds)} s waiting" if best.exposed else ""
    text = (f"{name(question, best)}: {seconds(best.seconds)} s a step, of which {seconds(best.compute_seconds)} s of "
            f"the device's own work{waits}; bound by {best.bound_by}")
    if best.activations is None:
        return (f"{text}. It fits if activations take at most {left}: of this model only the size is known, so give "
                "its shapes (`gpt`), or their bytes (`activations`)")
    return f"{text}; {left} of the device left{' beside the margin' if question.margin else ''}"


def _why_divided(best: Row) -> str:
    """What other tensor sizes come to, for as many samples."""
    others = {size: each for size, each in best.by_tensor_size.items() if size != best.tensor_size}
    if best.tensor_size == 1:
        fitting = [(each.paced, size) for size, each in others.items() if each.fits]
        if not fitting:
            return ""
        paced, size = min(fitting)
        return f"With `tensor_size` {size}, the next best, as many samples would take {seconds(paced)} s"
    if 1 not in others:
        return ""
    alone, words = others[1], f"As many samples as with `tensor_size` 1 take {seconds(best.paced)} s"
    if not alone.fits:
        return f"{words}, and with that a rank would need {in_units(alone.device_bytes)}"
    return f"{words}, against {seconds(alone.paced)} s"


def _why_faster(question: Question, best: Row, fitting: Sequence[Row]) -> str:
    """What the fastest other stage waits for, if it is slower."""
    if len(fitting) == 1:
        return "Nothing else fits"
    rivals = [row for row in fitting if row.stage != best.stage and row.offload == best.offload
              and row.paced > CLOSE * best.paced]
    if not rivals:
        return ""
    like = [row for row in rivals if row.tensor_size == best.tensor_size]
    if not like:  # phases of steps that take other numbers of samples say nothing of one another
        rival = min(rivals, key=lambda row: row.paced)
        lasts = seconds(rival.paced / best.tensor_size)
        return f"S{name(question, rival)[1:]} is slower: {lasts} s for as many samples"
    rivals = like
    rival = min(rivals, key=lambda row: (float(f"{row.paced:.3g}"), row.device_bytes))
    longer = {phase: _waits(rival, phase) - _waits(best, phase) for phase in (*rival.exposed, "update")}
    phase = max(longer, key=longer.__getitem__)
    works = rival.compute_seconds - best.compute_seconds
    slower = f"S{name(question, rival)[1:]} is slower ({seconds(rival.seconds)} s)"
    if works > longer[phase]:
        return f"{slower}, since every rank updates more parameters there"
    on = max(rival.exposed[phase], key=rival.exposed[phase].__getitem__)
    if phase == "update" and on.endswith("-host"):
        less = " although it sends less" if rival.sent_bytes < best.sent_bytes else ""
        beside = ", while stage 3 gathers them beside forward and backward" if best.stage == "3" else ""
        return (f"{slower}{less}, since it gathers parameters after the update, where nothing hides that "
                f"({seconds(_waits(rival, phase))} s){beside}")
    sent = f": it sends {in_units(rival.sent_bytes)} against {in_units(best.sent_bytes)}"
    return (f"{slower}, since its {phase} waits {seconds(longer[phase])} s longer for {on}"
            + (sent if rival.sent_bytes > best.sent_bytes else ""))


def _waits(row: Row, phase: str) -> float:
    return sum(row.exposed.get(phase, {}).values())


def _one_group(question: Question, best: Row) -> str:
    """Why there are several shard groups."""
    group = _group(question, best)
    if not _hybrid(question, best) or group not in best.seconds_by_size:
        return ""
    alike = "all" if group == question.ranks else "as many as can be,"
    lasts = seconds(best.seconds_by_size[group])
    return f"In one shard group of {alike} {group:,} ranks a step would take {lasts} s: its rings cross hosts"


def _others(best: Row, table: Sequence[Row], fitting: Sequence[Row]) -> str:
    """Rows that are as fast, and rows that have no room."""
    equal = {row.stage: row for row in fitting if row is not best and row.offload == best.offload
             and row.paced <= CLOSE * best.paced}
    quicker = [row for row in table if row.lacks and row.paced < best.paced / CLOSE]
    parts = [f"No faster, and more to send or to keep: stage {' and '.join(equal)}"] if equal else []
    if quicker:
        listed = ", ".join(dict.fromkeys(f"stage {row.stage}" + (f" with offload {row.offload}"
                                                                 if row.offload != "none" else "") for row in quicker))
        parts.append(f"Faster, but without room: {listed}")
    return ". ".join(parts)


def _less_waiting(question: Question, best: Row) -> str:
    """What more samples would do, where a step waits for links and has room."""
    if not _waits_long(best):
        return ""
    text = f"A step waits for {best.exposed_seconds / best.seconds:.0%} of its time"
    if question.table is None:
        return f"{text}: more tokens in a microbatch would hide more of it"
    found = None
    batch = question.batch_size
    while (batch := 2 * batch) <= MOST_SAMPLES * question.batch_size and (row := _fitting(question, best, batch)):
        found = batch, row
        if not _waits_long(row):
            break
    if found is None:
        again = not question.recompute and _fitting(replace(question, recompute=True), best, 2 * question.batch_size)
        return f"{text}, and a larger batch does not fit" + (", but does with `recompute`" if again else "")
    batch, row = found
    times = batch // question.batch_size
    return (f"{text}: `batch_size` {batch} fits too, and takes {seconds(row.seconds)} s for {times} times as many "
            f"samples, {row.exposed_seconds / row.seconds:.0%} of it waiting")


def _waits_long(row: Row) -> bool:
    return row.exposed_seconds >= WAITING * row.seconds


def _fitting(question: Question, best: Row, batch: int) -> Row | None:
    """The row of the same stage and offload with another batch, if it fits."""
    offload = next(each for each in offloads(best.stage, question.offload) if each.name == best.offload)
    row = best_size(question.batch(batch).divided(best.tensor_size), best.stage, offload)
    return row if row.might_fit else None


def seconds(value: float) -> str:
    """Three digits, without exponents for what people wait for."""
    return f"{value:,.0f}" if value >= 999.5 else f"{value:.3g}"
