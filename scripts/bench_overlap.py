"""What overlap, prefetch, the limit and hybrid sharding are worth on the ranks and links at hand, beside the simulator.

    bash scripts/run_hosts.sh 2 2 --rate 1gbit --pin --exec python scripts/bench_overlap.py --json FILE
    mpirun -n 2 python scripts/bench_overlap.py          # one host; with --hostfile, several

First `mpizero.doctor` measures the machine (or `--machine` names what it wrote). Then the same GPT trains in each of
the cases, in turn, several rounds of steps each; figures are medians over rounds, ratios are taken within a round.
Beside each stands what the simulator of `mpizero.plan timeline` makes of the case's own list of actions with the
measured machine; `hidden` is what overlap saved, over what it saves there. Weights must have the same bits in all cases
of one mesh and the same units, and each rank's peak must be the planned one: else the status is 1.

`--json` has `machine` (as of the doctor), `busy_cores` (by other programs), `hosts` of the ranks, `library`, `rows`.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from mpizero.cli import Parser, on_rank_0, spelled  # noqa: E402  before NumPy: it sets the number of BLAS threads
from mpizero.comm import Group, run_main, start  # noqa: E402
from mpizero.doctor.__main__ import measured  # noqa: E402
from mpizero.doctor.machine import as_machine, compute_rates, link_rates  # noqa: E402
from mpizero.dtypes import numpy_dtype  # noqa: E402
from mpizero.engine.config import TrainConfig  # noqa: E402
from mpizero.engine.gather import gather_data  # noqa: E402
from mpizero.engine.job import Job, prepare  # noqa: E402
from mpizero.engine.resolve import resolve  # noqa: E402
from mpizero.engine.summary import summarise  # noqa: E402
from mpizero.engine.trainer import Progress, run_steps  # noqa: E402
from mpizero.errors import ConfigError  # noqa: E402
from mpizero.machine import Machine  # noqa: E402
from mpizero.output import check_writable, tell, write_json  # noqa: E402
from mpizero.plan.measured import read_machine  # noqa: E402
from mpizero.plan.options import argument_type  # noqa: E402
from mpizero.plan.rates import RATES, machine_of  # noqa: E402
from mpizero.planner import model as planned  # noqa: E402
from mpizero.planner.costs import machine_costs  # noqa: E402
from mpizero.planner.timeline import Timeline, simulate  # noqa: E402
from mpizero.text import table  # noqa: E402

CASES: dict[str, dict[str, Any]] = {
    "off": {"overlap": "off"},
    "on": {"overlap": "on"},
    "on, prefetch 1": {"overlap": "on", "backward_prefetch": 1, "forward_prefetch": 1},
    "on, prefetch 3": {"overlap": "on", "backward_prefetch": 3, "forward_prefetch": 3},
    "on, prefetch 3, limit 2": {"overlap": "on", "backward_prefetch": 3, "forward_prefetch": 3, "limit_all_gathers": 2},
}
# The trade-off of `mpizero.plan units`: smaller units take less memory and more collectives. A unit of a size takes
# one segment after the other until it has that many bytes.
UNITS = {f"units of {words}": {**CASES["on, prefetch 1"], "wrap": wrap} for words, wrap in {
    "a layer": "layer", "a block": "block", "6 MB": "6MB", "12 MB": "12MB", "24 MB": "24MB"}.items()}
HYBRID = ("off", "on, prefetch 1")  # the cases of which hybrid sharding has its own
IDLE = 0.2  # cores that may be busy with something else
LEGEND = ("step s: median of rounds; simulated: of the same list. hidden: seconds that overlap saved, over those",
          "that it saves in the simulator; - where that is next to nothing. Peak bytes (of model states) and",
          "messages are of a rank, bytes between hosts of all ranks, each in a step.")
LEAST = 0.02  # of a step: what could be hidden is less, and no figure for how much of it was
Row = dict[str, Any]


@dataclass
class Case:
    """A training run. played: by the simulator. rounds: seconds of a step in each, the median of the round's steps."""

    name: str
    job: Job
    played: Timeline
    rounds: list[float] = field(default_factory=list)
    last: Progress = field(default_factory=Progress)

    def run(self, steps: int) -> None:
        """Collective."""
        self.last = run_steps(self.job, steps=steps)
        self.rounds.append(statistics.median(record.seconds for record in self.last.records))

    @cached_property
    def told(self) -> Row:
        """The summary, once all rounds are over. Collective."""
        return summarise(self.job, self.last)


