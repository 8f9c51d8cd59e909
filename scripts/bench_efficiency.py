"""Efficiency of states off the device, measured, beside AIT bw / (AIT bw + peak) of ZeRO-Infinity, sec. 4.

    mpirun -n 1 python scripts/bench_efficiency.py                                 # all three, a minute
    mpirun -n 2 python scripts/bench_efficiency.py --states params --batches 4 16  # parameters and gradients alone
    mpirun -n 1 python scripts/bench_efficiency.py --states checkpoints --limit 6MB/s

A GPT trains with some of its states off the device and on it, in turn, a step each; the link to where they rest is as
slow as --limit says (if nothing does, so slow that moves take as long as computing in the middle one of the settings).
Nothing overlaps, as the formula has it. AIT is counted from the list: operations of forward, backward and recompute
over the bytes that a step moves over the link, both ways added up, as in the paper (units are smaller than a file's
block, so an update reads all of one before it writes). Of a step's seconds, those in which the rank did not wait for a
move are computing (collectives and update included): operations over them are peak, their share is efficiency.
Medians of rounds are told. Beside it: the seconds of the run on the device over those of the run with moves, also with
--overlap on and a segment of prefetch; other programs on the cores disturb these, since they compare different steps.
at most: what would be left if moves were hidden wherever something is computed. Status 1 where efficiency and formula
are further apart than --bound, or a byte is off its plan.
"""

from __future__ import annotations

import math
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from mpizero.cli import Parser, on_rank_0, spelled  # noqa: E402  before NumPy: it sets the number of BLAS threads
from mpizero.comm import Group, run_main, start  # noqa: E402
from mpizero.engine.config import TrainConfig  # noqa: E402
from mpizero.engine.gather import gather_data  # noqa: E402
from mpizero.engine.job import Job, prepare  # noqa: E402
from mpizero.engine.trainer import run_steps  # noqa: E402
from mpizero.errors import ConfigError  # noqa: E402
from mpizero.output import check_writable, tell, write_json  # noqa: E402
from mpizero.papers.intensity import ait_activations, ait_optimizer, ait_params, efficiency  # noqa: E402
from mpizero.planner.intensity import operations  # noqa: E402
from mpizero.planner.model import gpt  # noqa: E402
from mpizero.planner.tiers import moved_by_link  # noqa: E402
from mpizero.quantities import in_units, parse_rate  # noqa: E402
from mpizero.text import table  # noqa: E402

SIZES = {"layers": 4, "d-model": 128, "heads": 4, "context": 64}
AHEAD = {"overlap": "on", "backward_prefetch": 1, "forward_prefetch": 1}
Row = dict[str, Any]
Step = tuple[float, float]  # seconds, of them waiting for moves


@dataclass(frozen=True)
class States:
    """What leaves the device. link: the limited one, as `limit` names it, and as the log does."""

    words: str
    offload: str
    link: tuple[str, str]
    recompute: bool = False


STATES = {
    "params": States("parameters, gradients", "params=cpu,optimizer=cpu", ("host", "device-host")),
    "optimizer": States("optimizer states", "optimizer=nvme", ("nvme", "host-nvme")),
    "checkpoints": States("activation checkpoints", "checkpoints=cpu", ("host", "device-host"), recompute=True),
}


@dataclass
class Case:
    """A training run. rounds: (seconds, of them waiting for moves) of a step in each. reached: bytes a second of the
    limited link while something moved, in each. off_plan: steps whose bytes were not the planned ones."""

    job: Job
    link: str
    rounds: list[Step] = field(default_factory=list)
    reached: list[float] = field(default_factory=list)
    off_plan: int = 0

    def run(self) -> None:
        """A step. Collective."""
        done = run_steps(self.job, steps=1)
        every = [move for link in self.job.links.values() for move in link.records]
        moves = [move for move in every if move.link == self.link]
        self.rounds.append((done.records[0].seconds, math.fsum(move.exposed for move in every)))
        self.off_plan += done.off_plan
        self.reached.append(sum(move.nbytes for move in moves) / max(sum(move.seconds for move in moves), 1e-9))


