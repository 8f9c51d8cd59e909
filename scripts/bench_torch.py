"""The same GPT here and in PyTorch: tokens a second and resident memory, in turn, on the machine at hand.

    pip install -e '.[mpich,bench]'
    python scripts/bench_torch.py --ranks 2 --dtype float32 --json FILE

One thread a rank. mpizero's stages 0 and 3 stand beside PyTorch on gloo: DistributedDataParallel, ZeroRedundancyOptimizer
and FSDP2 (`fully_shard` for each block). All start from the same weights and see the same samples; the table's last
column says by how much a loss differed at most from stage 0's. Each round starts every system once, in fresh processes;
the figures are medians over rounds, ratios are taken within a round. Peak memory is that of the process, interpreter and
libraries included (VmHWM, the largest of the ranks).
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from mpizero.text import table  # noqa: E402
from scripts.beside_torch.common import MODELS  # noqa: E402

STAGES = {"mpizero-stage0": "0", "mpizero-stage3": "3"}
SYSTEMS = ("mpizero-stage0", "torch-ddp", "torch-zero1", "mpizero-stage3", "torch-fsdp2")
RIVALS = {"torch-ddp": "mpizero-stage0", "torch-zero1": "mpizero-stage0", "torch-fsdp2": "mpizero-stage3"}
# one thread a rank; more ranks than cores are allowed, and must not spin
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1",
               "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
               "PRTE_MCA_rmaps_default_mapping_policy": "slot:oversubscribe", "OMPI_MCA_mpi_yield_when_idle": "1",
               "OMPI_MCA_rmaps_base_oversubscribe": "1", "OMPI_MCA_hwloc_base_binding_policy": "none"}


def main(argv: Sequence[str] | None = None) -> int:
    options = parser().parse_args(argv)
    rows = []
    for dtype in options.dtype.split(","):
        for model in options.model.split(","):
            for ranks in map(int, options.ranks.split(",")):
                found = compare(model, ranks, dtype, options)
                rows += found
                print(f"\n{title(model, ranks, dtype, options)}\n{show(found)}", flush=True)
                if options.json:
                    Path(options.json).write_text(json.dumps({"processor": processor(), "rows": rows}, indent=1) + "\n")
    return 0


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    top.add_argument("--ranks", default="1,2,4", help="numbers of ranks, separated by commas (default %(default)s)")
    top.add_argument("--dtype", default="float32", help="float32, bfloat16, or both with a comma (default %(default)s)")
    top.add_argument("--model", default="large,small",
                     help="large: d 512, 8 layers, context 256, 4 samples a rank; small: mpizero.train's default "
                          "(default %(default)s)")
    top.add_argument("--systems", default=",".join(SYSTEMS), help="default %(default)s")
    top.add_argument("--rounds", type=int, default=3, help="of all systems in turn (default %(default)s)")
    top.add_argument("--steps", type=int, default=4, help="timed in each round, after two (default %(default)s)")
    top.add_argument("--mpirun", default=None, help="default: the one beside this Python, or in PATH")
    top.add_argument("--json", metavar="FILE", help="write the rows, after each table")
    return top


def compare(model: str, ranks: int, dtype: str, options: Any) -> list[dict[str, Any]]:
    """A row for each system."""
    systems = options.systems.split(",")
    rounds = [{system: measure(system, model, ranks, dtype, options) for system in systems}
              for _ in range(options.rounds)]
    sizes, batch = MODELS[model]
    tokens = ranks * batch * sizes.context
    reference = rounds[0][systems[0]]["losses"]
    return [{"model": model, "ranks": ranks, "dtype": dtype, "system": system,
             "tokens_per_s": tokens / statistics.median(row[system]["step_s"] for row in rounds),
             "peak_rss_bytes": max(row[system]["peak_rss_bytes"] for row in rounds),
             "start_rss_bytes": max(row[system]["start_rss_bytes"] for row in rounds),
             "ours_over_it": ratio(system, rounds), "losses": rounds[0][system]["losses"],
             "loss_difference": max(abs(a - b) for a, b in zip(rounds[0][system]["losses"], reference, strict=True))}
            for system in systems]


def ratio(system: str, rounds: list[dict[str, Any]]) -> float | None:
    """Speed of mpizero's stage that does the same over this system's: the median over rounds."""
    rival = RIVALS.get(system)
    if rival is None or rival not in rounds[0]:
        return None
    return statistics.median(row[system]["step_s"] / row[rival]["step_s"] for row in rounds)


def measure(system: str, model: str, ranks: int, dtype: str, options: Any) -> dict[str, Any]:
    """Start the ranks of one system, wait for them, and read what they wrote: the slowest time, the largest memory."""
    with tempfile.TemporaryDirectory() as folder:
        words = [model, dtype, str(options.steps), folder]
        environment = os.environ | ENVIRONMENT | {"PYTHONPATH": str(ROOT)}
        jobs = [subprocess.Popen(command, env=environment | more, cwd=ROOT, stdout=subprocess.PIPE,
                                 stderr=subprocess.STDOUT, text=True)
                for command, more in commands(system, words, ranks, options.mpirun)]
        said = [job.communicate()[0] for job in jobs]
        if any(job.returncode for job in jobs):
            sys.exit(f"bench_torch.py: error: {system} on {ranks} ranks failed:\n{''.join(said)[-4000:]}")
        found = [json.loads((Path(folder) / f"{rank}.json").read_text()) for rank in range(ranks)]
    return {"losses": found[0]["losses"]} | {name: max(rank[name] for rank in found)
                                             for name in ("step_s", "peak_rss_bytes", "start_rss_bytes")}


def commands(system: str, words: list[str], ranks: int, mpirun: str | None) -> Iterator[tuple[list[str], dict]]:
    """What is started, each with its own environment."""
    if system in STAGES:
        beside = Path(sys.prefix) / "bin" / "mpirun"
        launcher = shlex.split(mpirun) if mpirun else [str(beside) if beside.exists() else "mpirun"]
        module = ["-m", "scripts.beside_torch.ours", STAGES[system], *words]
        yield [*launcher, "-n", str(ranks), sys.executable, *module], {}
        return
    for rank in range(ranks):
        yield ([sys.executable, "-m", "scripts.beside_torch.theirs", system, *words],
               {"RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_RANK": str(rank)})


def title(model: str, ranks: int, dtype: str, options: Any) -> str:
    sizes, batch = MODELS[model]
    return (f"GPT of {sizes.layers} layers, d {sizes.d_model}, context {sizes.context}, {batch} samples a rank, AdamW, "
            f"{dtype}, {ranks} rank(s); medians of {options.rounds} rounds; {processor()}")


def show(rows: list[dict[str, Any]]) -> str:
    header = ("system", "tokens/s", "ours / it", "peak RSS MB", "of it before the model", "loss differs by")
    return table(header, [(row["system"], f"{row['tokens_per_s']:,.0f}",
                           "" if row["ours_over_it"] is None else f"{row['ours_over_it']:.2f}",
                           f"{row['peak_rss_bytes'] / 1e6:,.0f}", f"{row['start_rss_bytes'] / 1e6:,.0f}",
                           f"{row['loss_difference']:.1g}") for row in rows])


def processor() -> str:
    """Its name and the instruction sets that decide a matrix product's speed."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    fields = {name.strip(): value.strip() for name, value in fields.items()}
    flags = fields.get("flags", "").split()
    sets = [flag for flag in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if flag in flags]
    return f"{fields.get('model name', 'unknown processor')} ({', '.join(sets)})"


if __name__ == "__main__":
    sys.exit(main())
