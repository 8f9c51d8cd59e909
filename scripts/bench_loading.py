"""How long parameters off the device take to be whole: each rank reads 1/N, or the owner reads all (lecture 7.4).

    mpirun -n 4 python scripts/bench_loading.py                             # some minutes, most of them asleep
    mpirun -n 2 python scripts/bench_loading.py --from cpu --rate 400kB/s

The MLP trains on the first N ranks at stage 3, where every rank keeps 1/N of each unit, and at stage 3-broadcast, where
a unit has an owner; parameters, gradients and updates are off the device, each rank's link is as slow as --rate says,
and nothing overlaps. What is timed: from the beginning of a fetch until the unit is whole, the all-gather or the
broadcast included, in the steps' forward; the mean of ranks, the median of steps. (In backward one owner's gradient
goes down while the next owner fetches, so waits there are not of fetches alone.) Beside it, from the lists: the bytes
of the rank that fetches most of each unit, over the rate. ratio: of the owner's seconds to those of N links, which
should be N. Links sleep, so ranks may share cores if rates are low enough for links to rule. Status 1 where a ratio is
off N by more than --bound, or a byte off its plan.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from mpizero.cli import Parser, on_rank_0, spelled  # noqa: E402  before NumPy: it sets the number of BLAS threads
from mpizero.comm import Group, barrier, run_main, start  # noqa: E402
from mpizero.engine.config import TrainConfig  # noqa: E402
from mpizero.engine.executor import ActionRecord  # noqa: E402
from mpizero.engine.gather import gather_data  # noqa: E402
from mpizero.engine.job import Job, prepare  # noqa: E402
from mpizero.engine.trainer import run_steps  # noqa: E402
from mpizero.errors import ConfigError  # noqa: E402
from mpizero.output import check_writable, tell, write_json  # noqa: E402
from mpizero.planner.tiers import plan_tiers  # noqa: E402
from mpizero.quantities import in_units, parse_rate  # noqa: E402
from mpizero.schedule.actions import AllGatherParam, BroadcastParam, FetchParam, Phase  # noqa: E402
from mpizero.text import table  # noqa: E402

STAGES = {"3": "every rank's link", "3-broadcast": "the owner's"}
TIERS = {"cpu": ("host", "CPU memory"), "nvme": ("nvme", "files")}  # the limited link, words
Row = dict[str, Any]


@dataclass
class Case:
    """A training run. seconds: of the fetches of each step's forward, of this rank."""

    job: Job
    seconds: list[float] = field(default_factory=list)
    off_plan: int = 0

    def step(self) -> None:
        """Collective. Begun together: owners end a step one after another."""
        barrier(self.job.world)
        self.job.executor.timeline = records = []
        self.off_plan += run_steps(self.job, steps=1).off_plan
        self.seconds.append(whole_after(records))


@spelled()
def main(argv: Sequence[str] | None = None) -> int:
    options = parser().parse_args(sys.argv[1:] if argv is None else argv)
    if options.steps < 1:
        raise ConfigError(f"--steps {options.steps} leaves nothing to measure: use 1 or more")
    world = start()
    counts = counts_of(options.ranks, world.size)
    on_rank_0(world, lambda: check_writable("--json", options.json))
    with tempfile.TemporaryDirectory() as folder:
        rows = [measure(world, ranks, tier, options, options.nvme or folder)
                for tier in options.tiers for ranks in counts]
    holds = all(row["off_plan"] == 0 and abs(row["ratio"] / row["ranks"] - 1) <= options.bound for row in rows)
    if world.rank == 0:
        tell(show(rows, options.rate, options.bound))
        if options.json is not None:
            write_json(options.json, {"hosts": list(world.hosts), "library": world.library, "rate": options.rate,
                                      "bound": options.bound, "rows": rows})
    return int(gather_data(world, 0 if holds else 1)[0])


def counts_of(asked: Sequence[int] | None, started: int) -> list[int]:
    """Numbers of ranks to measure. ConfigError for those that were not started."""
    counts = list(asked or (ranks for ranks in (1, 2, 4) if ranks <= started))
    if not 1 <= min(counts) <= max(counts) <= started:
        raise ConfigError(f"--ranks {' '.join(map(str, counts))} cannot be measured on {started} started: use "
                          f"numbers from 1 to {started}, or start more")
    return counts


def parser() -> Parser:
    made = Parser(prog="python scripts/bench_loading.py", description=__doc__)
    made.add_argument("--ranks", type=int, nargs="+", metavar="N", help="so many of those started (1, 2 and 4)")
    made.add_argument("--from", dest="tiers", nargs="+", choices=list(TIERS), default=list(TIERS),
                      help="where parameters rest (both)")
    made.add_argument("--rate", type=parse_rate, default=50e3, metavar="RATE", help="of each rank's link (50kB/s)")
    made.add_argument("--hidden", type=int, default=96, help="width of the MLP (96)")
    made.add_argument("--nvme", metavar="DIR", help="for states in files (a temporary folder)")
    made.add_argument("--steps", type=int, default=2, help="that count (2)")
    made.add_argument("--bound", type=float, default=0.15, metavar="SHARE", help="status 1 beyond it (0.15)")
    made.add_argument("--json", metavar="FILE", help="write the rows to this file")
    return made