@spelled()
def main(argv: Sequence[str] | None = None) -> int:
    options = parser().parse_args(sys.argv[1:] if argv is None else argv)
    if options.rounds < 1:
        raise ConfigError(f"--rounds {options.rounds} leaves nothing to measure: use 1 or more")
    world = start()
    on_rank_0(world, lambda: check_writable("--json", options.json))
    with tempfile.TemporaryDirectory() as folder:
        rows = [row for name in options.states for row in measure(name, options, world, options.nvme or folder)]
    holds = all(row["off_plan"] == 0 and abs(row["apart"]) <= options.bound for row in rows)
    if world.rank == 0:
        tell(show(rows, world.size, options.bound))
        if options.json is not None:
            write_json(options.json, {"hosts": list(world.hosts), "library": world.library, "bound": options.bound,
                                      "rows": rows})
    return int(gather_data(world, 0 if holds else 1)[0])


def parser() -> Parser:
    made = Parser(prog="python scripts/bench_efficiency.py", description=__doc__)
    for name, size in SIZES.items():
        made.add_argument(f"--{name}", type=int, default=size, help=f"of the GPT ({size})")
    made.add_argument("--dtype", default="float16", help="of parameters and activations (float16)")
    made.add_argument("--states", nargs="+", choices=list(STATES), default=list(STATES), help="what moves (all)")
    made.add_argument("--batches", type=int, nargs="+", default=[2, 4, 16], metavar="B",
                      help="samples of a rank (2 4 16); of activation checkpoints the middle one")
    made.add_argument("--intervals", type=int, nargs="+", default=[1, 2, 4], metavar="K",
                      help="segments that share an activation checkpoint, for their AIT does not depend on the batch "
                           "(1 2 4)")
    made.add_argument("--limit", type=parse_rate, metavar="RATE", help="of the link, as 50MB/s (see above)")
    made.add_argument("--nvme", metavar="DIR", help="for states in files (a temporary folder)")
    made.add_argument("--rounds", type=int, default=7, help="that count (7)")
    made.add_argument("--bound", type=float, default=0.15, metavar="SHARE", help="status 1 beyond it (0.15)")
    made.add_argument("--json", metavar="FILE", help="write the rows to this file")
    return made


