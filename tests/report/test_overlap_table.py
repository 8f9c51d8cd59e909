"""How much of a step's communication was hidden, by hand."""

from __future__ import annotations

import pytest

from mpizero.engine.simulated import measured_costs, simulated
from mpizero.report.tables import overlap_table
from mpizero.schedule.actions import Forward
from tests.report.sample import sample
from tests.schedule.toys import chain, setup


def collective(begin, end, exposed, group="shard", op="all_gather", unit="s0"):
    return {"op": op, "unit": unit, "group": group, "begin_s": begin, "end_s": end, "exposed_s": exposed}


def rank(number, collectives, actions=()):
    return {"rank": number, "host": "h", "groups": {"replicate": [number], "shard": [0, 1]}, "actions": list(actions),
            "collectives": collectives, "moves": [], "updates": [], "clock_uncertainty_s": 0.0}


RANKS = [rank(0, [collective(0, 4, 1), collective(3, 6, 2)]), rank(1, [collective(1, 4, 3), collective(2, 7, 0)])]
PLAYED = {"seconds": 10.0, "compute_s": 8.0, "communication_s": 5.0, "events": [
    {"work": "forward", "label": "s0", "stream": "compute", "begin_s": 0, "end_s": 8},
    {"work": "all_gather", "label": "s0", "stream": "communication", "begin_s": 0, "end_s": 4},
    {"work": "all_reduce_shard", "label": "s0", "stream": "replicas", "begin_s": 3, "end_s": 5}]}


def test_by_hand():
    """Rank 0: under way from 0 to 6, of which 3 s exposed. It came last to the second collective, by a second."""
    rows = overlap_table({"step": 0, "ranks": RANKS, "simulated": PLAYED}).rows
    assert [(row["rank"], row["under_way"], row["exposed"], row["hidden"]) for row in rows] == [
        (0, 6000, 3000, 50), (1, 6000, 3000, 50), ("simulated", 5000, 2000, pytest.approx(60))]
    assert [(row["last"], row["late"]) for row in rows[:2]] == [(1, 1000), (1, 1000)]


def test_costs_are_those_of_the_trace():
    """A collective costs what it took once its last rank had come: 4 - 1 and 7 - 3, on average 3.5 s."""
    made = setup("3", chain((8,)), 2)
    ranks = [rank(number, RANKS[number]["collectives"], [
        {"label": "s0", "begin_s": 0.0, "end_s": 1.0 + number if isinstance(action, Forward) else 0.0}
        for action in made.lists.step()]) for number in (0, 1)]
    costs = measured_costs(made.lists.step(), ranks, made.geometry)
    assert costs.forward == [1.5] and costs.all_gather == [3.5] and costs.reduce_scatter == [0.0]
    played = simulated(made.lists.step(), ranks, made.geometry)
    assert (played["seconds"], played["compute_s"], played["communication_s"]) == (1.5 + 2 * 3.5, 1.5, 7.0)


def test_a_trace_without_waiting_is_played_as_it_was():
    """Invented ranks that differ by a few percent: so do the two lengths."""
    _, _, trace = sample(ranks=4, stage="3", shards=2, accumulation=2)
    whole = max(row["end_s"] for each in trace["ranks"] for row in each["actions"])
    assert trace["simulated"]["seconds"] == pytest.approx(whole, rel=0.25)
    assert {event["stream"] for event in trace["simulated"]["events"]} == {"compute", "communication", "replicas"}
