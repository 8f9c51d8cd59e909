"""Train small models on four ranks, or as many as there are, and write what they counted and timed: for 01 and 04.

    mpirun -n 4 python scripts/small_runs.py runs.json
    python scripts/01_memory.py --runs runs.json && python scripts/04_offload.py --runs runs.json
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from mpizero.cli import Parser, on_rank_0, spelled  # noqa: E402  before NumPy: it sets the number of BLAS threads

from bench_loading import measure as measure_loading  # noqa: E402
from mpizero.comm import Group, barrier, run_main, start  # noqa: E402
from mpizero.engine.config import TrainConfig  # noqa: E402
from mpizero.engine.job import Job, prepare  # noqa: E402
from mpizero.engine.summary import summarise  # noqa: E402
from mpizero.engine.trainer import run_steps  # noqa: E402
from mpizero.memory.kinds import GRAD_FP32, KEPT_INPUT, UNSHARDED_GRAD, UNSHARDED_PARAM, WORKSPACE  # noqa: E402
from mpizero.output import check_writable, write_json  # noqa: E402
from mpizero.planner.intensity import operations  # noqa: E402
from mpizero.planner.model import gpt  # noqa: E402
from mpizero.schedule.actions import Bucket  # noqa: E402

PLACES = {  # name -> stage, offload
    "replicated": ("0", None), "optimum": ("2", "optimizer=cpu"), "infinity": ("3", "params=cpu,optimizer=cpu")}
GPT = {"layers": 4, "d_model": 64, "heads": 2, "context": 32, "batch_size": 2}
INTERVALS, TILES, HIDDEN, BUCKET = (1, 2, 4), (1, 2, 4), (96, 192), "8KiB"
LOADING = {"rate": 30e3, "hidden": 32, "steps": 2}
STEPS, RANKS = 2, 4
Row = dict[str, Any]


@spelled()
def main(argv: Sequence[str] | None = None) -> int:
    parser = Parser(prog="python scripts/small_runs.py", description=__doc__)
    parser.add_argument("file", metavar="FILE", help="JSON")
    file = parser.parse_args(sys.argv[1:] if argv is None else argv).file
    every = start()
    on_rank_0(every, lambda: check_writable("FILE", file))
    world = every.subgroup(range(min(RANKS, every.size)), "of small runs")
    if world is not None:
        measure(world, file)
    barrier(every)  # the others wait
    return 0


def measure(world: Group, file: str) -> None:
    """Collective."""
    found = {"ranks": world.size, "places": {name: placed(world, *where) for name, where in PLACES.items()},
             "kept_inputs": [kept_inputs(world, interval) for interval in INTERVALS],
             "tiles": [tiled(world, tiles) for tiles in TILES],
             "buckets": [bucketed(world, hidden) for hidden in HIDDEN],
             "params": intensity(world),
             "loading": measure_loading(world, world.size, "cpu", argparse.Namespace(**LOADING), "")}
    if world.rank == 0:
        write_json(file, found)


def run(config: TrainConfig, world: Group) -> tuple[Job, Row]:
    """After its steps, without an evaluation at the end: the job, and its summary. Collective."""
    job = prepare(replace(config, steps=10**6), world)
    job.executor.timeline = []
    return job, summarise(job, run_steps(job, steps=STEPS))


def placed(world: Group, stage: str, offload: str | None) -> Row:
    """Bytes of the MLP's states, of all ranks."""
    _, summary = run(TrainConfig(model="mlp", stage=stage, offload=offload), world)
    memory, traffic = summary["memory"], summary["traffic"]
    return {"psi": summary["padded_psi"], "weights_sha256": summary["weights_sha256"],
            "after_backward": [rank["after_backward"] for rank in memory],
            "at_rest": [rank["at_rest"] for rank in memory],
            "grad_fp32": [rank["by_kind"][GRAD_FP32]["peak"] for rank in memory],
            "peak": [rank["host_peak"] for rank in memory],
            "planned_peak": [rank["planned_host_peak"] for rank in memory],
            "moved": [rank["moved_bytes_per_step"]["device-host"] for rank in traffic]}


def kept_inputs(world: Group, interval: int) -> Row:
    """Bytes of a rank's kept inputs, in float16: the most at a time where they stay, and what a step moves where they
    leave."""
    same = {"model": "gpt", "stage": "3", "recompute": True, "recompute_interval": interval, **GPT}
    stay, _ = run(TrainConfig(**same), world)
    _, away = run(TrainConfig(offload="checkpoints=cpu", **same), world)
    return {"interval": interval, "peak": stay.ledger.peak[KEPT_INPUT], **GPT,
            "moved": away["traffic"][0]["moved_bytes_per_step"]["device-host"]}


def tiled(world: Group, tiles: int) -> Row:
    """The most bytes at a time of whole parameters, and of whole gradients, of what is gathered."""
    job, _ = run(TrainConfig(model="mlp", stage="3", hidden=HIDDEN[0], tiles=tiles), world)
    return {"tiles": tiles, "hidden": HIDDEN[0], "param": job.ledger.peak[UNSHARDED_PARAM],
            "grad": job.ledger.peak[UNSHARDED_GRAD]}


def bucketed(world: Group, hidden: int) -> Row:
    """The most workspace of an action that reduces a bucket."""
    job, summary = run(TrainConfig(model="mlp", stage="2", hidden=hidden, bucket_size=BUCKET), world)
    return {"hidden": hidden, "psi": summary["padded_psi"], "bucket": 2**13,
            "workspace": max(done.peak_live[WORKSPACE] for done in job.executor.timeline or ()
                             if isinstance(done.action, Bucket))}


def intensity(world: Group) -> Row:
    """Operations of a step, and the bytes of parameters and gradients that it moves, of a rank."""
    job, summary = run(TrainConfig(model="gpt", stage="3", offload="params=cpu,optimizer=cpu", **GPT), world)
    sizes = job.settings.sizes
    model = gpt(sizes.layers, sizes.d_model, sizes.heads, sizes.vocab, sizes.context)
    return {**GPT, "operations": operations(job.lists.step(), job.geometry, model, GPT["batch_size"] * GPT["context"]),
            "moved": summary["traffic"][0]["moved_bytes_per_step"]["device-host"]}


if __name__ == "__main__":
    run_main(main)