def measure(name: str, options: Any, world: Group, folder: str) -> Iterator[Row]:
    """A row for each setting. Collective."""
    states, middle = STATES[name], options.batches[len(options.batches) // 2]
    sizes = {size.replace("-", "_"): getattr(options, size.replace("-", "_")) for size in SIZES}
    same = TrainConfig(model="gpt", stage="3", dtype=options.dtype, steps=10**6, overlap="off",
                       recompute=states.recompute, **sizes)
    settings = [(middle, interval) for interval in options.intervals] if states.recompute else [
        (batch, 1) for batch in options.batches]
    configs = [replace(same, batch_size=batch, recompute_interval=interval) for batch, interval in settings]
    rate = options.limit or balanced(states, configs[len(configs) // 2], world, folder)
    for config in configs:
        yield row(name, config, world, rate, options, folder)


def balanced(states: States, config: TrainConfig, world: Group, folder: str) -> float:
    """The rate at which moves take as long as computing, in two digits; the same on every rank."""
    case = Case(prepare(config, world), "")
    for _ in range(4):
        case.run()
    _, nbytes = counted(prepare(moving(states, config, None, folder), world), states)
    rate = nbytes / statistics.median(seconds for seconds, _ in case.rounds[1:])
    return float(gather_data(world, float(f"{rate:.1e}"))[0])


def moving(states: States, config: TrainConfig, rate: float | None, folder: str) -> TrainConfig:
    """The same with states off the device, over a link of this rate."""
    limit = None if rate is None else f"{states.link[0]}={rate:.0f}B/s"
    return replace(config, offload=states.offload, limit=limit,
                   nvme=folder if "nvme" in states.offload else None)


def counted(job: Job, states: States) -> tuple[int, int]:
    """Operations of a step, and the bytes that it moves over the link: from the list."""
    sizes, actions = job.settings.sizes, job.lists.step()
    model = gpt(sizes.layers, sizes.d_model, sizes.heads, sizes.vocab, sizes.context)
    tokens = job.settings.batch_size * sizes.context
    return (operations(actions, job.geometry, model, tokens),
            moved_by_link(actions, job.geometry, job.activations())[states.link[1]])


def row(name: str, config: TrainConfig, world: Group, rate: float, options: Any, folder: str) -> Row:
    """What a setting shows, as rank 0 has it. Collective."""
    states = STATES[name]
    off = moving(states, config, rate, folder)
    still, serial, ahead = (Case(prepare(each, world), states.link[1]) for each in (config, off,
                                                                                    replace(off, **AHEAD)))
    for _ in range(1 + options.rounds):  # the first, to become warm, does not count
        for case in (still, serial, ahead):
            case.run()
    flops, nbytes = counted(serial.job, states)
    rounds = [judged(flops, nbytes, rate, *seconds)
              for seconds in list(zip(still.rounds, serial.rounds, ahead.rounds, strict=True))[1:]]
    medians = {key: statistics.median(each[key] for each in rounds) for key in rounds[0]}
    return gather_data(world, {
        "states": name, "batch_size": config.batch_size, "interval": config.recompute_interval, "rate": rate,
        "flops": flops, "bytes": nbytes, "ait": flops / nbytes, "paper_ait": paper_ait(name, config),
        **medians, "apart": medians["efficiency"] / medians["formula"] - 1,
        "reached": statistics.median(serial.reached[1:]), "rounds": rounds,
        "off_plan": still.off_plan + serial.off_plan + ahead.off_plan})[0]


def judged(flops: int, nbytes: int, rate: float, still: Step, serial: Step, ahead: Step) -> dict[str, float]:
    """Of one round: efficiencies, of which `most` is what overlap could leave; peak in operations a second."""
    computing = serial[0] - serial[1]
    peak = flops / computing
    return {"peak": peak, "efficiency": computing / serial[0], "formula": efficiency(flops / nbytes, rate, peak),
            "beside": still[0] / serial[0], "overlapped": still[0] / ahead[0],
            "most": computing / max(computing, nbytes / rate)}


def paper_ait(name: str, config: TrainConfig) -> float:
    """Of the paper: 16-bit parameters that are loaded three times, 8 operations a parameter and token."""
    if name == "checkpoints":
        return ait_activations(config.d_model, config.recompute_interval)
    return {"params": ait_params, "optimizer": ait_optimizer}[name](config.context, config.batch_size)


def show(rows: Sequence[Row], ranks: int, bound: float) -> str:
    head = ["what moves", "batch", "ci", "AIT", "paper's", "link", "reached", "GFLOP/s", "efficiency", "formula",
            "apart", "to device", "overlap", "at most"]
    body = [[STATES[each["states"]].words, each["batch_size"], each["interval"], f"{each['ait']:,.0f}",
             f"{each['paper_ait']:,.0f}", f"{in_units(each['rate'])}/s", f"{each['reached'] / each['rate']:.0%}",
             f"{each['peak'] / 1e9:.2f}", *(f"{100 * each[key]:.1f} %" for key in ("efficiency", "formula")),
             f"{100 * each['apart']:+.1f} %", *(f"{100 * each[key]:.1f} %" for key in ("beside", "overlapped", "most"))]
            for each in rows]
    worst = max(abs(each["apart"]) for each in rows)
    return (table(head, body) + f"\n{ranks} rank{'s' * (ranks > 1)}; at most {100 * worst:.1f} % apart (bound "
            f"{100 * bound:g} %); bytes {'as planned' if not any(each['off_plan'] for each in rows) else 'OFF PLAN'}")


if __name__ == "__main__":
    run_main(main)
