"""What the terminal shows of a run: short lines, bytes where they change, one row for ranks that are alike."""

from __future__ import annotations

import pytest

from mpizero import console
from mpizero.console import StepLines, duration, key_values, proof, shares
from mpizero.engine.trainer import StepRecord
from mpizero.layout import MeshShape
from mpizero.text import numbers, precision, ranks_on
from tests.report.sample import sample

RECORD = StepRecord(step=11, loss=1.74951, grad_norm=2.9412, lr=8.1e-3, loss_scale=1.0, skipped=False, seconds=0.023,
                    per_second=2782.6, live_bytes=1, peak_bytes=322_040, sent_bytes=97_968)


def test_held_out_loss_is_told_where_there_is_one():
    assert "held-out" not in StepLines(100, "sample").line(RECORD)
    assert "  held-out loss 2.2500" in StepLines(100, "sample").line(changed(eval_loss=2.25))


def test_groups_that_span_hosts():
    assert console._across_hosts("aabb", MeshShape(1, 2, 2)) == []
    assert console._across_hosts("aaab", MeshShape(2, 2)) == [
        "the shard group of ranks 2-3 spans hosts although it would fit into one: give each host a multiple of "
        "--shard-size ranks"]
    (note,) = console._across_hosts("aaab", MeshShape(1, 2, 2))
    assert note.startswith("tensor parallel ranks 2-3 span hosts, so ") and "a multiple of --tensor-size ranks" in note
    first, _ = console._across_hosts("aaaaabbb", MeshShape(2, 2, 2))
    assert "of ranks 4, 6 spans hosts" in first and first.endswith("of --shard-size times --tensor-size ranks")


def test_where_the_time_went():
    ranks = [{"compute": 3.0, "waiting": 1.0}, {"compute": 3.0, "waiting": 3.0}]
    assert shares(ranks) == "of the steps' time, mean of ranks: compute 60 %, waiting 40 %"
    assert shares([{}]) == ""


def changed(**what) -> StepRecord:
    return StepRecord(**{**vars(RECORD), **what})


def test_a_line_for_people():
    lines = StepLines(50, "sample")
    start = "step 12/50  loss 1.7495  norm 2.94  lr 8.1e-03   23 ms  2,783 samples/s"
    assert lines.line(RECORD) == start + "  mem 322 KB  sent 98 KB"
    assert lines.line(RECORD) == start  # nothing has changed
    assert lines.line(changed(sent_bytes=5)) == start + "  sent 5 B"
    assert len(start) < 80


def test_a_loss_scale_is_said_where_it_changes():
    lines = StepLines(50, "sample")
    assert lines.line(changed(loss_scale=65536.0, step=0)).endswith("loss scale 65,536")
    assert "scale" not in lines.line(changed(loss_scale=65536.0, step=1))
    after = lines.line(changed(loss_scale=32768.0, step=2, skipped=True, grad_norm=float("nan")))
    assert "step  3/50" in after and "overflow: skipped" in after and after.endswith("loss scale 32,768")


def test_long_runs_say_how_much_is_left():
    lines = StepLines(100, "token")
    for step in range(12):
        lines.count(changed(step=step, seconds=1.0))
    assert lines.line(changed(step=11)).endswith("  88 s left")
    assert "left" not in lines.line(changed(step=99))


def test_a_narrow_terminal_gets_a_second_line(monkeypatch):
    monkeypatch.setattr(console, "_width", lambda: 60)
    text = StepLines(50, "sample").line(RECORD)
    assert [len(row) <= 60 for row in text.splitlines()] == [True, True] and text.splitlines()[1].startswith("    ")
    assert all(len(row) <= 60 for row in console.wrapped("words " * 30).splitlines())


def test_every_field_for_machines():
    record = changed(seconds_by={"compute": 0.5, "rest": 0.25}, eval_loss=2.25)
    pairs = dict(word.split("=") for word in key_values(record, "samples").split())
    parts = {"samples_per_s", "compute_s", "rest_s"}
    assert pairs.keys() == vars(RECORD).keys() - {"per_second", "seconds_by"} | parts and pairs["step"] == "11"
    assert (pairs["compute_s"], pairs["eval_loss"]) == ("0.500000", "2.250000")


@pytest.mark.parametrize(("seconds", "text"), [
    (0.00074, "0.7 ms"), (0.0228, "23 ms"), (0.9996, "1 s"), (1.44, "1.4 s"), (61, "61 s"), (420, "7 min"),
    (11520, "3.2 h")])
def test_duration(seconds, text):
    assert duration(seconds) == text


def test_ranks_on():
    assert ranks_on(["a", "a", "b", "a"]) == "0-1, 3 on a, 2 on b"
    assert ranks_on(["a", "a", "b", "b"], [1, 3]) == "1 on a, 3 on b"


