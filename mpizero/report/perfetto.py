"""A step in the Trace Event Format of Chrome, which ui.perfetto.dev and chrome://tracing open.

One process a rank, with a compute track, a communication track, one for each way between tiers, memory as counters by
kind, and an arrow from each send to its arrival.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

from mpizero.errors import ConfigError
from mpizero.report.memory import model_states
from mpizero.report.spans import lanes

# thread ids; 101 and on where several collectives are under way at once; 200 and on a link each way
COMPUTE, COMMUNICATION, LINKS = 1, 100, 200
# Microseconds. The viewers count whole nanoseconds and cut off the rest: a slice ends one early, so that none runs into
# the next, and an arrow ends while its slice is surely open.
EARLY, INSIDE = 0.001, 0.003
Event = dict[str, Any]
Message = dict[str, Any]  # an item of a collective's sends or arrivals
Mailboxes = dict[tuple, list[tuple[Event, Message]]]  # (rank, peer, name of the collective) -> (its slice, message)


def perfetto(trace: dict[str, Any]) -> dict[str, Any]:
    """trace.json as events, sorted by time, in microseconds. `ConfigError` if sends and arrivals do not match."""
    slices = {rank["rank"]: _collective_slices(rank) for rank in trace["ranks"]}
    messages = list(_messages(trace["ranks"], slices))
    arrows = [arrow for message in messages if (arrow := _arrow(*message))]
    timed = [event for rank in trace["ranks"]
             for event in (*_compute_slices(rank), *slices[rank["rank"]], *_moves(rank), *_counters(rank))]
    for number, (start, finish) in enumerate(arrows, 1):
        timed += [start | {"id": number}, finish | {"id": number}]
    order = "XCsf"  # at one time: slices first, so that arrows find them open
    timed.sort(key=lambda event: (event["ts"], order.index(event["ph"])))
    names = [event for rank in trace["ranks"] for event in _names(rank, slices[rank["rank"]])]
    about = {key: trace[key] for key in ("step", "stage", "model", "dtype", "world_size", "capacity")}
    about |= {"messages": len(messages), "messages_without_arrow": len(messages) - len(arrows)}
    return {"traceEvents": names + timed, "displayTimeUnit": "ms", "otherData": about}


def _names(rank: dict[str, Any], collectives: Iterable[Event]) -> Iterator[Event]:
    def meta(name: str, thread: int, /, **args: Any) -> Event:
        return {"ph": "M", "name": name, "pid": rank["rank"], "tid": thread, "args": args}

    yield meta("process_name", 0, name=f"rank {rank['rank']} on {rank['host']}")
    yield meta("process_sort_index", 0, sort_index=rank["rank"])
    tracks = {COMPUTE: "compute", COMMUNICATION: "communication"}
    tracks |= {event["tid"]: f"communication {event['tid'] - COMMUNICATION + 1}"
               for event in collectives if event["tid"] > COMMUNICATION}
    tracks |= {LINKS + number: f"{source} to {target}" for number, (source, target) in enumerate(_ways(rank))}
    for thread, name in sorted(tracks.items()):
        yield meta("thread_name", thread, name=name)
        yield meta("thread_sort_index", thread, sort_index=thread)


def _slice(rank: int, thread: int, name: str, category: str, span: dict[str, Any], **args: Any) -> Event:
    begin, end = _microseconds(span["begin_s"]), _microseconds(span["end_s"])
    duration = max(round(end - begin - EARLY, 3), 0.0)
    return {"ph": "X", "name": name, "cat": category, "pid": rank, "tid": thread, "ts": begin, "dur": duration,
            "args": args}


def _microseconds(seconds: float) -> float:
    """To a nanosecond; the viewers read no more."""
    return round(1e6 * seconds, 3)


def _compute_slices(rank: dict[str, Any]) -> Iterator[Event]:
    """All actions but collectives and marks."""
    for row in rank["actions"]:
        if row["computes"]:
            yield _slice(rank["rank"], COMPUTE, row["action"], row["kind"], row, label=row["label"], phase=row["phase"],
                         peak_bytes=row["peak_bytes"], planned_model_state_peak_bytes=row["planned_peak_bytes"])


def _collective_slices(rank: dict[str, Any]) -> list[Event]:
    """One for each collective, in their order; those at one time on tracks of their own."""
    found = rank["collectives"]
    threads = lanes((each["begin_s"], each["end_s"]) for each in found)
    return [_slice(rank["rank"], COMMUNICATION + thread, f"{each['op']} {each['unit']}".strip(), each["op"], each,
                   phase=each["phase"], group=each["group"], bytes_sent=each["bytes_sent"],
                   bytes_received=each["bytes_received"], messages=each["messages"])
            for each, thread in zip(found, threads, strict=True)]


def _ways(rank: dict[str, Any]) -> list[tuple[str, str]]:
    return sorted({(each["source"], each["target"]) for each in rank["moves"]})


def _moves(rank: dict[str, Any]) -> Iterator[Event]:
    """Between tiers, each way on a track of its own."""
    ways = _ways(rank)
    for each in rank["moves"]:
        yield _slice(rank["rank"], LINKS + ways.index((each["source"], each["target"])),
                     f"{each['what']} {each['unit']}", "move", each, bytes=each["bytes"])


def _counters(rank: dict[str, Any]) -> Iterator[Event]:
    """Live bytes by kind: while an action runs those at its peak, which alone show temporaries, then those after it.
    Model states beside their plan."""
    for row in rank["actions"]:
        yield {"ph": "C", "name": "memory (bytes)", "pid": rank["rank"], "ts": _microseconds(row["begin_s"]),
               "args": row["peak_live"]}
        states = {"counted": model_states(row["live"]), "planned": model_states(row["planned_live"])}
        for name, args in (("memory (bytes)", row["live"]), ("model states (bytes)", states)):
            yield {"ph": "C", "name": name, "pid": rank["rank"], "ts": _microseconds(row["end_s"]), "args": args}


def _messages(ranks: list[dict[str, Any]],
              slices: dict[int, list[Event]]) -> Iterator[tuple[Event, Message, Event, Message]]:
    """(slice of the sender, send, slice of the receiver, arrival) for each message: in collectives of one name, the
    k-th send to a peer is the peer's k-th arrival."""
    arrivals = _mailboxes(ranks, slices, "arrivals")
    for key, sent in _mailboxes(ranks, slices, "sends").items():
        came = arrivals.pop((key[1], key[0], key[2]), [])
        if len(sent) != len(came):
            _lost(key, len(sent), len(came))
        for (from_slice, send), (to_slice, arrival) in zip(sent, came, strict=True):
            yield from_slice, send, to_slice, arrival
    for key, came in arrivals.items():
        _lost((key[1], key[0], key[2]), 0, len(came))


