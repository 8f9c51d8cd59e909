"""What recompute costs and saves on the ranks at hand.

    mpirun -n 2 python scripts/bench_recompute.py                # the GPT that `train --model gpt` trains
    mpirun -n 2 python scripts/bench_recompute.py --layers 16 --intervals 1 2 4 16

The same GPT trains at stage 3 without recompute and with each interval, in turn, several rounds of steps each. Seconds
are medians over rounds, ratios are taken within a round. Of the processor they are rank 0's: on a machine that others
use too, these tell more; of several ranks they hold waiting too. Bytes are a rank's: the most on the device in a step,
and kept inputs. Weights must have the same bits, and kept inputs the planned bytes: else the status is 1.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from mpizero.cli import Parser, on_rank_0, spelled  # noqa: E402  before NumPy: it sets the number of BLAS threads
from mpizero.comm import run_main, start  # noqa: E402
from mpizero.engine.config import TrainConfig  # noqa: E402
from mpizero.engine.export import sha256  # noqa: E402
from mpizero.engine.gather import gather_data  # noqa: E402
from mpizero.engine.job import Job, prepare  # noqa: E402
from mpizero.engine.trainer import run_steps  # noqa: E402
from mpizero.errors import ConfigError  # noqa: E402
from mpizero.memory.kinds import KEPT_INPUT  # noqa: E402
from mpizero.output import check_writable, tell, write_json  # noqa: E402
from mpizero.planner import plan_memory  # noqa: E402
from mpizero.text import table  # noqa: E402

SIZES = {"layers": 4, "d-model": 128, "heads": 4, "context": 128, "batch-size": 16}
Row = dict[str, Any]


@dataclass
class Case:
    """A training run. rounds: seconds of a step in each, the median of the round's steps. processor: seconds of it a
    step in each. peak_bytes: of a step."""

    interval: int | None  # None: without recompute
    job: Job
    rounds: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)
    peak_bytes: int = 0

    def run(self, steps: int) -> None:
        """Collective."""
        begin = time.process_time()
        records = run_steps(self.job, steps=steps).records
        self.processor.append((time.process_time() - begin) / steps)
        self.rounds.append(statistics.median(record.seconds for record in records))
        self.peak_bytes = max(record.peak_bytes for record in records)


@spelled()
def main(argv: Sequence[str] | None = None) -> int:
    options = parser().parse_args(sys.argv[1:] if argv is None else argv)
    for name in ("rounds", "steps"):
        if getattr(options, name) < 1:
            raise ConfigError(f"--{name} {getattr(options, name)} leaves nothing to measure: use 1 or more")
    world = start()
    on_rank_0(world, lambda: check_writable("--json", options.json))
    sizes = {name.replace("-", "_"): getattr(options, name.replace("-", "_")) for name in SIZES}
    same = TrainConfig(model="gpt", stage="3", dtype=options.dtype, steps=10**6, overlap="off", **sizes)
    cases = [Case(interval, prepare(recomputing(same, interval), world)) for interval in (None, *options.intervals)]
    for _ in range(1 + options.rounds):  # the first, to become warm, does not count
        for case in cases:
            case.run(options.steps)
    rows = [row(case, cases[0]) for case in cases]  # on every rank: digests are collective
    holds = all(each["same_bits"] and each["kept_inputs"] == each["planned_kept_inputs"] for each in rows)
    if world.rank == 0:
        tell(show(rows))
        if options.json is not None:
            write_json(options.json, {"hosts": list(world.hosts), "library": world.library, "rows": rows})
    return int(gather_data(world, 0 if holds else 1)[0])


def parser() -> Parser:
    made = Parser(prog="python scripts/bench_recompute.py", description=__doc__)
    for name, size in SIZES.items():
        made.add_argument(f"--{name}", type=int, default=size, help=f"of the GPT ({size})")
    made.add_argument("--dtype", default="float16", help="of parameters and activations (float16)")
    made.add_argument("--intervals", type=int, nargs="+", default=[1, 2, 4], metavar="K",
                      help="segments that share a kept input (1 2 4)")
    made.add_argument("--rounds", type=int, default=5, help="that count (5)")
    made.add_argument("--steps", type=int, default=3, help="of each case in a round (3)")
    made.add_argument("--json", metavar="FILE", help="write the rows to this file")
    return made


def recomputing(config: TrainConfig, interval: int | None) -> TrainConfig:
    return config if interval is None else replace(config, recompute=True, recompute_interval=interval)


def row(case: Case, first: Case) -> Row:
    """What a case has shown. Collective."""
    job, points = case.job, plan_memory(case.job.lists.step(), case.job.geometry, case.job.activations()).points
    digests = [sha256(each.job.task.model.spec, each.job.state.units, "master") for each in (case, first)]
    return {"interval": case.interval, "peak_bytes": case.peak_bytes,
            "peak_to_first": case.peak_bytes / first.peak_bytes,
            "kept_inputs": job.ledger.peak[KEPT_INPUT],
            "planned_kept_inputs": max(point.live[KEPT_INPUT] for point in points),
            "seconds": statistics.median(case.rounds[1:]), "seconds_to_first": ratio(case.rounds, first.rounds),
            "processor": statistics.median(case.processor[1:]),
            "processor_to_first": ratio(case.processor, first.processor),
            "rounds": case.rounds[1:], "same_bits": digests[0] == digests[1]}


def ratio(mine: Sequence[float], first: Sequence[float]) -> float:
    """Of two lists of seconds, within a round; without the first round."""
    return statistics.median(one / other for one, other in zip(mine[1:], first[1:], strict=True))


def show(rows: Sequence[Row]) -> str:
    head = ["recompute", "device peak", "to first", "kept inputs", "= plan", "step s", "to first",
            "processor s", "to first", "same bits"]
    return table(head, [["no" if each["interval"] is None else f"interval {each['interval']}", each["peak_bytes"],
                         f"{each['peak_to_first']:.2f}", each["kept_inputs"],
                         each["kept_inputs"] == each["planned_kept_inputs"], f"{each['seconds']:.3f}",
                         f"{each['seconds_to_first']:.2f}", f"{each['processor']:.3f}",
                         f"{each['processor_to_first']:.2f}", each["same_bits"]] for each in rows])


if __name__ == "__main__":
    run_main(main)