def measure(world: Group, ranks: int, tier: str, options: Any, folder: str) -> Row:
    """A row, as rank 0 has it. Collective."""
    group, mine = world.subgroup(range(ranks), f"{ranks} load from {tier}"), None
    if group is not None:
        cases = {stage: Case(prepare(config(stage, tier, options, folder), group)) for stage in STAGES}
        for _ in range(1 + options.steps):  # the first, to become warm, does not count
            for case in cases.values():
                case.step()
        mine = {stage: {"seconds": case.seconds[1:], "fetched": fetched(case.job, TIERS[tier][0]),
                        "off_plan": case.off_plan, "whole": whole_bytes(case.job)} for stage, case in cases.items()}
    found = gather_data(world, mine)[:ranks]
    seconds = {stage: [statistics.fmean(each) for each in zip(*(rank[stage]["seconds"] for rank in found), strict=True)]
               for stage in STAGES}
    most = {stage: sum(map(max, zip(*(rank[stage]["fetched"] for rank in found), strict=True))) for stage in STAGES}
    return {"from": tier, "ranks": ranks, "whole_bytes": found[0]["3"]["whole"],
            "seconds": {stage: statistics.median(each) for stage, each in seconds.items()},
            "planned_seconds": {stage: nbytes / options.rate for stage, nbytes in most.items()},
            "ratio": statistics.median(owner / links for owner, links in zip(seconds["3-broadcast"], seconds["3"],
                                                                             strict=True)),
            "planned_ratio": most["3-broadcast"] / most["3"],
            "off_plan": sum(rank[stage]["off_plan"] for rank in found for stage in STAGES)}


def config(stage: str, tier: str, options: Any, folder: str) -> TrainConfig:
    """Without optimizer states, which would share the link with parameters and gradients and take most of the time."""
    return TrainConfig(model="mlp", hidden=options.hidden, stage=stage, dtype="float32", optimizer="sgd", momentum=0.0,
                       lr=0.01, batch_size=4, steps=10**6, overlap="off", offload=f"params={tier},optimizer={tier}",
                       nvme=folder if tier == "nvme" else None, limit=f"{TIERS[tier][0]}={options.rate:.0f}B/s")


def whole_after(records: Iterable[ActionRecord]) -> float:
    """Seconds from the beginning of each fetch of forward until its unit is whole, all units together."""
    spans, open_ = list[list[float]](), dict[int, list[float]]()
    for record in records:
        action = record.action
        if record.phase != "forward":
            continue
        if isinstance(action, FetchParam):
            open_[action.unit] = [record.begin_s, record.end_s]
            spans.append(open_[action.unit])
        elif isinstance(action, AllGatherParam | BroadcastParam) and action.unit in open_:
            open_.pop(action.unit)[1] = record.end_s
    return sum(end - begin for begin, end in spans)


def fetches(job: Job) -> list[tuple[int, int]]:
    """(place in the step's list, unit) of each fetch of forward."""
    found, phase = [], ""
    for place, action in enumerate(job.lists.step()):
        phase = action.name if isinstance(action, Phase) else phase
        if isinstance(action, FetchParam) and phase == "forward":
            found.append((place, action.unit))
    return found


def fetched(job: Job, link: str) -> list[int]:
    """Bytes that this rank fetches over the limited link in each of them."""
    nbytes = {place: 0 for place, _ in fetches(job)}
    for move in plan_tiers(job.lists.step(), job.geometry, job.activations()).moves:
        if move.place in nbytes and (link == "nvme") == (move.link == "nvme"):
            nbytes[move.place] += move.nbytes
    return list(nbytes.values())


def whole_bytes(job: Job) -> int:
    """Of all units that forward makes whole."""
    return sum(job.wrapping.units[unit].padded_numel * job.geometry.itemsize for _, unit in fetches(job))


def show(rows: Sequence[Row], rate: float, bound: float) -> str:
    head = ["from", "N", *[f"{words} link s" if words.startswith("the") else f"{words} s" for words in STAGES.values()],
            "planned s", "planned s", "ratio", "planned", "off N", "bandwidth"]
    body = []
    for row in rows:
        seconds, planned = ([row[key][stage] for stage in STAGES] for key in ("seconds", "planned_seconds"))
        body.append([TIERS[row["from"]][1], row["ranks"], *(f"{each:.3f}" for each in (*seconds, *planned)),
                     f"{row['ratio']:.2f}", f"{row['planned_ratio']:.2f}",
                     f"{100 * (row['ratio'] / row['ranks'] - 1):+.1f} %",
                     f"{row['whole_bytes'] / row['seconds']['3'] / rate:.2f} links"])
    worst = max(abs(row["ratio"] / row["ranks"] - 1) for row in rows)
    return (table(head, body) + f"\nlinks of {in_units(rate)}/s; ratios at most {100 * worst:.1f} % off N (bound "
            f"{100 * bound:g} %); bytes {'OFF PLAN' if any(row['off_plan'] for row in rows) else 'as planned'}")


if __name__ == "__main__":
    run_main(main)
