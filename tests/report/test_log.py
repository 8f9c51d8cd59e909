"""Reading a log: what is whole is read as it is; all else gets one sentence that says where, and what to do."""

from __future__ import annotations

import json

import pytest

from mpizero.engine.trainer import StepRecord
from mpizero.errors import ConfigError
from mpizero.report.log import read_log
from mpizero.runlog import open_log
from tests.report.sample import begun, sample, write_log


@pytest.fixture
def folder(tmp_path):
    return write_log(tmp_path / "log", ranks=2, units=3, steps=4, skipped=(0,))


def test_a_whole_log(folder):
    steps, summary, trace = sample(ranks=2, units=3, steps=4, skipped=(0,))
    log = read_log(folder)
    assert log.steps == steps
    assert (log.summary, log.trace) == (json.loads(json.dumps(summary)), json.loads(json.dumps(trace)))
    assert log.steps[0]["grad_norm"] is None


def test_a_run_that_has_not_ended(folder):
    (folder / "summary.json").unlink()
    (folder / "trace.json").unlink()
    log = read_log(folder)
    assert len(log.steps) == 4 and log.summary is None and log.trace is None
    (folder / "steps.jsonl").write_text("")
    assert read_log(folder).steps == []


def test_numbers_that_json_has_not_are_null(folder):
    lines = (folder / "steps.jsonl").read_text().replace('"grad_norm": null', '"grad_norm": NaN').splitlines()
    (folder / "steps.jsonl").write_text("\n".join(lines) + "\n")
    assert "NaN" in lines[0] and read_log(folder).steps[0]["grad_norm"] is None


def change(*path, to):
    """A function that sets the place `path` of a JSON value; `to` ... removes it."""
    def apply(value):
        for key in path[:-1]:
            value = value[key]
        if to is ...:
            del value[path[-1]]
        else:
            value[path[-1]] = to
    return apply


SPAN = ("ranks", 1, "actions", 3)
COLLECTIVE = ("ranks", 1, "collectives", 0)


@pytest.mark.parametrize("file, edit, words", [
    ("summary.json", change("memory", to=...), "summary.json: the key 'memory' is missing"),
    ("summary.json", change("memory", 1, "peak", to=...), "memory[1]: the key 'peak' is missing"),
    ("summary.json", change("psi", to="many"), "psi must be a whole number, not a string"),
    ("summary.json", change("psi", to=True), "psi must be a whole number, not true or false"),
    ("summary.json", change("traffic", 0, "by_op", to={"all_gather": 1.5}),
     "by_op: all_gather must be a whole number, not a number"),
    ("summary.json", change("units", to={}), "units must be a list, not an object"),
    ("summary.json", change("eval_loss", to="good"), "eval_loss must be a whole number"),
    ("trace.json", change("capacity", to="much"), "capacity must be a whole number"),
    ("trace.json", change("ranks", to=[]), "the ranks must be 0 to 1 in order"),
    ("trace.json", change("ranks", 1, "rank", to=0), "the ranks must be 0 to 1 in order"),
    ("trace.json", change("world_size", to=3), "the ranks must be 0 to 2 in order"),
    ("trace.json", change(*SPAN, "live", to=...), "ranks[1]: actions[3]: the key 'live' is missing"),
    ("trace.json", change(*SPAN, "work", to=...), "actions[3]: the key 'work' is missing: it was written by another"),
    ("trace.json", change(*SPAN, "work", to=3), "actions[3]: work must be a string, not a whole number"),
    ("trace.json", change(*SPAN, "work", to="page_out"), "rank 1: Forward(0, mb=0) does 'page_out', a kind of work "
     "that is not known here: it was written by another version of this program"),
    ("trace.json", change(*SPAN, "computes", to=None), "actions[3]: computes must be true or false, not null"),
    ("trace.json", change(*SPAN, "begin_s", to=None), "begin_s must be a whole number, not null"),
    ("trace.json", change(*SPAN, "end_s", to=-1.0), "rank 1: Forward(0, mb=0) ends before it begins"),
    ("trace.json", change(*COLLECTIVE, "end_s", to=-1.0), "rank 1: all_gather ends before it begins"),
    ("trace.json", change(*COLLECTIVE, "sends", 0, "to", to=7), "rank 1 talks to rank 7, which does not exist"),
    ("trace.json", change(*COLLECTIVE, "arrivals", 0, "from", to=-1), "rank 1 talks to rank -1, which does not exist"),
])
def test_files_of_another_shape(folder, file, edit, words):
    value = json.loads((folder / file).read_text())
    edit(value)
    (folder / file).write_text(json.dumps(value))
    with pytest.raises(ConfigError) as error:
        read_log(folder)
    assert words in str(error.value) and file in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("file", ["run.json", "steps.jsonl", "summary.json", "trace.json"])