def _mailboxes(ranks: list[dict[str, Any]], slices: dict[int, list[Event]], side: str) -> Mailboxes:
    """side: sends or arrivals."""
    boxes: Mailboxes = defaultdict(list)
    peer = {"sends": "to", "arrivals": "from"}[side]
    for rank in ranks:
        for each, event in zip(rank["collectives"], slices[rank["rank"]], strict=True):
            name = (each["op"], each["unit"], each["phase"], each["group"])
            for message in each[side]:
                boxes[rank["rank"], message[peer], name].append((event, message))
    return boxes


def _lost(key: tuple, sent: int, came: int) -> None:
    sender, receiver, (op, unit, phase, _) = key
    where = f"{op} of {unit or 'no unit'} ({phase})"
    raise ConfigError(f"trace.json is not whole: in {where} rank {sender} sent {sent} messages to {receiver}, but "
                      f"{came} came: run again")


def _arrow(from_slice: Event, send: Message, to_slice: Event, arrival: Message) -> tuple[Event, Event] | None:
    """Its two ends, each inside its slice. Clocks of hosts are known to some microseconds: one that seems to arrive
    before it was sent leaves as early as its slice allows, and is None where that is not early enough."""
    start = _within(from_slice, _microseconds(send["begin_s"]))
    finish = _within(to_slice, max(_microseconds(arrival["end_s"]), start))
    start = _within(from_slice, min(start, finish))
    if finish < start:
        return None
    common = {"name": "message", "cat": "message"}
    return ({"ph": "s", **common, "pid": from_slice["pid"], "tid": from_slice["tid"], "ts": start,
             "args": {"bytes": send["bytes"]}},
            {"ph": "f", "bp": "e", **common, "pid": to_slice["pid"], "tid": to_slice["tid"], "ts": finish})


def _within(event: Event, ts: float) -> float:
    return round(max(event["ts"], min(ts, event["ts"] + event["dur"] - INSIDE)), 3)
