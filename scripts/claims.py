"""Claims, and how they are told: what the scripts share.

A demo gathers claims: what the lecture and the papers say beside what comes out here, and whether the two agree. Each
is of a kind, which says where the value comes from. What holds by definition, or is only quoted, is shown and not
counted. `tell` runs demos, prints them and writes them as JSON; its status is 1 as soon as one claim does not come out.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any, NoReturn

try:
    import mpizero  # noqa: F401  before NumPy: it sets the number of BLAS threads
except ModuleNotFoundError:  # a clone that is not installed
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from mpizero.cli import Parser
from mpizero.errors import ConfigError, MpizeroError
from mpizero.output import write_json

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDTH = 100
SOURCES = ("Sources: the lecture (CMU 15-779, Fall 2025, lecture 13), of which the text is at hand but not the tables; "
           "ZeRO (arXiv:1910.02054); ZeRO-Infinity (arXiv:2104.07857); ZeRO-Offload (arXiv:2101.06840); "
           "FSDP (arXiv:2304.11277). GB = 10^9 bytes; psi: parameters; N: ranks.")
USER_ERROR = 2  # exit status, as of every entry point

Value = bool | int | float | str
Values = Value | Sequence[Value]


KINDS = {  # where the value of a claim comes from
    "measured": "measured on ranks", "counted": "counted on ranks, by ledger and traffic log",
    "planned": "planned, from the actions that ranks run", "simulated": "simulated, with what is assumed",
    "computed": "computed: closed form, enumeration, arithmetic", "published": "published, numbers against each other",
    "definition": "definition",
}


@dataclass(frozen=True)
class Claim:
    """claimed and found as people read them. agrees: what this is all about; None where nothing is compared. source:
    the lecture's section; the paper's; `ours` where neither says so or how much. given: what a simulation assumes."""

    text: str
    source: str
    claimed: str
    found: str
    agrees: bool | None
    kind: str
    given: str = ""


@dataclass(frozen=True)
class Demo:
    """One demo of the lecture. shown: a table or chart. ours: what is assumed here. figures: name -> what draws it.
    data: for JSON."""

    title: str
    section: str
    claims: list[Claim]
    shown: str = ""
    ours: str = ""
    figures: dict[str, Callable[[], Figure]] = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)


def equal(text: str, source: str, claimed: Values, found: Values, unit: str = "", kind: str = "computed") -> Claim:
    """To the last bit."""
    return Claim(text, source, _say(claimed, unit), _say(found, unit), bool(claimed == found), kind)


def rounds_to(text: str, source: str, claimed: str, found: float, unit: str = "", kind: str = "computed") -> Claim:
    """claimed: a number with the digits that are printed, of which the last one is rounded."""
    printed = Decimal(claimed)
    half = Decimal(1).scaleb(int(printed.as_tuple().exponent)) / 2
    agrees = math.isfinite(found) and abs(Decimal(found) - printed) <= half
    return Claim(text, source, _say(claimed, unit), _say(found, unit), agrees, kind)


def between(text: str, source: str, low: float | None, high: float | None, found: float, unit: str = "",
            kind: str = "computed") -> Claim:
    """At least `low`, at most `high`; None: no bound."""
    words = {(False, False): f"{_say(low)} to {_say(high, unit)}", (False, True): f"at least {_say(low, unit)}",
             (True, False): f"at most {_say(high, unit)}"}[low is None, high is None]
    agrees = (low is None or low <= found) and (high is None or found <= high)
    return Claim(text, source, words, _say(found, unit), bool(agrees), kind)


def holds(text: str, source: str, claimed: str, found: str, agrees: bool, kind: str = "computed") -> Claim:
    """Anything else, in words."""
    return Claim(text, source, claimed, found, bool(agrees), kind)


def definition(text: str, source: str, value: Values, unit: str = "") -> Claim:
    """What is so because it is called so: shown, for the next claims stand on it, and counted nowhere as agreeing."""
    return Claim(text, source, _say(value, unit), "", None, "definition")


def quoted(text: str, source: str, value: Values, unit: str = "") -> Claim:
    """A published number that nothing here can be held against: shown, not counted."""
    return Claim(text, source, _say(value, unit), "", None, "published")


def of_kind(kind: str, *claims: Claim, given: str = "") -> list[Claim]:
    """The same claims, of this kind. given: what they assume."""
    return [replace(claim, kind=kind, given=given) for claim in claims]


def tally(claims: Iterable[Claim]) -> dict[str, dict[str, int]]:
    """Kind -> how many claims, how many of them agree, how many are shown without being claims."""
    every = list(claims)
    return {kind: {"claims": sum(claim.agrees is not None for claim in these),
                   "agree": sum(claim.agrees is True for claim in these),
                   "shown": sum(claim.agrees is None for claim in these)}
            for kind in KINDS if (these := [claim for claim in every if claim.kind == kind])}


def count_ours(claims: Iterable[Claim]) -> str:
    """How many of them neither the lecture nor a paper states."""
    count = sum(claim.source.startswith("ours") for claim in claims if claim.agrees is not None)
    return f"{count} of them ours: neither the lecture nor a paper states them, or not with that bound"


def _say(value: Any, unit: str = "") -> str:
    if isinstance(value, list | tuple):
        text = ", ".join(map(_say, value))
    elif isinstance(value, bool):
        text = "yes" if value else "no"
    else:
        text = f"{value:,}" if isinstance(value, int) else f"{value:,.6g}" if isinstance(value, float) else str(value)
    return f"{text} {unit}" if unit else text


# -- command line ------------------------------------------------------------------------------------------------------


def options(doc: str | None, example: str, demos: int, argv: Sequence[str] | None = None,
            runs: bool = False) -> argparse.Namespace:
    """The flags that all scripts have. runs: and one for what real ranks have counted, as data."""
    parser = Parser(prog=Path(sys.argv[0]).name, description=doc, epilog=f"example:\n  {example}")
    parser.add_argument("--demo", type=int, choices=range(1, demos + 1), metavar="K",
                        help=f"this one alone, 1 to {demos} (all)")
    parser.add_argument("--json", metavar="FILE", help="write claims, tables and numbers to this file")
    parser.add_argument("--figures", metavar="DIR",
                        help="draw figures into this folder, as PNG (needs matplotlib: extra plot)")
    if runs:
        parser.add_argument("--runs", metavar="FILE", type=_read_runs, default={},
                            help="show what ranks counted as well: a file that small_runs.py has written")
    found = parser.parse_args(sys.argv[1:] if argv is None else argv)
    if found.figures is not None:
        _prepare_figures(Path(found.figures))
    return found


def _read_runs(path: str) -> Any:
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise argparse.ArgumentTypeError(f"{path} cannot be read ({error}): make it with mpirun -n 4 python "
                                         "scripts/small_runs.py FILE") from None


def _prepare_figures(folder: Path) -> None:
    from mpizero.report.style import require_matplotlib
    require_matplotlib()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--figures {folder} cannot be made: {error.strerror}") from None


def tell(asked: argparse.Namespace, doc: str | None, demos: Sequence[Callable[[], Demo]], where: str = "",
         speaks: bool = True) -> int:
    """Run the demos in order; 0 if every claim agrees, else 1. where: the ranks. speaks: False on ranks that only take
    part."""
    say: Callable[..., None] = print if speaks else _silent
    begin, told = time.perf_counter(), {}
    title = str(doc).splitlines()[0]
    say("\n\n".join(fill(text, WIDTH) for text in (title, where, SOURCES) if text), flush=True)
    for number, demo in enumerate(demos, 1):
        if asked.demo in (None, number):
            told[number] = demo()
            say(show(number, told[number]), flush=True)
    every = [claim for demo in told.values() for claim in demo.claims]
    kinds = tally(every)
    count, agree = (sum(each[key] for each in kinds.values()) for key in ("claims", "agree"))
    summed = fill(f"{_show_kinds(kinds)}; {count_ours(every)}", WIDTH)
    say("\n".join(["", *[_show_claim(claim) for claim in every if claim.agrees is False], summed,
                   f"{count} claims, {agree} agree"]), flush=True)
    if speaks:
        seconds = time.perf_counter() - begin
        _write(asked, told, {"title": title, "where": where, "claims": count, "agree": agree, "kinds": kinds,
                             "seconds": seconds})
    return 0 if count and agree == count else 1


def alone(main: Callable[[], int]) -> NoReturn:
    """Run a script that needs no MPI: a mistake of the user's is one sentence and status 2."""
    try:
        sys.exit(main())
    except MpizeroError as error:
        print(f"mpizero: error: {error}", file=sys.stderr)
        sys.exit(USER_ERROR)
    except BrokenPipeError:  # `| head` has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)


