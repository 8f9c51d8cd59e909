"""The page: whole, self-contained, nothing in it taken for HTML that is not ours; its tables, as --json has them."""

from __future__ import annotations

import base64
import json
import math
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from mpizero.report.curves import draw_curves
from mpizero.report.html import Markup, element, void
from mpizero.report.log import Log, read_log
from mpizero.report.page import SOURCES, page, show
from mpizero.report.style import image
from mpizero.report.tables import action_table, speed, tables
from mpizero.report.thin import thin
from tests.report.sample import begun, sample, write_log

SVG = b"<svg xmlns='http://www.w3.org/2000/svg'/>"
VOID = {"meta", "img"}


class Reader(HTMLParser):
    """Checks that every element is closed in its turn, and keeps what a browser would show or load."""

    def __init__(self, text: str):
        super().__init__()
        self.open, self.elements, self.texts, self.loaded, self.links = [], [], [], [], []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.elements.append(tag)
        where = self.links if tag == "a" else self.loaded  # a link loads nothing before it is followed
        where += [value for key, value in attrs
                  if key in ("src", "href", "srcset", "action", "background", "data")]
        assert not [key for key, _ in attrs if key.startswith("on")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if not self.open or self.open[-1] != "style":
            self.texts.append(data)


def log_of(folder="log", **options) -> Log:
    steps, summary, trace = sample(**options)
    return Log(folder, steps, summary, trace)


def read(log: Log, figures=("loss", "memory", "traffic", "gantt")) -> Reader:
    return Reader(page(log, dict.fromkeys(figures, SVG), tables(log)))


@pytest.mark.parametrize("options", [{"ranks": 1, "units": 3}, {"ranks": 16, "units": 40, "shards": 4}], ids=str)
def test_the_page_needs_nothing_else(options):
    reader = read(log_of(**options))
    assert reader.elements.count("img") == 4
    assert reader.loaded == [f"data:image/svg+xml;base64,{base64.b64encode(SVG).decode()}"] * 4
    assert not {"script", "link", "iframe", "object", "base", "form"} & set(reader.elements)
    assert ("mlp, stage 3, 1 rank" if options["ranks"] == 1 else "mlp, stage 3, 16 ranks") in reader.texts
    text = "\n".join(reader.texts)
    assert ("Bytes of model states equal their plan on every rank; bytes sent equal their plan on every rank; replicas "
            "are equal.") in text
    assert len(re.findall("^NO$", text, re.MULTILINE)) == 50  # of the 50 steps, none was skipped


def test_what_stands_in_a_log_is_never_html():
    log = log_of(ranks=2, units=3)
    evil = "</style></title><script>alert(1)</script>\"'&<img src=x onerror=alert(1)>"
    log.summary.update(model=evil, weights_sha256=evil, mismatches=[evil])
    log.summary["traffic"][0]["by_op"][evil] = 3
    for rank in log.trace["ranks"]:
        rank["host"] = evil
        for row in rank["actions"]:
            row.update(action=evil, label=evil, live={**row["live"], evil: 2})
        for each in rank["collectives"]:
            each.update(op=evil, group=evil, unit=evil)
    reader = read(log)
    assert "script" not in reader.elements and reader.elements.count("img") == 4
    assert sum(evil in text for text in reader.texts) > 10


def test_elements_escape():
    assert element("p", "a<b", Markup("<b>"), title='"x"') == '<p title="&quot;x&quot;">a&lt;b<b></p>'
    assert element("td", class_="no") == '<td class="no"></td>'
    assert void("meta", http_equiv="x") == '<meta http-equiv="x">'


def test_disagreement_is_said():
    log = log_of(ranks=2, units=3)
    log.summary["memory"] = [dict(row) for row in log.summary["memory"]]
    log.summary["memory"][1]["peak"] += 2
    log.summary["traffic"] = [dict(row) for row in log.summary["traffic"]]
    log.summary["traffic"][0]["steps_off_plan"] = 1
    log.summary.update(replicas_equal=False, mismatches=["unit 3: ranks 0 and 1"])
    text = "\n".join(read(log).texts)
    assert "Bytes of model states DIFFER from their plan; bytes sent DIFFER from their plan; replicas DIFFER." in text
    assert "unit 3: ranks 0 and 1" in text
    found = {table.name: table.rows for table in tables(log)}
    assert [row["equal"] for row in found["memory"]] == [True, False]
    assert [row["equal"] for row in found["traffic"]] == [False, True]


def test_what_is_missing_is_said(tmp_path):
    folder = write_log(tmp_path / "a <log>", ranks=1, units=3, steps=2)
    (folder / "summary.json").unlink()
    (folder / "trace.json").unlink()
    reader = read(read_log(folder), figures=("loss",))
    text = "\n".join(reader.texts)
    for words in ("Training log a <log>", "The run did not end", "has no summary.json", "has no trace.json", "2 steps"):
        assert words in text
    (folder / "steps.jsonl").write_text("")
    assert "No step has ended yet" in "\n".join(read(read_log(folder), figures=()).texts)


def test_a_run_says_how_it_was_started_and_whether_it_goes_on():
    log, (_, summary, _) = log_of(ranks=2, units=3), sample(ranks=2, units=3)
    going = replace(log, summary=None, trace=None, run=begun("an-identifier", summary), running=True, notes=("Torn.",))
    text = "\n".join(read(going, figures=("loss",)).texts)
    for words in ("mlp, stage 3, 2 ranks", "The run is still going on", "Torn.", "an-identifier", "MPICH 5.0.2",
                  "0-1 on node0", "1 replicate x 2 shard", "2026-11-30T03:15:02+00:00", "--stage 3"):
        assert words in text, words
    assert "did not end" not in text and "\nNO\n" not in text.split("Steps (")[0]
    summary = {**log.summary, "interrupted": True, "signal": "SIGTERM", "eval_loss": None}
    assert "The run was interrupted by SIGTERM" in "\n".join(read(replace(log, summary=summary)).texts)


def test_a_run_says_when_it_began_and_how_fast_it_was():
    log, (_, summary, _) = log_of(ranks=2, units=3, steps=4), sample(ranks=2, units=3)
    log = replace(log, run=begun("an-identifier", summary))
    first = read(log).texts
    assert "Began 2026-11-30 03:15:02+00:00: python -m mpizero.train --stage 3" in first
    assert any(text.endswith(", 5,100 samples or tokens a second.") for text in first)
    for row, seconds in zip(log.steps, (0.5, 0.1, 0.1, 0.1), strict=True):
        row.update(seconds=seconds, per_second=32 / seconds)
    assert speed(log) == {"steps": 4, "seconds": pytest.approx(0.8), "ms": pytest.approx(200),
                          "per_second": pytest.approx(160)}
    assert any(", 0.8 s in steps, 200 ms each, 160 samples or tokens a second." in text for text in read(log).texts)
    told = replace(log, steps=log.steps[::3])  # where not every step has a line
    assert speed(told)["seconds"] == pytest.approx(4 * 0.3)


def test_the_page_has_links():
    assert read(log_of(ranks=1, units=3)).links == list(SOURCES.values())


def test_the_page_of_very_many_steps_is_small():
    """And shows the one step that sticks out."""
    [row] = sample(ranks=1, units=3, steps=1)[0]
    steps = [row | {"step": i, "loss": 2 + 1e-5 * (i * 7919 % 1000), "grad_norm": None if i == 77_001 else 1.0}
             for i in range(100_000)]
    steps[54_321]["loss"], steps[54_329]["grad_norm"] = 9.75, 0.03125
    log = replace(log_of(ranks=1, units=3), steps=steps)
    found = {table.name: table for table in tables(log)}
    assert len(found["steps"].rows) == 100_000
    text = page(log, {"loss": image(draw_curves(steps), "svg")}, [found["steps"]])
    assert len(text) < 2_000_000
    shown = Reader(text).texts
    assert {"9.75", "0.03125", "77,002", "1", "100,000"} <= set(shown)
    assert any(" of 100,000 rows are shown" in words for words in shown)


def test_thinning_keeps_what_sticks_out():
    values = [math.sin(i / 900) + 0.1 * math.sin(i) for i in range(30_000)]
    values[12_345], values[23_456] = 50.0, -50.0
    rows = [{"i": i, "x": None if i in (600, 601, 29_990) else value} for i, value in enumerate(values)]
    kept = thin(rows, ["x"], 100)
    assert [row["i"] for row in kept] == sorted({row["i"] for row in kept}) and 200 < len(kept) <= 500
    for span in range(100):  # by another way than the code's
        there = [row["x"] for row in rows[300 * span:300 * span + 300] if row["x"] is not None]
        here = [row["x"] for row in kept if 300 * span <= row["i"] < 300 * span + 300 and row["x"] is not None]
        assert (min(here), max(here)) == (min(there), max(there))
    assert {0, 299, 300, 600, 29_990, 29_999} <= {row["i"] for row in kept}
    assert thin(rows[:500], ["x"], 100) == rows[:500]


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


def test_numbers_as_people_read_them():
    shown = {None: "-", 1234567: "1,234,567", 12345.6: "12,346", 0.000123456: "0.0001235", 3.0: "3", "x": "x"}
    assert {value: show(value) for value in shown} == shown
