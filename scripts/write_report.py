"""Put what the four scripts have written together into one Markdown page.

FOLDER/report.md, from FOLDER/NAME.json. See reproduce.sh.
"""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import claims

from mpizero.errors import ConfigError

SCRIPTS = ("01_memory", "02_zero_stages", "03_fsdp", "04_offload")
FIGURES = "figures"  # folder beside the report
Told = dict[str, Any]


def main(argv: Sequence[str] | None = None) -> int:
    """0 if all scripts have run and every claim agrees."""
    parser = claims.Parser(prog="write_report.py", description=__doc__,
                           epilog="example:\n  python scripts/write_report.py runs/lecture")
    parser.add_argument("folder", metavar="FOLDER")
    folder = Path(parser.parse_args(sys.argv[1:] if argv is None else argv).folder)
    told = {name: json.loads(path.read_text(encoding="utf-8")) if (path := folder / f"{name}.json").exists() else None
            for name in SCRIPTS}
    try:
        (folder / "report.md").write_text(page(told), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{folder / 'report.md'} cannot be written: {error.strerror}") from None
    return 0 if all(each and each["claims"] == each["agree"] for each in told.values()) else 1


def page(told: dict[str, Told | None]) -> str:
    """The whole report."""
    ran = {name: each for name, each in told.items() if each}
    count, agree = (sum(each[key] for each in ran.values()) for key in ("claims", "agree"))
    missing = [name for name in told if name not in ran]
    verdict = f"**{count} claims, {agree} agree.**"
    if missing:
        verdict += f" **Did not run to its end: {', '.join(missing)}.**"
    where = sorted({each["where"] for each in ran.values() if each["where"]})
    lines = ["# Claims of the lecture, as they come out here", verdict, claims.SOURCES,
             f"Machine: {'; '.join([platform.platform(), f'Python {platform.python_version()}', *where])}.",
             _rows(["script", "claims", "agree", "seconds"], [_summary(name, each) for name, each in told.items()])]
    if not any(demo["figures"] for each in ran.values() for demo in each["demos"]):
        lines.append("No figures: matplotlib is not installed (`pip install 'mpizero[plot]'`).")
    for name, each in ran.items():
        lines += [f"## {name}: {each['title']}", *[_demo(demo) for demo in each["demos"]]]
    return "\n\n".join(lines) + "\n"


def _summary(name: str, each: Told | None) -> list[Any]:
    return [f"[{name}]({name}.txt)",
            *([each["claims"], each["agree"], f"{each['seconds']:.1f}"] if each else ["-", "did not run", "-"])]


def _demo(demo: Told) -> str:
    rows = [[claim["text"], claim["source"], claim["claimed"], f"{claim['how']}: {claim['found']}",
             "yes" if claim["agrees"] else "**NO**"]
            for claim in demo["claims"]]
    parts = [f"### {demo['demo']}. {demo['title']} (lecture {demo['section']})"]
    parts += [f"```\n{demo['shown']}\n```"] if demo["shown"] else []
    parts += [f"Ours: {demo['ours']}"] if demo["ours"] else []
    parts += [f"![{name.removesuffix('.png')}]({FIGURES}/{name})" for name in demo["figures"]]
    return "\n\n".join([*parts, _rows(["claim", "source", "claimed", "found", "agrees"], rows)])


def _rows(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table in Markdown."""
    cells = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in row) + " |" for row in cells)


if __name__ == "__main__":
    claims.alone(main)
