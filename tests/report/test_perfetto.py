"""The trace, by the rules of the Trace Event Format and of its viewers."""

from __future__ import annotations

import json

import pytest

from mpizero.errors import ConfigError
from mpizero.memory.kinds import MODEL_STATE
from mpizero.report.perfetto import perfetto
from tests.report.events import check
from tests.report.sample import sample

RUNS = {"1 rank": {"ranks": 1, "units": 3}, "4 ranks": {"ranks": 4, "units": 5},
        "hybrid": {"ranks": 6, "units": 4, "shards": 3, "accumulation": 2},
        "stage 0": {"ranks": 3, "units": 3, "stage": "0"}}


@pytest.mark.parametrize("options", RUNS.values(), ids=RUNS)
def test_every_trace_keeps_the_rules(options):
    _, _, trace = sample(**options)
    data = json.loads(json.dumps(perfetto(trace)))
    by_phase = check(data["traceEvents"], options["ranks"])
    collectives = [each for rank in trace["ranks"] for each in rank["collectives"]]
    assert len(by_phase["s"]) == data["otherData"]["messages"] == sum(len(each["sends"]) for each in collectives)
    assert data["otherData"]["messages_without_arrow"] == 0
    assert sum(event["args"]["bytes"] for event in by_phase["s"]) == sum(each["bytes_sent"] for each in collectives)
    assert len([event for event in by_phase["X"] if event["tid"] >= 100]) == len(collectives)
    assert data["otherData"]["stage"] == trace["stage"] and data["displayTimeUnit"] == "ms"


def test_times_and_counters_of_one_rank():
    _, _, trace = sample(ranks=2, units=3)
    events = perfetto(trace)["traceEvents"]
    forward = next(row for row in trace["ranks"][1]["actions"] if row["action"] == "Forward(1, mb=0)")
    (slice,) = [event for event in events if event["name"] == "Forward(1, mb=0)" and event["pid"] == 1]
    began, took = forward["begin_s"], forward["end_s"] - forward["begin_s"]
    assert (slice["ts"], slice["dur"]) == pytest.approx((1e6 * began, 1e6 * took), abs=3e-3)
    assert slice["args"]["label"] == "s1" and slice["args"]["peak_bytes"] == forward["peak_bytes"] and slice["tid"] == 1
    counters = [event["args"] for event in events if event["pid"] == 1 and event["name"] == "memory (bytes)"]
    assert counters == [row[key] for row in trace["ranks"][1]["actions"] for key in ("peak_live", "live")]
    during = [event["ts"] for event in events if event["pid"] == 1 and event.get("args", {}).get("workspace")]
    computed = [row["begin_s"] for row in trace["ranks"][1]["actions"] if row["kind"] in ("Forward", "Backward")]
    assert during == pytest.approx([1e6 * begin for begin in computed], abs=1e-3)
    states = [event["args"] for event in events if event["pid"] == 1 and event["name"] == "model states (bytes)"]
    planned = [sum(row["planned_live"][kind] for kind in MODEL_STATE) for row in trace["ranks"][1]["actions"]]
    assert states == [{"counted": nbytes, "planned": nbytes} for nbytes in planned]
    shown = {event["name"].split("(")[0] for event in events if event["ph"] == "X" and event["tid"] == 1}
    assert shown == {"LoadBatch", "Forward", "Loss", "LossBackward", "Backward", "Reshard", "OptimStep", "FreeGrad"}
    assert {event["name"] for event in events if event.get("tid") == 100 and event["ph"] == "X"} == {
        f"{op} s{unit}" for op in ("all_gather", "reduce_scatter") for unit in range(3)}


def test_arrows_join_the_send_to_its_arrival():
    """Rank r sends to r + 1, so each arrow does; the k-th of a collective ends at the k-th arrival."""
    _, _, trace = sample(ranks=3, units=3)
    by_phase = check(perfetto(trace)["traceEvents"], 3)
    finishes = {event["id"]: event for event in by_phase["f"]}
    assert {(event["pid"], finishes[event["id"]]["pid"]) for event in by_phase["s"]} == {(0, 1), (1, 2), (2, 0)}
    first = [event for event in by_phase["s"] if event["pid"] == 0][:2]
    gather = trace["ranks"][0]["collectives"][0], trace["ranks"][1]["collectives"][0]
    begins = [1e6 * send["begin_s"] for send in gather[0]["sends"]]
    assert [event["ts"] for event in first] == pytest.approx(begins, abs=1e-3)
    ends = [1e6 * row["end_s"] for row in gather[1]["arrivals"]]
    assert [finishes[event["id"]]["ts"] for event in first] == pytest.approx(ends, abs=1e-3)