@spelled()
def main(argv: Sequence[str] | None = None) -> int:
    options = parser().parse_args(sys.argv[1:] if argv is None else argv)
    resolve(TrainConfig(**common(options)))  # raises, before anything is measured
    numpy_dtype(options.dtype)  # so does this, where its library is not installed
    for name in ("rounds", "steps"):
        if getattr(options, name) < 1:
            raise ConfigError(f"--{name} {getattr(options, name)} leaves nothing to measure: use 1 or more")
    world = start()
    on_rank_0(world, lambda: check_writable("--json", options.json))
    machine, busy = measure(world, options.dtype) if options.machine is None else (read(options, world), 0.0)
    jobs = {name: prepare(TrainConfig(**settings), world) for name, settings in configs(options, world).items()}
    cases = [Case(name, job, simulated(job, machine)) for name, job in jobs.items()]
    for turn in range(1 + options.rounds):  # the first, to become warm, does not count
        for case in cases:
            case.run(options.steps)
            if world.rank == 0 and sys.stderr.isatty():
                print(f"round {turn} of {options.rounds}: {case.name}, {case.rounds[-1]:.3f} s", file=sys.stderr)
    rows = [row(case, cases) for case in cases]  # on every rank: summaries are collective
    answer = {"machine": vars(machine), "busy_cores": busy, "hosts": list(world.hosts), "library": world.library,
              "rows": rows}
    status = 0 if all(each["same_bits"] and each["peak_is_planned"] for each in rows) else 1
    if world.rank == 0:
        tell(show(answer))
        if options.json is not None:
            write_json(options.json, answer)
    return int(gather_data(world, status)[0])


def measure(world: Group, dtype: str) -> tuple[Machine, float]:
    """What `mpizero.doctor` finds, and how many cores others keep busy meanwhile. Collective."""
    speeds, links = measured(world, lambda text: None)
    rates, by_dtype = compute_rates(speeds, world.hosts)
    busy = sum(cores for cores in speeds.busy if not math.isnan(cores))
    return as_machine({**rates, **by_dtype[dtype], **link_rates(links)}), busy


def read(options: argparse.Namespace, world: Group) -> Machine:
    """ConfigError where links between these hosts were never measured."""
    if len(set(world.hosts)) > 1 and "alpha" not in options.machine.rates:
        raise ConfigError(f"--machine {options.machine.path} was measured on one host, so it says nothing of links "
                          "between hosts: measure these by mpizero.doctor, or leave it out")
    return machine_of({**dict.fromkeys((*RATES, "gpu", "nics", "rings")), "machine": options.machine,
                       "dtype": options.dtype})


def common(options: argparse.Namespace) -> Row:
    """What the `TrainConfig`s of all cases say."""
    return {"model": "gpt", "stage": "3", "dtype": options.dtype, "layers": options.layers, "heads": options.heads,
            "d_model": options.d_model, "batch_size": options.batch_size, "steps": 10**6}


def configs(options: argparse.Namespace, world: Group) -> dict[str, Row]:
    """Of each case, what a TrainConfig says. Hybrid sharding divides inside hosts, where these have several ranks."""
    same = common(options)
    found = {name: {**same, **case} for name, case in (UNITS if options.units else CASES).items()}
    inside = world.size // len(set(world.hosts))
    if 1 < inside < world.size and not options.units:
        found |= {f"hybrid, {name}": {**same, **CASES[name], "shard_size": inside} for name in HYBRID}
    return found


