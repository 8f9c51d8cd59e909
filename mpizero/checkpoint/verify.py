"""Is a checkpoint whole? Reads every byte of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mpizero.checkpoint.contents import check_numbers, read_contents
from mpizero.checkpoint.format import ABOUT
from mpizero.errors import CheckpointError
from mpizero.quantities import in_units
from mpizero.text import counted


def verify(path: str | Path) -> dict[str, Any]:
    """As `--json` has it. problems: a sentence for each file that is not what it should be; none is looked for behind a
    JSON file that is damaged."""
    problems: list[str] = []
    found: dict[str, Any] = {"path": str(path), "folder": None, "step": None, "parts": 0, "bytes": 0}
    try:
        contents = read_contents(path)
        found |= {"folder": str(contents.folder), "step": contents.about["step"], "parts": len(contents.parts),
                  "elements": sum(param.numel * len(param.states) for param in contents.params),
                  "bytes": sum(part.size for part in contents.parts)}
        for part in contents.parts:
            try:
                check_numbers(contents.file_of(part), part)
            except CheckpointError as error:
                problems.append(str(error))
        named = {ABOUT, *(f"{part.name}.{end}" for part in contents.parts for end in ("bin", "json"))}
        problems += [f"{path} is no file of this checkpoint: take it away" for path in sorted(contents.folder.iterdir())
                     if path.name not in named]
    except CheckpointError as error:
        problems.append(str(error))
    return {**found, "problems": problems, "whole": not problems}


def show(found: dict[str, Any]) -> str:
    """In one line."""
    return (f"{found['folder']}: whole. Step {found['step']:,}, {counted(found['parts'], 'part')}, "
            f"{in_units(found['bytes'])} read: all checksums are right, each of {found['elements']:,} numbers is there "
            "once")
