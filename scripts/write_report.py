"""Put what the scripts have written together into one Markdown page.

FOLDER/report.md, from FOLDER/NAME.json: claims that do not come out first, then how many there are of each kind. See
reproduce.sh.
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

SCRIPTS = ("01_memory", "02_zero_stages", "03_fsdp", "04_offload", "06_published", "07_master_weights")
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
    every = [claim for each in told.values() for claim in _claims(each)]
    print("\n" + _verdict(every))
    return 0 if all(told.values()) and all(claim["agrees"] is not False for claim in every) else 1


def page(told: dict[str, Told | None]) -> str:
    """The whole report."""
    ran = {name: each for name, each in told.items() if each}
    every = [claim for each in ran.values() for claim in _claims(each)]
    failed = [claim for claim in every if claim["agrees"] is False]
    missing = [name for name in told if name not in ran]
    where = sorted({each["where"] for each in ran.values() if each["where"]})
    lines = ["# Claims of the lecture, as they come out here", f"**{_verdict(every)}**"
             + (f" **Did not run to its end: {', '.join(missing)}.**" if missing else "")]
    if failed:
        lines += ["## Claims that do not come out", _table(failed)]
    lines += [_kinds(every),
              "What holds by definition, and what is only quoted, is shown below and counts nowhere as agreeing.",
              claims.SOURCES,
              f"Machine: {'; '.join([platform.platform(), f'Python {platform.python_version()}', *where])}.",
              _rows(["script", "claims", "agree", "seconds"], [_summary(name, each) for name, each in told.items()])]
    if not any(demo["figures"] for each in ran.values() for demo in each["demos"]):
        lines.append("No figures: matplotlib is not installed (`pip install 'mpizero[plot]'`).")
    for name, each in ran.items():
        lines += [f"## {name}: {each['title']}", *[_demo(demo) for demo in each["demos"]]]
    return "\n\n".join(lines) + "\n"


def _claims(each: Told | None) -> list[Told]:
    return [claim for demo in each["demos"] for claim in demo["claims"]] if each else []


def _verdict(every: Sequence[Told]) -> str:
    """`196 claims, 196 agree.`"""
    compared = [claim["agrees"] for claim in every if claim["agrees"] is not None]
    return f"{len(compared)} claims, {sum(compared)} agree."


def _kinds(every: Sequence[Told]) -> str:
    """How many there are of each kind, and how many are ours."""
    made = [claims.Claim(**claim) for claim in every]
    kinds = claims.tally(made)
    table = _rows(["kind", "claims", "agree", "shown, not counted"],
                  [[claims.KINDS[kind], *each.values()] for kind, each in kinds.items()])
    return f"{table}\n\n{claims.count_ours(made)}."


def _summary(name: str, each: Told | None) -> list[Any]:
    return [f"[{name}]({name}.txt)",
            *([each["claims"], each["agree"], f"{each['seconds']:.1f}"] if each else ["-", "did not run", "-"])]


def _demo(demo: Told) -> str:
    parts = [f"### {demo['demo']}. {demo['title']} (lecture {demo['section']})"]
    parts += [f"```\n{demo['shown']}\n```"] if demo["shown"] else []
    parts += [f"Ours: {demo['ours']}"] if demo["ours"] else []
    parts += [f"![{name.removesuffix('.png')}]({FIGURES}/{name})" for name in demo["figures"]]
    return "\n\n".join([*parts, _table(demo["claims"])])


def _table(every: Iterable[Told]) -> str:
    return _rows(["claim", "source", "claimed", "found", "agrees"], [
        [claim["text"], claim["source"], claim["claimed"],
         claim["kind"] + (f" with {claim['given']}" if claim["given"] else "")
         + (f": {claim['found']}" if claim["found"] else ""),
         {True: "yes", False: "**NO**", None: "not counted"}[claim["agrees"]]] for claim in every])


def _rows(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table in Markdown."""
    cells = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in row) + " |" for row in cells)


if __name__ == "__main__":
    claims.alone(main)