def row(case: Case, cases: Sequence[Case]) -> Row:
    """What a case has shown. hidden: what overlap saved, over what it could have saved where the simulator is right;
    None where that is next to nothing."""
    like = [each for each in cases if each.job.geometry == case.job.geometry]
    played, off = case.played, like[0].played.finish
    could = off - played.finish
    return {
        "case": case.name, "seconds": statistics.median(case.rounds[1:]), "rounds": case.rounds[1:],
        "to_first": ratio(case, cases[0]), "simulated": played.finish,
        "simulated_to_first": played.finish / cases[0].played.finish, "compute": played.compute,
        "communication": played.communication, "hidden": saved(case, like[0]) / could if could > LEAST * off else None,
        "messages_per_step": case.told["traffic"][0]["messages_per_step"],
        "between_hosts_bytes_per_step": sum(each["between_hosts_bytes_per_step"] for each in case.told["traffic"]),
        "peak_bytes": max(each["peak"] for each in case.told["memory"]),
        "peak_is_planned": all(each["peak"] == each["planned_peak"] for each in case.told["memory"]),
        "same_bits": case.told["weights_sha256"] == like[0].told["weights_sha256"],
    }


def ratio(case: Case, other: Case) -> float:
    """Of their seconds, within a round."""
    return statistics.median(mine / its for mine, its in zip(case.rounds[1:], other.rounds[1:], strict=True))


def saved(case: Case, off: Case) -> float:
    """Seconds, within a round."""
    return statistics.median(its - mine for mine, its in zip(case.rounds[1:], off.rounds[1:], strict=True))


def simulated(job: Job, machine: Machine) -> Timeline:
    """The case's own list, with the seconds that the machine's rates make of its actions."""
    sizes, hosts = job.settings.sizes, job.world.hosts
    model = planned.gpt(sizes.layers, sizes.d_model, sizes.heads, sizes.vocab, sizes.context)
    costs = machine_costs(model, job.geometry, machine, job.settings.batch_size * sizes.context,
                          len(hosts) // len(set(hosts)))
    return simulate(job.lists.step(), job.geometry, costs, ahead=False)


def show(answer: Row) -> str:
    head = ["case", "step s", "to first", "simulated", "to first", "measured/simulated", "hidden",
            "peak bytes", "messages", "bytes between hosts"]
    lines = [[each["case"], f"{each['seconds']:.3f}", f"{each['to_first']:.2f}", f"{each['simulated']:.3f}",
              f"{each['simulated_to_first']:.2f}", f"{each['seconds'] / each['simulated']:.2f}",
              "-" if each["hidden"] is None else f"{each['hidden']:.0%}", f"{each['peak_bytes']:,}",
              f"{each['messages_per_step']:,}", f"{each['between_hosts_bytes_per_step']:,}"] for each in answer["rows"]]
    first = answer["rows"][0]
    wrong = [f"{each['case']}: {words}" for each in answer["rows"] for key, words in (
        ("same_bits", "other weights than without overlap"), ("peak_is_planned", "the peak is not the planned one"))
        if not each[key]]
    if answer["busy_cores"] > IDLE:
        wrong.insert(0, f"warning: other programs keep {answer['busy_cores']:.1f} cores busy: measure again without")
    return "\n".join([table(head, lines), "", *LEGEND, "A step computes for "
                      f"{first['compute']:.3f} s and communicates for {first['communication']:.3f} s, says the "
                      "simulator, of the machine as it was measured.", *wrong])


def parser() -> argparse.ArgumentParser:
    made = Parser(prog="scripts/bench_overlap.py", description=__doc__)
    for flag, default, words in (
            ("layers", 8, "blocks of the GPT"), ("d-model", 256, "its width"), ("heads", 8, "of a block"),
            ("batch-size", 2, "samples of a rank in a step"), ("rounds", 5, "of all cases, that count"),
            ("steps", 4, "in a round of a case")):
        made.add_argument(f"--{flag}", type=int, default=default, metavar="N", help=f"{words} ({default})")
    made.add_argument("--units", action="store_true", help="other cases: overlap and prefetch with smaller and larger "
                      "units, the trade-off of mpizero.plan units")
    made.add_argument("--dtype", choices=("float16", "float32", "bfloat16"), default="float32", help="(float32)")
    made.add_argument("--machine", type=argument_type(read_machine), metavar="FILE",
                      help="measured before, by python -m mpizero.doctor --json FILE")
    made.add_argument("--json", metavar="FILE", help="write the rows to this file")
    return made


if __name__ == "__main__":
    run_main(main)
