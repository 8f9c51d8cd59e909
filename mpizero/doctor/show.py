"""What people read: tables of facts and rates, then what is wrong and the cures."""

from __future__ import annotations

import shutil
import statistics
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mpizero.doctor.facts import Facts
from mpizero.doctor.findings import ERROR, OK, WARNING, Finding
from mpizero.doctor.fit import Timing, misses
from mpizero.doctor.judge_links import micro
from mpizero.doctor.machine import Links, as_machine
from mpizero.doctor.speed import DTYPES, Speeds
from mpizero.quantities import in_units
from mpizero.text import counted, numbers, table

NARROW, WIDE = 60, 100  # columns
LEVELS = {ERROR: "ERROR", WARNING: "warning", OK: "ok"}
SHOWN = (2**10, 2**18, 2**24)  # sizes of rings; --json has all
MOST_HOSTS = 8  # in a table


def width() -> int:
    """Columns of the terminal, within reason."""
    return min(max(shutil.get_terminal_size((WIDE, 24)).columns, NARROW), WIDE)


def show(facts: Facts, speeds: Speeds, links: Links, rates: Mapping[str, Any], findings: Sequence[Finding],
         columns: int) -> str:
    """All of it. rates: the fields of `Machine` that were measured."""
    many = counted(len(facts.ranks), "rank")
    parts = [wrapped(f"{facts.ranks[0].library}; {many} on {counted(len(facts.hosts), 'host')}", columns),
             hosts_table(facts), interfaces_table(facts, links), speeds_table(speeds)]
    if links.all:
        parts += [rings_table(links, rates), wrapped(told(links, rates), columns)]
    return "\n\n".join([*parts, findings_text(findings, columns, len(facts.hosts)), verdict(findings)])


def hosts_table(facts: Facts) -> str:
    rows = []
    for name, host in list(facts.hosts.items())[:MOST_HOSTS]:
        ranks = [rank for rank, where in enumerate(facts.where) if where == name]
        rows.append([name, numbers(ranks), f"{facts.cores(name)} of {host.cores}", in_units(host.limit or host.memory),
                     "-" if host.shm_free is None else in_units(host.shm_free), host.processor[:28]])
    header = ["host", "ranks", "cores", "memory", "/dev/shm", "processor"]
    return table(header, rows, right=["memory", "/dev/shm"]) + _more(facts)


def _more(facts: Facts) -> str:
    left = len(facts.hosts) - MOST_HOSTS
    return f"\n... and {counted(left, 'more host')} (--json has all)" if left > 0 else ""


def interfaces_table(facts: Facts, links: Links) -> str:
    """Those that are up or have an address; what they sent while rings ran between hosts."""
    carried = dict(zip(facts.hosts, links.carried)) if links.carried else {}
    rows = [[name, each.name, each.address or "-", each.state or "?",
             f"{each.speed / 1e9:g} Gb/s" if each.speed else "not told", each.name == host.route and "default" or "",
             *([in_units(carried[name].get(each.name, 0))] if carried else [])]
            for name, host in list(facts.hosts.items())[:MOST_HOSTS]
            for each in host.interfaces if each.address or each.state == "up"]
    header = ["host", "interface", "address", "state", "speed", "route", *(["sent by rings"] if carried else [])]
    return table(header, rows, right=["speed", "sent by rings"]) + _more(facts)


def speeds_table(speeds: Speeds) -> str:
    """Of a rank, while all do the same."""
    rows = [*([f"matmul, {dtype}", *_spread(speeds.matmul[dtype], "FLOP/s")] for dtype in DTYPES),
            *([f"GPT block, {dtype}", *_spread(speeds.block[dtype], "FLOP/s")] for dtype in DTYPES),
            *([f"Adam, {dtype}", *_spread(speeds.update[dtype], "elements/s")] for dtype in DTYPES),
            ["copy in memory", *_spread(speeds.copied, "B/s")]]
    return table(["all ranks at once", "slowest rank", "median", "fastest"], rows,
                 right=["slowest rank", "median", "fastest"])


