"""docs/lecture.md: what it sends a reader to is there, and its commands are taken."""

from __future__ import annotations

import ast
import re
import shlex

import pytest

from mpizero import bench, train, verify
from mpizero.plan.__main__ import _joined, _parser
from mpizero.report import __main__ as report
from tests.support.launch import ROOT
from tests.scripts.written import DEMOS

ROWS = [[cell.strip() for cell in line.strip("|").split("|")]
        for line in (ROOT / "docs" / "lecture.md").read_text(encoding="utf-8").splitlines()[8:] if line.startswith("|")]
SECTIONS = [row[0] for row in ROWS]


class Taken(Exception):
    """The command would start now."""


def taken(*_, **__):
    raise Taken


def test_every_section_with_something_to_run_is_there():
    numbers = {number for section in SECTIONS for number in re.findall(r"(?<![.\d])\d\.\d", section)}
    assert numbers >= {f"{chapter}.{part}" for chapter, parts in {2: "2345", 3: "123456", 4: "123", 5: "23456",
                                                                  6: "1234", 7: "12345"}.items() for part in parts}
    assert all(len(row) == 4 for row in ROWS)


@pytest.mark.parametrize("code", [row[3] for row in ROWS], ids=SECTIONS)
def test_the_code_stands_there(code):
    path, name = re.fullmatch(r"`(\S+\.py): (\w+)`", code).groups()
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}


@pytest.mark.parametrize("command", [row[1] for row in ROWS], ids=SECTIONS)
def test_the_command_is_taken(command, monkeypatch):
    words = shlex.split(re.fullmatch("`(.+)`", command)[1])
    if words[0] == "mpirun":
        assert words[1] == "-n" and 1 < int(words[2]) <= 4
        words = words[3:]
    assert words.pop(0) == "python"
    if words[0] != "-m":
        name = re.fullmatch(r"scripts/(\w+)\.py", words[0])[1]
        assert words[1:] == [] or words[1] == "--demo" and 1 <= int(words[2]) <= DEMOS[name]
        assert ("mpirun" in command) == (name in ("02_zero_stages", "03_fsdp"))
        return
    _, module, *flags = words
    if module == "mpizero.plan":
        assert _parser().parse_args(_joined(flags))
        return
    entry = {"mpizero.train": train, "mpizero.verify": verify, "mpizero.report": report,
             "mpizero.bench": bench}[module]
    monkeypatch.setattr(entry, "_write" if entry is report else "start", taken)
    with pytest.raises(Taken):
        (report.report if entry is report else entry.main)(flags)
