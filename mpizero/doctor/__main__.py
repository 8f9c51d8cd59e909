"""What is wrong with this machine for mpizero, and how to cure it; how fast it is, for plans.

Looks at MPI and its mpirun, where ranks run, BLAS threads, interfaces, memory and versions; measures arithmetic,
updates, memory and, with several ranks, our rings inside and between hosts. All ranks measure at once, as in training;
it takes some ten seconds. A rank that gets no answer for a minute (MPIZERO_TIMEOUT) says from whom. Exit status: 0 if
nothing is wrong, or for warnings alone; 1 for an error that was found; 2 for a mistake in the command."""

from __future__ import annotations

import argparse
import os
import sys
import textwrap
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from typing import Any

from mpizero.cli import Parser, on_rank_0, spelled
from mpizero.comm import Group, run_main, start
from mpizero.doctor import judge, judge_links, rings, speed
from mpizero.doctor.facts import Facts
from mpizero.doctor.findings import Finding, merged, wrong
from mpizero.doctor.host import Host, this_host
from mpizero.doctor.launched import started
from mpizero.doctor.machine import Links, as_machine, described
from mpizero.doctor.fit import Timing
from mpizero.doctor.rank import Rank, this_rank
from mpizero.doctor.show import findings_text, show, width
from mpizero.engine.alike import compare_flags
from mpizero.engine.gather import gather_data
from mpizero.errors import LaunchError
from mpizero.launcher import rank_in_job
from mpizero.output import check_writable, printer, write_json

EXAMPLE = """examples:
  python -m mpizero.doctor
  mpirun -n 4 python -m mpizero.doctor --json machine.json
  python -m mpizero.plan fit --params 13e9 --ranks 64 --device-memory 80GB --machine machine.json"""
PATIENCE = "60"  # seconds that a rank waits for others, unless MPIZERO_TIMEOUT says otherwise
QUIET = 5.0  # seconds after which a terminal is told what goes on
Say = Callable[[str], None]


class BrokenMPI(LaunchError):
    """MPI does not start; status: as of an error that was found."""

    status = 1


@spelled()
def main(argv: Sequence[str] | None = None) -> int:
    """Every rank measures; rank 0 judges and speaks. The exit status."""
    options = parser().parse_args(sys.argv[1:] if argv is None else argv)
    os.environ.setdefault("MPIZERO_TIMEOUT", PATIENCE)
    world = _start()
    compare_flags(vars(options), world)
    on_rank_0(world, lambda: check_writable("--json", options.json))
    facts = gathered(world)
    speeds, links = measured(world, _progress(world.rank))
    status = on_rank_0(world, lambda: report(facts, speeds, links, options.json, printer(world.rank)))
    return int(gather_data(world, status)[0])


def parser() -> argparse.ArgumentParser:
    about = "\n\n".join(textwrap.fill(paragraph, 100, break_on_hyphens=False)
                        for paragraph in (__doc__ or "").split("\n\n"))
    made = Parser(prog="python -m mpizero.doctor", description=about, epilog=EXAMPLE)
    made.add_argument("--json", metavar="FILE", help="write facts, findings, and the `machine` that python -m "
                      "mpizero.plan fit, timeline, units and traffic read by --machine FILE")
    return made


def _start() -> Group:
    """BrokenMPI with the cure where MPI does not start; what can be seen without it is told first."""
    try:
        return start()
    except LaunchError as error:
        if rank_in_job() in (None, 0):
            rank, host = this_rank(None), this_host()
            facts = Facts((rank,), {rank.host: host}, started(""))
            told = [each for each in judge.judge(facts) if each.subject not in ("mpirun", "placement")]
            printer(0)(findings_text(told, width(), 1) + "\n")
        raise BrokenMPI(str(error)) from None


def gathered(world: Group) -> Facts:
    """The same on every rank. Collective."""
    every = gather_data(world, {"rank": asdict(this_rank(world)), "host": asdict(this_host())})
    ranks = tuple(Rank.from_json(each["rank"]) for each in every)
    hosts = {rank.host: Host.from_json(each["host"]) for rank, each in reversed(list(zip(ranks, every, strict=True)))}
    return Facts(ranks, {name: hosts[name] for name in dict.fromkeys(world.hosts)}, started(world.library))


def measured(world: Group, say: Say) -> tuple[speed.Speeds, Links]:
    """The same on every rank. Collective."""
    say("measuring arithmetic")
    speeds = speed.measure(world)
    say("measuring rings inside hosts")
    inside, alone, beside = rings.inside(world), list[Timing](), list[Timing]()
    carried: dict[str, int] = {}
    if len(set(world.hosts)) > 1:
        say("measuring rings between hosts")
        alone, beside, carried = rings.between(world)
    told = gather_data(world, {"inside": [asdict(each) for each in inside], "carried": carried})
    firsts = [told[world.hosts.index(host)] for host in dict.fromkeys(world.hosts)]
    of_hosts = tuple(Timing(**each) for first in firsts for each in first["inside"])
    return speeds, Links(of_hosts, tuple(alone), tuple(beside),
                         tuple(first["carried"] for first in firsts) if alone else ())


def report(facts: Facts, speeds: speed.Speeds, links: Links, path: str | None, say: Say) -> int:
    """Judge, print and write; the exit status."""
    when = datetime.now(timezone.utc).isoformat(timespec="seconds")
    found = described(speeds, links, facts.where, next(iter(facts.hosts.values())), when)
    rates = found["machine"]
    findings = merged([*judge.judge(facts, speeds), judge.arithmetic(), *judge_links.judge(facts, links, rates)])
    say(show(facts, speeds, links, rates, findings, width()))
    if path is not None:
        write_json(path, found | record(facts, speeds, links, rates, findings, when))
    return 1 if wrong(findings) else 0


def record(facts: Facts, speeds: speed.Speeds, links: Links, rates: dict[str, Any], findings: Sequence[Finding],
           when: str) -> dict[str, Any]:
    """What the JSON holds beside the machine."""
    machine, first = as_machine(rates), facts.ranks[0]
    return {"measured": {"when": when, "library": first.library, "ranks": len(facts.ranks), "hosts": facts.where,
                         "versions": first.versions},
            "speeds": asdict(speeds),
            "rings": [asdict(each) | {"predicted": each.predicted(machine)} for each in links.all],
            "findings": [asdict(each) for each in findings], "facts": asdict(facts)}


def _progress(rank: int) -> Say:
    """On a terminal, what goes on if it lasts; nothing elsewhere."""
    begin, tell = time.monotonic(), rank == 0 and sys.stderr.isatty()

    def say(text: str) -> None:
        if tell and time.monotonic() - begin > QUIET:
            print(f"{text} ...", file=sys.stderr, flush=True)

    return say


if __name__ == "__main__":
    run_main(main)