# -- what is printed and written ---------------------------------------------------------------------------------------


def show(number: int, demo: Demo) -> str:
    """A demo as text that fits 100 columns."""
    ours = fill(f"Ours: {demo.ours}", WIDTH, break_on_hyphens=False) if demo.ours else ""
    claims = "\n".join(map(_show_claim, demo.claims))
    return "\n\n".join(filter(None,
                              [f"\n== {number}. {demo.title} (lecture {demo.section})", demo.shown, ours, claims]))


def _show_claim(claim: Claim) -> str:
    verdict = {True: "agrees", False: "DISAGREES", None: "quoted" if claim.kind == "published" else "defined"}
    first = fill(claim.text, WIDTH, initial_indent=f"{verdict[claim.agrees]:9}  ", subsequent_indent=" " * 11,
                 break_on_hyphens=False)
    return first + "\n" + fill(f"{_both_sides(claim)}  [{claim.source}]", WIDTH, initial_indent=" " * 11,
                               subsequent_indent=" " * 11, break_on_hyphens=False)


def _both_sides(claim: Claim) -> str:
    if claim.agrees is None:
        return claim.claimed
    kind = f"{claim.kind} with {claim.given}" if claim.given else claim.kind
    return f"claimed: {claim.claimed}; {kind}: {claim.found}"


def _show_kinds(kinds: dict[str, dict[str, int]]) -> str:
    """`planned 9, definition 0 (2 shown)`."""
    words = [f"{kind} {each['claims']}" + (f" ({each['shown']} shown, not counted)" if each["shown"] else "")
             for kind, each in kinds.items()]
    return ", ".join(words)


def _write(asked: argparse.Namespace, told: dict[int, Demo], summary: dict[str, Any]) -> None:
    drawn = {number: _draw(Path(asked.figures), demo) if asked.figures else [] for number, demo in told.items()}
    if asked.json:
        demos = [{"demo": number, "title": demo.title, "section": demo.section, "ours": demo.ours, "shown": demo.shown,
                  "figures": drawn[number], "data": demo.data, "claims": [asdict(claim) for claim in demo.claims]}
                 for number, demo in told.items()]
        write_json(asked.json, {**summary, "demos": demos})


def _draw(folder: Path, demo: Demo) -> list[str]:
    """Names of the files written."""
    from mpizero.report.style import save
    for name, draw in demo.figures.items():
        save(draw(), folder / f"{name}.png")
    return [f"{name}.png" for name in demo.figures]


def _silent(*text: str, flush: bool = False) -> None:
    """What ranks other than 0 print."""