def _spread(rates: Iterable[float], unit: str) -> list[str]:
    rates = sorted(rates)
    return [rate_text(value, unit) for value in (rates[0], statistics.median(rates), rates[-1])]


def rate_text(value: float, unit: str) -> str:
    """`12.3 GFLOP/s`, `85 M elements/s`."""
    for prefix, scale in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= scale:
            gap = " " if " " in unit or unit.startswith("elements") else ""
            return f"{value / scale:.3g} {prefix}{gap}{unit}"
    return f"{value:.3g} {unit}"


def rings_table(links: Links, rates: Mapping[str, Any]) -> str:
    """Measured, of several hosts the slowest, beside what a plan says from the rates that were fitted."""
    machine, slowest = as_machine(dict(rates)), dict[tuple[str, str, int], Timing]()
    for each in links.all:
        key = ("inside hosts" if not each.leaving else each.where), each.op, each.nbytes
        slowest[key] = max(each, slowest.get(key, each), key=lambda timing: timing.seconds)
    rows = [[where, op, in_units(each.nbytes), micro(each.seconds), micro(each.predicted(machine)),
             f"{100 * (each.predicted(machine) / each.seconds - 1):+.0f} %"]
            for (where, op, _), each in slowest.items() if any(size <= each.nbytes < 1.1 * size for size in SHOWN)]
    return table(["ring", "collective", "array", "measured", "by the fit", "off"], rows,
                 right=["array", "measured", "by the fit", "off"])


def told(links: Links, rates: Mapping[str, Any]) -> str:
    """The fit in words, and how well it tells the times again."""
    parts = []
    if links.inside:
        parts.append(f"Inside a host a message takes {micro(rates['intra_alpha'])} however short, and "
                     f"{in_units(rates['intra_bandwidth'])}/s beyond it{_misses(links.inside, rates)}.")
    if links.alone:
        nics = counted(rates["nics"], "link")
        parts.append(f"Between hosts {micro(rates['alpha'])} and {in_units(rates['inter_bandwidth'])}/s"
                     f"{_misses(links.alone + links.beside, rates)}; rings that leave a host side by side have {nics} "
                     "of that speed.")
    return " ".join(parts)


def _misses(timings: tuple[Timing, ...], rates: Mapping[str, Any]) -> str:
    middle, _ = misses(timings, as_machine(dict(rates)))
    return f" (which tells half of {counted(len(timings), 'timing')} to {100 * middle:.0f} %)"


def findings_text(findings: Sequence[Finding], columns: int, hosts: int) -> str:
    """Worst first, each with its cure. hosts: how many there are."""
    order = [finding for level in LEVELS for finding in findings if finding.level == level]
    first, second = (max(len(word) for word in words) for words in (
        [LEVELS[each.level] for each in order], [each.subject for each in order]))
    indent = " " * (first + second + 4)
    lines = []
    for each in order:
        head = f"{LEVELS[each.level]:<{first}}  {each.subject:<{second}}  "
        lines.append(_filled(each.seen + _on(each, hosts), columns, head, indent))
        if each.cure:
            lines.append(_filled(f"cure: {each.cure}", columns, indent, indent + " " * len("cure: ")))
    return "\n".join(lines)


def _on(finding: Finding, hosts: int) -> str:
    """On which hosts, unless it is so on all of them."""
    if len(finding.hosts) in (0, hosts):
        return ""
    few = finding.hosts[:3]
    more = [f"{len(finding.hosts) - len(few)} more"] if len(finding.hosts) > len(few) else []
    return f" (on {', '.join([*few, *more])})"


def _filled(text: str, columns: int, first: str, others: str) -> str:
    return textwrap.fill(text, columns, initial_indent=first, subsequent_indent=others, break_on_hyphens=False,
                         break_long_words=False)


def verdict(findings: Iterable[Finding]) -> str:
    """In one line."""
    levels = [finding.level for finding in findings]
    said = [counted(levels.count(level), level) for level in (ERROR, WARNING) if level in levels]
    return f"{' and '.join(said)}: the cures stand above" if said else "nothing is wrong"


def wrapped(text: str, columns: int) -> str:
    return textwrap.fill(text, columns, break_on_hyphens=False, break_long_words=False)
