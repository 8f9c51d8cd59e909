"""reproduce.sh: all claims of the lecture come out at once, and its status tells if one does not."""

from __future__ import annotations

import importlib.util
import re
import sys

import pytest

from tests.scripts.written import CALL, DEMOS, SCRIPTS, written
from tests.support.launch import ROOT

REPRODUCE = SCRIPTS / "reproduce.sh"


def test_all_at_once(launch, tmp_path):
    end = launch(None, *CALL, "bash", REPRODUCE, tmp_path / "out", env={"PYTHON": sys.executable}, timeout=400)
    assert end.status == 0, end.output
    data = {name: written(tmp_path / "out" / f"{name}.json", name) for name in DEMOS}
    count = sum(each["claims"] for each in data.values())
    assert count == sum(each["agree"] for each in data.values()) > 240
    report = (tmp_path / "out" / "report.md").read_text()
    assert f"**{count} claims, {count} agree.**" in report and "**NO**" not in report
    assert "do not come out" not in report and f"\n{count} claims, {count} agree.\n" in end.stdout
    kinds = {kind: list(map(int, counts)) for kind, *counts in re.findall(
        r"^\| (\w+)[^|]* \| (\d+) \| (\d+) \| (\d+) \|$", report, re.MULTILINE)}
    assert sum(row[0] for row in kinds.values()) == count
    assert kinds["definition"][:2] == [0, 0] and kinds["definition"][2] > 0
    readme = (ROOT / "README.md").read_text()
    assert f"Of the {count} claims that" in readme
    [ours] = re.findall(r"(\d+) of them ours", report)
    assert f"{ours} of them are ours" in readme
    assert all(re.search(rf"\b{kinds[kind][0]}\b", readme) for kind in kinds if kind != "definition")
    assert all(kinds[kind][0] == kinds[kind][1] > 20 for kind in kinds if kind != "definition") and len(kinds) == 7
    assert "B3BBBBBBB2BBBBBBB1BBBBBBB0BBBBBB" in report and data["02_zero_stages"]["where"] in report
    (few,) = [demo for demo in data["02_zero_stages"]["demos"] if demo["demo"] == 5]
    assert [row[3:5] for row in few["data"]["rows"] if row[0] == 3] == [
        [522_528, 87_088], [261_264, 87_088], [261_264, 130_632], [217_720, 87_088], [174_176, 130_632]]
    assert "in one process" in (tmp_path / "out" / "03_fsdp.txt").read_text()
    figures = [name for each in data.values() for demo in each["demos"] for name in demo["figures"]]
    assert all((tmp_path / "out" / "figures" / name).read_bytes().startswith(b"\x89PNG") for name in figures)
    assert all(f"(figures/{name})" in report for name in figures)
    assert max(len(line) for path in (tmp_path / "out").glob("*.txt") for line in path.read_text().splitlines()) <= 100
    assert len(figures) == (13 if importlib.util.find_spec("matplotlib") else 0)


@pytest.mark.parametrize("wrong", [None, *DEMOS, "write_report"])
def test_the_status_of_each_script_counts(launch, tmp_path, wrong):
    """With a Python that runs nothing, and fails at one script."""
    python, mpirun = tmp_path / "python", tmp_path / "mpirun"
    python.write_text(f'#!/bin/sh\ncase "$*" in *{wrong}.py*) exit 1;; *matplotlib*) exit 1;; esac\n')
    mpirun.write_text('#!/bin/sh\nshift 2; exec "$@"\n')
    for path in (python, mpirun):
        path.chmod(0o755)
    end = launch(None, *CALL, "bash", REPRODUCE, tmp_path / "out", "--mpirun", mpirun, env={"PYTHON": str(python)})
    assert end.status == (0 if wrong is None else 1), end.output


def test_reproduce_tells_scripts_that_did_not_run(launch, tmp_path, no_matplotlib):
    (tmp_path / "02_zero_stages.json").write_text("of an earlier run")
    end = launch(None, *CALL, "bash", REPRODUCE, tmp_path, "--mpirun", "false", timeout=120,
                 env={"PYTHON": sys.executable, "PYTHONPATH": no_matplotlib})
    assert end.status == 1, end.output
    report = (tmp_path / "report.md").read_text()
    assert "**Did not run to its end: 02_zero_stages, 03_fsdp, 07_master_weights.**" in report


@pytest.mark.parametrize("words, message", [
    ((), "DIR is missing"), (("a", "b"), "one DIR, not also b"), (("--quick",), "unknown option --quick"),
    (("a", "--mpirun"), "--mpirun needs a command"),
])
def test_mistakes_of_reproduce(launch, tmp_path, words, message):
    end = launch(None, *CALL, "bash", REPRODUCE, *words, cwd=tmp_path)
    assert end.status == 2 and message in end.stderr, end.output
    assert "usage: bash scripts/reproduce.sh DIR" in end.stderr
    assert not list(tmp_path.iterdir())