def test_an_arrival_may_end_its_collective():
    _, _, trace = sample(ranks=3, units=3)
    for rank in trace["ranks"]:
        for each in rank["collectives"]:
            each["end_s"] = each["arrivals"][-1]["end_s"]
    assert len(check(perfetto(trace)["traceEvents"], 3)["f"]) == 3 * 2 * 9


def test_collectives_at_one_time_have_tracks_of_their_own():
    _, _, trace = sample(ranks=2, units=3)
    first, second = trace["ranks"][0]["collectives"][:2]
    second["begin_s"] = first["begin_s"]
    by_phase = check(perfetto(trace)["traceEvents"], 2)
    assert [event["args"] for event in by_phase["M"] if event["tid"] == 101][0] == {"name": "communication 2"}
    assert len([event for event in by_phase["X"] if (event["pid"], event["tid"]) == (0, 101)]) == 1


@pytest.mark.parametrize("seconds", [-1e-5, 1e-5, -1.0, 1.0])
def test_clocks_of_hosts_that_differ(seconds):
    """An arrow that would go back in time is bent as far as its slices allow, or left out."""
    _, _, trace = sample(ranks=2, units=3)
    rank = trace["ranks"][1]
    for row in (*rank["actions"], *rank["collectives"]):
        row["begin_s"], row["end_s"] = row["begin_s"] + seconds + 1, row["end_s"] + seconds + 1
        for message in (*row.get("sends", ()), *row.get("arrivals", ())):
            message.update({key: value + seconds + 1 for key, value in message.items() if key.endswith("_s")})
    for row in (*trace["ranks"][0]["actions"], *trace["ranks"][0]["collectives"]):
        row["begin_s"], row["end_s"] = row["begin_s"] + 1, row["end_s"] + 1
        for message in (*row.get("sends", ()), *row.get("arrivals", ())):
            message.update({key: value + 1 for key, value in message.items() if key.endswith("_s")})
    data = perfetto(trace)
    arrows = check(data["traceEvents"], 2)["s"]
    assert len(arrows) + data["otherData"]["messages_without_arrow"] == data["otherData"]["messages"]
    assert {event["pid"] for event in arrows} == ({0, 1} if abs(seconds) < 1 else {0} if seconds > 0 else {1})


def test_an_arrow_that_leaves_early():
    """The receiver's clock is late: its collective seems to end before the message was sent, but after the sender's
    collective began."""
    _, _, trace = sample(ranks=2, units=3)
    sender, receiver = (rank["collectives"][0] for rank in trace["ranks"])
    middle = (sender["begin_s"] + sender["end_s"]) / 2
    sender["sends"][0]["begin_s"] = sender["end_s"] - 1e-6
    receiver["end_s"] = receiver["arrivals"][0]["end_s"] = middle
    assert receiver["begin_s"] < middle < sender["sends"][0]["begin_s"]
    data = perfetto(trace)
    starts = check(data["traceEvents"], 2)["s"]
    assert data["otherData"]["messages_without_arrow"] == 0 and len(starts) == data["otherData"]["messages"]


def test_messages_that_were_lost():
    _, _, trace = sample(ranks=2, units=3)
    trace["ranks"][1]["collectives"][0]["arrivals"].pop()
    with pytest.raises(ConfigError, match=r"in all_gather of s0 \(forward\) rank 0 sent 1 messages to 1, but 0 came"):
        perfetto(trace)
    _, _, trace = sample(ranks=2, units=3)
    trace["ranks"][1]["collectives"][0]["sends"].clear()
    with pytest.raises(ConfigError, match="rank 1 sent 0 messages to 0, but 1 came"):
        perfetto(trace)
