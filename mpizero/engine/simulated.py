"""The traced step as the simulator plays it: the same list, with the seconds that its own actions took.

Where the two differ, something the list does not know has cost time: a rank that came late, collectives that nobody
drove, cores that were shared.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from statistics import fmean
from typing import Any

from mpizero.engine.sharing import SHARED
from mpizero.layout import DEVICE, Axis, Geometry
from mpizero.planner.costs import OF_SEGMENTS, OF_UNITS, Costs
from mpizero.planner.timeline import Timeline, simulate
from mpizero.schedule import Action, effect_of
from mpizero.schedule.actions import bucket_name
from mpizero.schedule.effect import Work

Row = dict[str, Any]


def simulated(actions: Sequence[Action], ranks: Sequence[Row], geometry: Geometry,
              before: Sequence[Action] = ()) -> Row:
    """What trace.json says of it. ranks: their parts of the trace, times on one clock. before: what comes before."""
    timeline = simulate(actions, geometry, measured_costs(actions, ranks, geometry), ahead=False, after=before)
    labels = {"segment": [segment.name for segment in geometry.wrapping.segments],
              "unit": [unit.name for unit in geometry.wrapping.units]}
    return {"seconds": timeline.finish, "compute_s": timeline.compute, "communication_s": timeline.communication,
            "events": list(_events(timeline, labels))}


def _events(timeline: Timeline, labels: dict[str, list[str]]) -> Iterator[Row]:
    for event in timeline.events:
        of = "segment" if event.work.kind in OF_SEGMENTS else "unit"
        yield {"work": event.work.kind, "label": _label(event.work, labels[of]), "stream": event.stream,
               "begin_s": event.start, "end_s": event.end}


def _label(work: Work, names: list[str]) -> str:
    return bucket_name(work.pieces) if work.pieces else names[work.index]


def measured_costs(actions: Sequence[Action], ranks: Sequence[Row], geometry: Geometry) -> Costs:
    """Of computation the mean of the ranks; of a collective what it took once the last of its ranks had come."""
    spent: dict[tuple[str, str], list[float]] = defaultdict(list)
    works: list[Work] = []
    for number, action in enumerate(actions):
        effect = effect_of(action, geometry)
        works += [effect.work] if effect.work is not None else []
        if effect.computes and effect.begins is None and effect.work is not None:
            label = ranks[0]["actions"][number]["label"]
            spent[effect.work.kind, label] += [_seconds(rank["actions"][number]) for rank in ranks]
    for kind, label, seconds in (*_transfers(ranks, geometry), *_shared(ranks), *_moved(ranks), *_updated(ranks)):
        spent[kind, label].append(seconds)

    def of(kind: str, names: Iterable[str]) -> list[float]:
        return [fmean(spent.get((kind, name), [0.0])) for name in names]

    segments = [segment.name for segment in geometry.wrapping.segments]
    units = [unit.name for unit in geometry.wrapping.units]
    known = {bucket_name(work.pieces) for work in works if work.pieces}
    buckets = {name: fmean(seconds) for (_, name), seconds in spent.items() if name in known}
    by_kind: dict[str, Any] = {kind: of(kind, segments) for kind in OF_SEGMENTS}
    by_kind |= {kind: of(kind, units) for kind in OF_UNITS}
    return Costs(**by_kind, buckets=buckets)


def _transfers(ranks: Sequence[Row], geometry: Geometry) -> Iterator[tuple[str, str, float]]:
    """Kind of work, unit and seconds of every collective of every group."""
    for axis in (Axis.REPLICATE, Axis.SHARD):
        for op, unit, seconds in _along(axis, ranks):
            across = axis is Axis.REPLICATE and geometry.shards > 1
            yield "all_reduce_shard" if across and op == "all_reduce" else op, unit, seconds


def _shared(ranks: Sequence[Row]) -> Iterator[tuple[str, str, float]]:
    """Kind of work, segment or unit, and seconds of what tensor parallel ranks did together."""
    for op, name, seconds in _along(Axis.TENSOR, ranks):
        name, _, what = name.partition(SHARED)
        yield what or ("all_reduce_copied" if op == "all_reduce" else op), name, seconds


def _along(axis: Axis, ranks: Sequence[Row]) -> Iterator[tuple[str, str, float]]:
    """Operation, name and seconds of every collective of every group."""
    for members in {tuple(rank["groups"].get(axis.value, ())) for rank in ranks}:
        columns = [[each for each in ranks[member]["collectives"] if each["group"] == axis.value]
                   for member in members]
        for found in zip(*columns, strict=True):
            last = max(each["begin_s"] for each in found)
            yield found[0]["op"], found[0]["unit"], max(max(each["end_s"] for each in found) - last, 0.0)


def _moved(ranks: Sequence[Row]) -> Iterator[tuple[str, str, float]]:
    """The same of every move between device and host."""
    for rank in ranks:
        for each in rank["moves"]:
            if DEVICE in (each["source"], each["target"]):
                yield "download" if each["source"] == DEVICE else "upload", each["unit"], _seconds(each)


def _updated(ranks: Sequence[Row]) -> Iterator[tuple[str, str, float]]:
    """The same of every update that went on beside the step."""
    for rank in ranks:
        for each in rank["updates"]:
            yield "optim_step", each["unit"], _seconds(each)


def _seconds(row: Row) -> float:
    return row["end_s"] - row["begin_s"]