@pytest.mark.parametrize("text, words", [
    (b'{"step": 3, "lo', "is not whole JSON"),
    (b"", "is not whole JSON"),
    (b"\xff\xfe", "is not text"),
    (b"[" * 100_000, "JSON that no run wrote"),
    (b"9" * 5000, "JSON that no run wrote"),
    (b"3", "must be an object, not a whole number"),
    (b'{"step": 1e999}', ""),
])
def test_files_that_are_cut_or_not_json(folder, file, text, words):
    (folder / file).write_bytes(text + b"\n")
    with pytest.raises(ConfigError) as error:
        read_log(folder)
    assert words in str(error.value) and file in str(error.value) and len(str(error.value)) < 400


@pytest.mark.parametrize("cut", [1, 40, 200])
def test_a_torn_last_line_is_dropped(folder, cut):
    """The run was killed while it wrote, or writes now. A line that lacks nothing but its end is whole."""
    whole = (folder / "steps.jsonl").read_bytes()
    (folder / "steps.jsonl").write_bytes(whole[:-cut])
    log = read_log(folder)
    assert [row["step"] for row in log.steps] == ([0, 1, 2, 3] if cut == 1 else [0, 1, 2])
    assert log.notes == (() if cut == 1 else ("The last line of steps.jsonl is torn: 3 whole steps.",))


@pytest.mark.parametrize("text", ['{"step": 4, "loss": 0.9\n', '{"step": 4, "lo\n{"step": 5', "\n"])
def test_damage_before_the_end_is_an_error_that_names_the_line(folder, text):
    with (folder / "steps.jsonl").open("a") as file:
        file.write(text)
    with pytest.raises(ConfigError, match="steps.jsonl, line 5 is not whole JSON"):
        read_log(folder)


def with_run(path, run):
    value = json.loads(path.read_text())
    path.write_text(json.dumps(value | {"run": run}))


def test_files_of_another_run_are_left_out(tmp_path):
    folder = write_log(tmp_path, run="20261130-031502-ab12cd", ranks=2, units=3, steps=4)
    log = read_log(folder)
    assert (log.run["run"], log.notes, log.running) == ("20261130-031502-ab12cd", (), False)
    assert log.summary is not None and log.trace is not None
    with_run(folder / "summary.json", "other")
    with_run(folder / "trace.json", None)
    log = read_log(folder)
    assert log.summary is None and log.trace is None and len(log.steps) == 4
    assert log.notes == tuple(f"{name} is of another run ({run}) than the steps (20261130-031502-ab12cd): it is left "
                              "out." for name, run in (("summary.json", "other"), ("trace.json", None)))
    with_run(folder / "run.json", "third")
    with pytest.raises(ConfigError, match=r"steps.jsonl, line 1, is of another run \(2026.*\) than run.json \(third\)"):
        read_log(folder)
    (folder / "run.json").unlink()
    assert read_log(folder).run is None
    lines = (folder / "steps.jsonl").read_text().splitlines()
    lines[3] = lines[3].replace("20261130-031502-ab12cd", "other")
    (folder / "steps.jsonl").write_text("\n".join(lines) + "\n")
    with pytest.raises(ConfigError, match=r"steps.jsonl, line 4, is of another run \(other\) than the first one"):
        read_log(folder)


def test_a_run_that_goes_on(tmp_path):
    log = open_log(tmp_path, "first", begun("first", sample(ranks=1, units=3)[1]))
    log.append(StepRecord(0, 2.5, 1.0, 0.01, 1.0, False, 0.5, 9.0, 1, 2, 3))
    found = read_log(tmp_path)
    assert (found.running, len(found.steps), found.summary, found.notes) == (True, 1, None, ())
    log.about.close()
    assert read_log(tmp_path).running is False


def test_numbers_beyond_all(folder):
    text = (folder / "trace.json").read_text()
    (folder / "trace.json").write_text(text.replace('"end_s": 0.0,', '"end_s": 1e999,', 1))
    with pytest.raises(ConfigError, match="end_s is beyond any number"):
        read_log(folder)


def test_folders_that_are_none(tmp_path):
    with pytest.raises(ConfigError, match="nowhere does not exist: give the folder"):
        read_log(tmp_path / "nowhere")
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="file is not a folder"):
        read_log(tmp_path / "file")
    with pytest.raises(ConfigError, match="is not a training log: it has no steps.jsonl"):
        read_log(tmp_path)
    (tmp_path / "steps.jsonl").mkdir()
    with pytest.raises(ConfigError, match=r"steps.jsonl cannot be read: Is a directory"):
        read_log(tmp_path)
