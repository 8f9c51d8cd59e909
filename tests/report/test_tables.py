"""The tables of a report, as the page shows them and --json has them: what stands in them is the log's, and adds up."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from mpizero.report.tables import action_table, run_table, tables, unit_table
from tests.report.sample import begun, log_of


def test_tables_are_the_logs():
    log = log_of(ranks=4, units=5, steps=3, skipped=(1,))
    found = {table.name: table for table in tables(log)}
    assert list(found) == ["run", "memory", "traffic", "time", "overlap", "units", "collectives", "actions", "steps"]
    for table in found.values():
        assert table.rows and all(set(row) == set(table.columns) for row in table.rows)
    json.dumps([table.rows for table in found.values()], allow_nan=False)
    assert [row["value"] for row in found["run"].rows][:6] == ["mlp", "3", "float16", 4, "1 x 4", 5]
    assert found["steps"].rows == log.steps
    memory = found["memory"].rows[2]
    assert memory["peak"] == memory["planned_peak"] == log.summary["memory"][2]["peak"]
    traffic, plan = found["traffic"].rows[3], log.summary["traffic"][3]["planned_by_op"]
    assert (traffic["all_gather"], traffic["planned_all_gather"]) == (plan["all_gather"],) * 2
    assert (traffic["reduce_scatter"], traffic["planned_reduce_scatter"]) == (plan["reduce_scatter"],) * 2
    assert traffic["agree"] == 192
    assert traffic["sent_bytes_per_step"] == sum(plan.values()) == traffic["planned_sent_bytes_per_step"]


def test_of_tensor_parallel_ranks_a_part_is_told_as_one():
    summary = log_of(ranks=2, units=3).summary
    rows = {row["what"]: row["value"] for row in run_table(summary | {"tensor_size": 2}).rows}
    assert rows["replicas x shards x tensor parallel ranks"] == "1 x 2 x 2"
    assert "psi with padding, of a tensor parallel rank's part" in rows
    trace = {"step": 0, "ranks": [{"actions": [{"label": "", "work": "all_gather_loss", "begin_s": 0, "end_s": 1}]}]}
    assert unit_table(trace).rows == [{"unit": "loss", "all_gather": 1000.0}]


def test_hosts_are_in_the_tables_where_there_are_several():
    log = log_of(ranks=4, units=3)
    alone = {table.name: table for table in tables(log)}
    assert not {"host", "between_hosts_bytes_per_step"} & {*alone["traffic"].columns}
    assert "clock" not in alone["time"].note
    hosts = ["a", "a", "b", "b"]
    for rank, host in zip(log.trace["ranks"], hosts, strict=True):
        rank.update(host=host, clock_uncertainty_s=2.5e-5 * (host == "b"))
    log.summary["traffic"] = [row | {"between_hosts_bytes_per_step": 7 * rank,
                                     "planned_between_hosts_bytes_per_step": 7}
                              for rank, row in enumerate(log.summary["traffic"])]
    found = {table.name: table for table in tables(replace(log, run=begun("id", log.summary) | {"hosts": hosts}))}
    assert {row["what"]: row["value"] for row in found["begin"].rows}["ranks"] == "0-1 on a, 2-3 on b"
    assert [row["host"] for row in found["traffic"].rows] == hosts
    assert [row["between_hosts_bytes_per_step"] for row in found["traffic"].rows] == [0, 7, 14, 21]
    assert [row["planned_between_hosts_bytes_per_step"] for row in found["traffic"].rows] == [7] * 4
    assert found["time"].note.endswith(" By so many milliseconds may a host's clock still be off that of a: b 0.025.")
    without = {table.name: table for table in tables(replace(log, trace=None))}["traffic"]  # hosts are not told
    assert without.rows[1]["between_hosts_bytes_per_step"] == 7 and "host" not in without.columns


@pytest.mark.parametrize(("told", "value"), [
    ({}, "float16"), ({"reduce_dtype": "float16", "sum_dtype": "float16"}, "float16"),
    ({"reduce_dtype": "float16", "sum_dtype": "float32"}, "float16, gradients sent as float16 and summed in float32"),
], ids=["an older log", "as parameters", "sums of their own"])
def test_what_gradients_are_sent_and_summed_in(told, value):
    log = log_of(ranks=2, units=3)
    del log.summary["reduce_dtype"], log.summary["sum_dtype"]
    log.summary.update(told)
    assert {row["what"]: row["value"] for row in tables(log)[0].rows}["parameters and gradients"] == value


def milliseconds(rows) -> float:
    return sum(1e3 * (row["end_s"] - row["begin_s"]) for row in rows)


def test_tables_of_time_add_up():
    log = log_of(ranks=4, units=5, accumulation=2)
    found = {table.name: table.rows for table in tables(log)}
    for row, rank in zip(found["time"], log.trace["ranks"], strict=True):
        parts = [row[key] for key in ("forward", "backward", "update", "collectives", "rest")]
        assert sum(parts) == pytest.approx(row["step"]) and min(parts) > -1e-9
        assert row["collectives"] == pytest.approx(milliseconds(rank["collectives"]))
        for kind, name in (("Forward", "forward"), ("Backward", "backward"), ("OptimStep", "update")):
            spent = milliseconds(each for each in rank["actions"] if each["kind"] == kind)
            assert row[name] == pytest.approx(spent) and spent > 0
    for name in ("forward", "backward", "update"):
        mean = sum(row[name] for row in found["time"]) / 4
        assert sum(row[name] for row in found["units"]) == pytest.approx(mean)
    assert {row["unit"] for row in found["units"]} == {f"s{i}" for i in range(5)}  # what is no segment's is not here
    collectives = {row["op"]: row for row in found["collectives"]}
    assert {op: row["bytes_sent"] for op, row in collectives.items()} == log.summary["traffic"][0]["planned_by_op"]
    assert collectives["all_gather"]["calls"] == 20 and collectives["reduce_scatter"]["messages"] == 30
    assert found["actions"][-1]["planned"] == found["memory"][0]["at_rest"]
    assert [row["action"] for row in found["actions"]] == [row["action"] for row in log.trace["ranks"][0]["actions"]]


def test_what_is_computed_again_has_a_column_where_there_is_some():
    plain, again = (next(table for table in tables(log_of(ranks=2, units=5, recompute=on)) if table.name == "time")
                    for on in (False, True))
    assert "recompute" not in plain.columns and "recompute" not in plain.rows[0]
    assert list(again.columns)[2:5] == ["forward", "recompute", "backward"]
    assert all(0 < row["recompute"] < row["forward"] for row in again.rows)


@pytest.mark.parametrize("planned", [True, False], ids=["activations planned", "not planned"])
def test_actions_beside_their_plan(planned):
    """Activations count as far as the plan knows them."""
    log = log_of(ranks=1, units=3, activations_planned=planned)
    actions = log.trace["ranks"][0]["actions"]
    table = next(table for table in tables(log) if table.name == "actions")
    assert all(row["equal"] for row in table.rows) and any(row["activation"] for row in table.rows)
    assert ("planned_activation" in table.columns) == planned
    if planned:
        assert [row["planned_activation"] for row in table.rows] == [row["live"]["activation"] for row in actions]
    for number, kind in ((4, "activation"), (6, "optim")):
        actions[number]["live"] = {**actions[number]["live"], kind: actions[number]["live"][kind] + 2}
    off = [number for number, row in enumerate(action_table(log.trace).rows) if not row["equal"]]
    assert off == ([4, 6] if planned else [6])


def test_a_new_action_needs_nothing_here():
    """What is shown of an action follows from the kind of its work, not from its name."""
    known, new = log_of(ranks=2, units=3), log_of(ranks=2, units=3)
    for rank in new.trace["ranks"]:
        for row in rank["actions"]:
            row["kind"] = "New"
    assert [table.rows for table in tables(new)] == [table.rows for table in tables(known)]
