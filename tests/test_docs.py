"""The pages: files that they send a reader to are there, README names every page, and commands are taken."""

from __future__ import annotations

import importlib
import re
import shlex
from pathlib import Path

import pytest

from mpizero import bench, train, verify
from mpizero.checkpoint import __main__ as checkpoint
from mpizero.plan.__main__ import _joined, _parser
from tests.support.launch import ROOT

PAGES = [ROOT / "README.md", ROOT / "ARCHITECTURE.md", *sorted((ROOT / "docs").glob("*.md")),
         ROOT / "hostfiles" / "README.md", ROOT / "scripts" / "README.md"]
STARTS = {"mpizero.train": train, "mpizero.verify": verify, "mpizero.bench": bench}
MEASURED = ("--machine", "machine.json")  # which is there once the doctor has written it


class Taken(Exception):
    """The command would start now."""


def taken(*_, **__):
    raise Taken


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def commands(page: Path) -> list[list[str]]:
    """The words from `python` on of each command that stands indented, in order, without those of a shell."""
    text = re.sub(r"\\\n\s+", " ", page.read_text(encoding="utf-8"))
    lines = re.findall(r"^ {4,6}((?:mpirun|python) .+|pip .+ && mpirun .+)$", text, re.MULTILINE)
    split = [shlex.split(line.replace('"$(command -v python)"', "python"), comments=True) for line in lines]
    return [words[words.index("python") + 1 :] for words in split if "python" in words]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_what_a_page_links_to_is_there(page):
    links = re.findall(r"\]\(([^)]+)\)", page.read_text(encoding="utf-8"))
    for link in (link for link in links if not link.startswith("https://")):
        path, _, section = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), link
        headings = re.findall(r"^#+ (.+)$", target.read_text(encoding="utf-8"), re.MULTILINE) if section else []
        assert not section or section in {re.sub(r"[^\w -]", "", each.lower()).replace(" ", "-") for each in headings}


def test_architecture_names_files_that_are_there():
    named = re.findall(r"`((?:[a-z_]+/)+(?:[a-z_]+\.py)?)[`:]", (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8"))
    assert len(named) > 30
    assert [path for path in named if not (ROOT / "mpizero" / path).exists() and not (ROOT / path).exists()] == []


def test_commands_are_found():
    assert len(commands(PAGES[0])) > 15 and sum(len(commands(page)) for page in PAGES) > 60


def test_readme_names_every_page():
    pages = (ROOT / "README.md").read_text(encoding="utf-8").partition("## Pages\n")[2]
    assert set(re.findall(r"\]\(([^)]+)\)", pages)) == {name_of(page) for page in PAGES[1:]}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_are_taken(page, monkeypatch):
    for module in STARTS.values():
        monkeypatch.setattr(module, "start", taken)
    for words in commands(page):
        if words[0] != "-m":
            assert words[0] in ("FILE", "-c") or (ROOT / words[0]).is_file(), words
        elif words[1] == "mpizero.plan":
            assert _parser().parse_args(_joined([word for word in words[2:] if word not in MEASURED])), words
        elif words[1] == "mpizero.checkpoint":
            assert checkpoint._parser().parse_args(words[2:]), words
        elif words[1] in STARTS and "--config" not in words:
            with pytest.raises(Taken):
                STARTS[words[1]].main(words[2:])
        else:
            importlib.import_module(words[1])