@pytest.mark.parametrize(("values", "text"), [([], ""), ([3], "3"), ([0, 1, 2], "0-2"), ([0, 1, 4, 6], "0-1, 4, 6")])
def test_numbers(values, text):
    assert numbers(values) == text


def rows_of(text: str, column: str) -> list[list[str]]:
    """The rows below the heading that holds `column`."""
    lines = text.splitlines()
    start = next(i for i, line in enumerate(lines) if column in line and i + 1 < len(lines) and "---" in lines[i + 1])
    return [line.split() for line in lines[start + 2 :][: next(
        (i for i, line in enumerate(lines[start + 2 :]) if not line or line.startswith("=")), len(lines))]]


@pytest.mark.parametrize(("more", "text"), [(None, "-"), (0, "yes"), (1, "NO")])
def test_the_peak_of_the_device_stands_beside_its_plan(more, text):
    _, summary, _ = sample(ranks=2, units=3)
    for rank in summary["memory"]:
        rank["planned_device_peak"] = None if more is None else rank["device_peak"] + more
    assert [row[5] for row in rows_of(proof(summary), "in all")] == [text]


def test_equal_ranks_share_a_row():
    _, summary, _ = sample(ranks=4, units=3)
    text = proof(summary)
    assert [row[0] for row in rows_of(text, "after backward")] == ["0-3"]
    other = {**summary["traffic"][2], "messages_per_step": 9}
    summary["traffic"][2] = other
    assert [row[0] for row in rows_of(proof(summary), "messages")] == ["0-1,", "2"]
    assert max(map(len, text.splitlines())) <= 100


def test_bytes_between_hosts_have_a_column_where_there_are_several():
    _, summary, _ = sample(ranks=4, units=3)
    assert "to other hosts" not in proof(summary)
    summary["traffic"] = [row | {"between_hosts_bytes_per_step": 5 * (rank % 2),
                                 "planned_between_hosts_bytes_per_step": 5 * (rank == 1)}
                          for rank, row in enumerate(summary["traffic"])]
    rows = [row.rpartition("45")[0].split()[-3:-1] + row.split()[-2:-1] for row in proof(summary).splitlines()
            if row.endswith("45")]
    sent = f"{summary['traffic'][0]['sent_bytes_per_step']:,}"
    assert rows == [[sent, "0", "yes"], [sent, "5", "yes"], [sent, "5", "NO"]]


def test_the_formula_stands_where_the_bytes_are_its_own():
    _, summary, _ = sample(ranks=4, units=3)
    assert "= 3 (N-1)/N psi elements of 2 bytes: N = 4, psi = " in proof(summary)
    assert "= 3 (N-1)/N psi + (N-1)/N g elements of 2 bytes: N = 4, psi = " in proof({**summary, "gathered_more": 8})
    assert "g = 8 gathered more: a tied unit" in " ".join(proof({**summary, "gathered_more": 8}).split())
    summary["traffic"][1] = summary["traffic"][1] | {"formula_sent_bytes_per_step": None}
    assert "(N-1)/N" not in proof(summary)
    _, hybrid, _ = sample(ranks=4, units=3, shards=2)
    assert "= 3 (F-1)/F psi + 2 (R-1)/R psi/F elements of 2 bytes: F = 2 shards, R = 2 replicas" in proof(hybrid)
    for shards, text in ((None, "= in all (F-1) (2 + 2 + 2 + 2/F) psi bytes, where each unit is used once: F = 4"),
                         (2, "= in all R (F-1) (2 + 2 + 2 + 2/F) psi + (2 + 2) (R-1) psi bytes, where")):
        assert text in proof(sample(ranks=4, units=3, stage="3-broadcast", shards=shards)[1])


def test_the_formula_of_gradients_with_other_sizes():
    _, summary, _ = sample(ranks=4, units=3)
    wide = {**summary, "reduce_dtype": "float32", "sum_dtype": "float32"}
    assert "= (4 + 2 + 2) (N-1)/N psi bytes: N = 4, psi = " in proof(wide)
    whole = {**wide, "stage": "0", "shard_size": 1, "replicas": 4}
    assert "= (4 + 4) (N-1)/N psi bytes: N = 4" in proof(whole)
    assert "= (4 + 2 + 2) (F-1)/F psi + (4 + 4) (R-1)/R psi/F bytes: F = 2 shards, R = 2 replicas" in proof(
        {**wide, "shard_size": 2, "replicas": 2})
    assert "= (4 + 2 + 2) (N-1)/N psi + 2 (N-1)/N g bytes: N = 4" in proof({**wide, "gathered_more": 8})


def test_precision_in_words():
    facts = {"dtype": "float16", "reduce_dtype": "float16", "sum_dtype": "float16"}
    assert precision(facts) == "float16"
    assert precision(facts | {"sum_dtype": "float32"}) == "float16, gradients sent as float16 and summed in float32"
