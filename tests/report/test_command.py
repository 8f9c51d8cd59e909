"""`python -m mpizero.report` as a user meets it, and a report of a run that really ran."""

from __future__ import annotations

import json
import os
import struct

import pytest

from mpizero.errors import ConfigError
from mpizero.report.__main__ import main, report
from mpizero.report.log import read_log
from mpizero.report.write import _figures
from tests.report.events import check
from tests.report.sample import write_log

REPORT = ("-m", "mpizero.report")
FIGURES = ("loss", "memory", "traffic", "gantt")
BLOCKED = """
import runpy, sys
sys.modules[sys.argv.pop(1)] = None  # importing it raises ImportError
runpy.run_module("mpizero.report", run_name="__main__")
"""


def data_of(path):
    return json.loads(path.read_text())


def sentence(finished) -> str:
    """The one line a user's mistake gets: exit status 2, no traceback."""
    assert finished.status == 2 and not finished.stdout, finished.output
    assert finished.stderr.startswith("mpizero: error: ") and finished.stderr.count("\n") == 1, finished.output
    return finished.stderr


def test_files_without_mpi(launch, tmp_path):
    """Neither an mpirun nor mpi4py is needed."""
    log = write_log(tmp_path / "log", ranks=3, units=4, steps=5)
    end = launch(None, "-c", BLOCKED, "mpi4py", log, "--json", tmp_path / "tables.json")
    assert end.status == 0, end.output
    data = json.loads((tmp_path / "tables.json").read_text())
    names = ["perfetto.json", *(f"{name}.{form}" for name in FIGURES for form in ("svg", "png")), "report.html"]
    said = [line.removeprefix("wrote ") for line in end.stdout.splitlines()]
    assert data["files"] == [str(log / name) for name in names] == said
    assert len(data["steps"]) == 5 and len(data["memory"]) == 3 and data["run"][0] == {"what": "model", "value": "mlp"}
    for name in FIGURES:
        png = (log / f"{name}.png").read_bytes()
        width, height = struct.unpack(">II", png[16:24])
        assert png.startswith(b"\x89PNG") and width == 1200 and height >= 300
        assert (log / f"{name}.svg").read_bytes().startswith(b"<?xml")
    assert (log / "report.html").read_text(encoding="utf-8").count("data:image/svg+xml;base64,") == 4
    check(json.loads((log / "perfetto.json").read_text())["traceEvents"], 3)


def test_hosts_of_a_log_are_in_its_figure(tmp_path):
    """The hand-made runs have eight ranks a host."""
    figures = dict(_figures(read_log(write_log(tmp_path / "log", ranks=9, units=3, steps=2))))
    assert figures["traffic"].axes[0].get_xlabel() == "rank (0-7 on node0, 8 on node1)"


def test_mistakes_get_a_sentence(launch, tmp_path):
    log = write_log(tmp_path / "log", ranks=1, units=3, steps=2)
    assert "needs matplotlib" not in sentence(launch(None, *REPORT, tmp_path / "nowhere"))
    without = launch(None, "-c", BLOCKED, "matplotlib", log)
    assert "figures need matplotlib, which is not installed: pip install 'mpizero[plot]'" in sentence(without)
    assert {path.name for path in log.iterdir()} == {"steps.jsonl", "summary.json", "trace.json"}  # nothing half done
    (log / "trace.json").write_text((log / "trace.json").read_text()[:1000])
    assert "trace.json is not whole JSON" in sentence(launch(None, *REPORT, log))


@pytest.mark.parametrize("arguments, words", [
    ((), "LOGDIR"),
    (("LOG", "--otu", "x"), "--otu"),
    (("LOG", "--out", "LOG/steps.jsonl"), "--out .*/steps.jsonl is a file: give a folder"),
    (("LOG", "--json", "LOG/no/tables.json"), "tables.json cannot be written"),
])
def test_wrong_words(tmp_path, arguments, words):
    log = write_log(tmp_path / "log", ranks=1, units=3, steps=2)
    with pytest.raises(ConfigError, match=words):
        report([word.replace("LOG", str(log)) for word in arguments])


def test_a_log_that_has_only_begun(tmp_path, capsys):
    log = write_log(tmp_path / "log", ranks=1, units=3, steps=2)
    for name in ("summary.json", "trace.json"):
        (log / name).unlink()
    (log / "steps.jsonl").write_text("")
    assert main([str(log), "--out", str(tmp_path / "new" / "page")]) == 0
    assert capsys.readouterr().out == f"wrote {tmp_path}/new/page/report.html\n"
    assert [path.name for path in (tmp_path / "new" / "page").iterdir()] == ["report.html"]
    assert [path.name for path in log.iterdir()] == ["steps.jsonl"]


def test_a_folder_whose_name_is_not_utf_8(launch, tmp_path):
    log = write_log(tmp_path / os.fsdecode(b"na\xffme"), run="a-run", ranks=1, units=3, steps=2)
    with (log / "steps.jsonl").open("a") as file:
        file.write('{"run": "a-')
    about = json.loads((log / "run.json").read_text())
    (log / "run.json").write_text(json.dumps(about | {"command": f"train --log {log}"}))
    (log / "summary.json").unlink()
    end = launch(None, *REPORT, log, "--json", tmp_path / "tables.json", env={"PYTHONIOENCODING": "utf-8"})
    assert end.status == 0 and not end.stderr, end.output
    assert end.stdout.startswith("The last line of steps.jsonl is torn: 2 whole steps.\nwrote ")
    data = json.loads((tmp_path / "tables.json").read_bytes())
    assert data["files"][-1] == f"{tmp_path}/na\\udcffme/report.html" and data["files"][-1] in end.stdout
    assert data["notes"] == ["The last line of steps.jsonl is torn: 2 whole steps."]
    page = (log / "report.html").read_text(encoding="utf-8")
    assert "na\\udcffme" in page and "is torn" in page and "did not end" in page


def test_a_run_that_ran(launch, tmp_path):
    """Real ranks on a hybrid mesh, with prefetch: the trace keeps the rules and knows every message."""
    flags = ("--stage", "3", "--shard-size", "2", "--steps", "3", "--backward-prefetch", "1")
    end = launch(4, "-m", "mpizero.train", *flags, "--log", tmp_path)
    assert end.status == 0, end.output
    assert main([str(tmp_path), "--json", str(tmp_path / "tables.json")]) == 0
    data = json.loads((tmp_path / "tables.json").read_text())
    assert data["notes"] == [] and data["begin"][0]["value"] == data_of(tmp_path / "summary.json")["run"]
    assert all(row["equal"] for name in ("memory", "traffic", "actions") for row in data[name])
    traced = json.loads((tmp_path / "perfetto.json").read_text())
    arrows, trace = check(traced["traceEvents"], 4)["s"], json.loads((tmp_path / "trace.json").read_text())
    counted = sum(each["messages"] for rank in trace["ranks"] for each in rank["collectives"])
    assert traced["otherData"]["messages"] == counted > 0
    assert len(arrows) == counted and traced["otherData"]["messages_without_arrow"] == 0
