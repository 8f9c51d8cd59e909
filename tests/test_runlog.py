"""The folder of a log: an older run's files move away whole, one run at a time writes, and each file names its run."""

from __future__ import annotations

import json
import os
import re

import pytest

from mpizero.engine.trainer import StepRecord
from mpizero.errors import ConfigError
from mpizero.runlog import make_folder, new_id, open_log

STEP = StepRecord(0, 2.5, float("nan"), 0.01, 1.0, False, 0.5, 9.0, 1, 2, 3)
OPEN_AND_DIE = """
import os, sys
from mpizero.runlog import open_log
log = open_log(sys.argv[1], "first", {})
print("locked", flush=True)
os.kill(os.getpid(), 9)
"""


def files(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_identifiers_can_be_read_and_differ():
    assert re.fullmatch(r"\d{8}-\d{6}-[0-9a-f]{6}", new_id()) and new_id() != new_id()


def test_what_is_known_is_there_before_the_first_step(tmp_path):
    log = open_log(tmp_path, "first", {"mpi": "MPICH", "settings": {"lr": float("inf")}})
    assert json.loads((tmp_path / "run.json").read_text()) == {"run": "first", "mpi": "MPICH", "settings": {"lr": None}}
    assert (tmp_path / "steps.jsonl").read_text() == "" and log.older is None
    log.append(STEP)
    [line] = (tmp_path / "steps.jsonl").read_text().splitlines()
    assert (json.loads(line)["run"], json.loads(line)["grad_norm"]) == ("first", None)
    log.end({"run": "first"}, None)
    assert files(tmp_path) == ["run.json", "steps.jsonl", "summary.json"]  # nothing was traced


def test_an_older_run_moves_whole_and_nothing_else_does(tmp_path):
    first = open_log(tmp_path, "first", {})
    first.append(STEP)
    first.end({"run": "first"}, {"ranks": []})
    for name in ("report.html", "loss.png", "notes.txt", "s.json"):
        (tmp_path / name).write_text(name)
    before = {name: (tmp_path / name).read_bytes() for name in files(tmp_path)}
    second = open_log(tmp_path, "second", {})
    assert second.older == tmp_path / "older" / "first"
    moved = ["loss.png", "report.html", "run.json", "steps.jsonl", "summary.json", "trace.json"]
    assert files(tmp_path) == ["notes.txt", *(f"older/first/{name}" for name in moved), "run.json", "s.json",
                               "steps.jsonl"]
    assert all((tmp_path / "older" / "first" / name).read_bytes() == before[name] for name in moved)
    assert json.loads((tmp_path / "run.json").read_text()) == {"run": "second"}


def test_two_older_runs_of_one_name_are_both_kept(tmp_path):
    """By date, where no identifier says what they are."""
    for number in range(3):
        (tmp_path / "steps.jsonl").write_text(str(number))
        os.utime(tmp_path / "steps.jsonl", (1e9, 1e9))
        log = open_log(tmp_path, "../../evil", {})
        log.steps.close(), log.about.close()
        (tmp_path / "run.json").unlink()
    assert [(tmp_path / "older" / name / "steps.jsonl").read_text() for name in
            ("20010909-014640", "20010909-014640-2", "20010909-014640-3")] == ["0", "1", "2"]
    open_log(tmp_path, "../../evil", {}).about.close()
    assert ".." not in str(open_log(tmp_path, "last", {}).older)  # an identifier that is no name of a folder


def test_one_run_at_a_time(tmp_path):
    log = open_log(tmp_path, "first", {})
    log.append(STEP)
    before = {name: (tmp_path / name).read_bytes() for name in files(tmp_path)}
    with pytest.raises(ConfigError, match="`log` .* is being written by another run first: wait until it has ended, or "
                                          "name another folder"):
        open_log(tmp_path, "second", {})
    assert {name: (tmp_path / name).read_bytes() for name in files(tmp_path)} == before
    log.end({}, None)
    assert open_log(tmp_path, "second", {}).older == tmp_path / "older" / "first"


def test_a_lock_dies_with_its_process(launch, tmp_path):
    end = launch(None, "-c", OPEN_AND_DIE, tmp_path)
    assert end.status == -9 and end.stdout == "locked\n", end.output
    assert open_log(tmp_path, "second", {}).older == tmp_path / "older" / "first"


def test_what_cannot_be_written_gets_a_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="`log` .*/file/log cannot be written: Not a directory"):
        make_folder(tmp_path / "file" / "log")
    with pytest.raises(ConfigError, match="`log` .*/file is a file: give a folder"):
        make_folder(tmp_path / "file")
    with pytest.raises(ConfigError, match="`log` .*/file/run.json cannot be written: Not a directory"):
        open_log(tmp_path / "file", "first", {})
    log = open_log(tmp_path, "first", {})
    log.steps = open("/dev/full", "w")
    with pytest.raises(ConfigError, match="`log` /dev/full cannot be written: No space left on device"):
        log.append(STEP)
    (tmp_path / "summary.json").mkdir()
    with pytest.raises(ConfigError, match="`log` .*/summary.json cannot be written"):
        log.end({}, None)
    with pytest.raises(OSError):
        log.steps.close()  # which still holds the line
