"""The rules of the Trace Event Format and of its viewers."""

from __future__ import annotations

import itertools
from collections import defaultdict


def check(events: list[dict], ranks: int) -> dict[str, list[dict]]:
    """Assert what holds for any trace; returns the events by phase."""
    by_phase = defaultdict(list)
    for event in events:
        by_phase[event["ph"]].append(event)
    assert set(by_phase) <= set("MXCsf") and {event["pid"] for event in events} == set(range(ranks))
    timed = [event for event in events if event["ph"] != "M"]
    assert [event["ts"] for event in timed] == sorted(event["ts"] for event in timed)
    assert events[:len(by_phase["M"])] == by_phase["M"]
    check_slices(by_phase["X"])
    check_arrows(by_phase, events)
    names = {(event["pid"], event["tid"]): event["args"]["name"]
             for event in by_phase["M"] if event["name"] == "thread_name"}
    assert {(event["pid"], event["tid"]) for event in by_phase["X"]} <= set(names)
    assert {names[rank, thread] for rank in range(ranks) for thread in (1, 100)} == {"compute", "communication"}
    processes = [event["args"]["name"] for event in by_phase["M"] if event["name"] == "process_name"]
    assert [name.split(" on ")[0] for name in processes] == [f"rank {rank}" for rank in range(ranks)]
    assert {event["pid"] for event in by_phase["C"]} == set(range(ranks))
    assert all(type(value) is int and value >= 0 for event in by_phase["C"] for value in event["args"].values())
    return by_phase


def check_slices(slices: list[dict]) -> None:
    """On one track they follow each other; the viewers would cut or drop those that cross."""
    tracks = defaultdict(list)
    for event in slices:
        assert event["dur"] >= 0 and event["ts"] >= 0
        tracks[event["pid"], event["tid"]].append(nanoseconds(event))
    for spans in tracks.values():
        assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(spans))


def check_arrows(by_phase: dict[str, list[dict]], events: list[dict]) -> None:
    """Each has one start and one later finish, each within an open slice of its own track."""
    place = {id(event): index for index, event in enumerate(events)}
    starts, finishes = ({event["id"]: event for event in by_phase[phase]} for phase in "sf")
    assert len(starts) == len(by_phase["s"]) == len(by_phase["f"]) and set(starts) == set(finishes)
    for number, start in starts.items():
        finish = finishes[number]
        assert start["ts"] <= finish["ts"] and start["pid"] != finish["pid"] and finish["bp"] == "e"
        assert (start["name"], start["cat"]) == (finish["name"], finish["cat"])
        for end in (start, finish):
            (slice,) = [slice for slice in by_phase["X"] if within(end, slice)]
            assert place[id(slice)] < place[id(end)]  # the slice stands first, also where both begin together


def within(event: dict, slice: dict) -> bool:
    begin, end = nanoseconds(slice)
    return (event["pid"], event["tid"]) == (slice["pid"], slice["tid"]) and begin <= int(1000 * event["ts"]) < end


def nanoseconds(slice: dict) -> tuple[int, int]:
    """Begin and end as Perfetto reads them: whole nanoseconds, the rest cut off."""
    begin = int(1000 * slice["ts"])
    return begin, begin + int(1000 * slice["dur"])
