"""docs/files.md names every key that a run writes, and none that it does not."""

import json
import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parent.parent / "docs" / "files.md"
pytestmark = pytest.mark.launches


def documented() -> dict[str, set[str]]:
    """Heading or `table[]` -> the keys in the first column of the table that follows."""
    found: dict[str, set[str]] = {}
    for line in PAGE.read_text().splitlines():
        if heading := re.match(r"## (\S+?),|`(\w+)\[\]`:", line):
            found[heading[1] or heading[2]] = keys = set()
        elif line.startswith("| `"):
            keys |= set(re.findall(r"`(\w+)`", line.split("|")[1]))
    return found


def test_page_and_run_name_the_same_keys(launch, tmp_path):
    end = launch(None, "-m", "mpizero.train", "--steps", "1", "--log", tmp_path)
    assert end.status == 0, end.output
    page, summary = documented(), json.loads((tmp_path / "summary.json").read_text())
    assert page["run.json"] == set(json.loads((tmp_path / "run.json").read_text()))
    assert page["steps.jsonl"] == set(json.loads((tmp_path / "steps.jsonl").read_text()))
    assert page["summary.json"] == set(summary)
    assert page["memory"] == set(summary["memory"][0]) and page["traffic"] == set(summary["traffic"][0])
