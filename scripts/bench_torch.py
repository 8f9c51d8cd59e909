"""The same GPT here and in PyTorch: tokens a second and resident memory, in turn, on the machine at hand.

    pip install -e '.[mpich,bench]'
    python scripts/bench_torch.py --ranks 2 --dtype float32 --json FILE

One thread a rank. mpizero's stages 0 and 3 stand beside PyTorch on gloo: DistributedDataParallel,
ZeroRedundancyOptimizer and FSDP2 (`fully_shard` for each block). All start from the same weights and see the same
samples; the table's last column says by how much a loss differed at most from stage 0's. Each round starts every system
once, in fresh processes; the figures are medians over rounds, ratios are taken within a round. CPU s is the processor's
time in a step, of all threads of the busiest rank: it says what a step costs where others use the cores as well, and
counts no waiting in the kernel. Peak memory is that of the process, interpreter and libraries included (VmHWM, the
largest of the ranks).
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from mpizero.text import table  # noqa: E402
from scripts.beside_torch.common import MODELS  # noqa: E402
from scripts.beside_torch.start import StartError, together  # noqa: E402

STAGES = {"mpizero-stage0": "0", "mpizero-stage3": "3"}
SYSTEMS = ("mpizero-stage0", "torch-ddp", "torch-zero1", "mpizero-stage3", "torch-fsdp2")
RIVALS = {"torch-ddp": "mpizero-stage0", "torch-zero1": "mpizero-stage0", "torch-fsdp2": "mpizero-stage3"}
WORST = ("step_s", "cpu_s", "peak_rss_bytes", "start_rss_bytes")  # of the ranks, the largest
# gloo looks up the host's name by default, which need not lead to an interface of it; one thread a rank; more ranks
# than cores are allowed, and must not spin
ENVIRONMENT = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1",
               "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
               "PRTE_MCA_rmaps_default_mapping_policy": "slot:oversubscribe", "OMPI_MCA_mpi_yield_when_idle": "1",
               "OMPI_MCA_rmaps_base_oversubscribe": "1", "OMPI_MCA_hwloc_base_binding_policy": "none"}
# what stands for a processor with AVX2 and no more, on both sides: oneDNN, MKL, PyTorch's own loops, OpenBLAS; NumPy's
# own loops are told by names that its version has
AVX2 = {"ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2", "ATEN_CPU_CAPABILITY": "avx2",
        "OPENBLAS_CORETYPE": "Haswell"}


def main(argv: Sequence[str] | None = None) -> int:
    options = parser().parse_args(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that the ranks end as well
    rows = []
    for dtype in options.dtype.split(","):
        for model in options.model.split(","):
            for ranks in map(int, options.ranks.split(",")):
                found = compare(model, ranks, dtype, options)
                rows += found
                print(f"\n{title(model, ranks, dtype, options)}\n{show(found)}", flush=True)
                if options.json:
                    Path(options.json).write_text(json.dumps(about(options) | {"rows": rows}, indent=1) + "\n")
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
    top.add_argument("--avx2", action="store_true",
                     help="keep both sides from AVX-512 and from bfloat16 units, as on a processor without them")
    top.add_argument("--limit", type=float, default=600, metavar="S",
                     help="seconds that a start may take before all its ranks are ended (default %(default)g)")
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
             "cpu_s_per_step": statistics.median(row[system]["cpu_s"] for row in rounds),
             "peak_rss_bytes": max(row[system]["peak_rss_bytes"] for row in rounds),
             "start_rss_bytes": max(row[system]["start_rss_bytes"] for row in rounds),
             "ours_over_it": ratio(system, rounds, "step_s"), "ours_over_it_by_cpu": ratio(system, rounds, "cpu_s"),
             "failed_starts": sum(row[system]["failed"] for row in rounds), "losses": rounds[0][system]["losses"],
             "loss_difference": max(abs(a - b) for a, b in zip(rounds[0][system]["losses"], reference, strict=True))}
            for system in systems]


def ratio(system: str, rounds: list[dict[str, Any]], seconds: str) -> float | None:
    """Speed of mpizero's stage that does the same over this system's: the median over rounds. seconds: which ones."""
    rival = RIVALS.get(system)
    if rival is None or rival not in rounds[0]:
        return None
    return statistics.median(row[system][seconds] / row[rival][seconds] for row in rounds)


def measure(system: str, model: str, ranks: int, dtype: str, options: Any) -> dict[str, Any]:
    """What the ranks of one system wrote: the slowest time, the largest memory. One start that fails is said, and made
    again; the second ends the comparison."""
    try:
        return start(system, model, ranks, dtype, options) | {"failed": 0}
    except StartError as error:
        print(f"bench_torch.py: {system} on {ranks} rank(s) {error}\nonce more", file=sys.stderr, flush=True)
    try:
        return start(system, model, ranks, dtype, options) | {"failed": 1}
    except StartError as error:
        sys.exit(f"bench_torch.py: error: {system} on {ranks} rank(s) twice {error}")


def start(system: str, model: str, ranks: int, dtype: str, options: Any) -> dict[str, Any]:
    """StartError where it does not come to an end."""
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | ENVIRONMENT | (only_avx2() if options.avx2 else {}) | {"PYTHONPATH": str(ROOT)}
        words = [model, dtype, str(options.steps), folder]
        together([(command, environment | more) for command, more in commands(system, words, ranks, options.mpirun)],
                 Path(folder), options.limit, ROOT)
        found = [json.loads((Path(folder) / f"{rank}.json").read_text()) for rank in range(ranks)]
    return {"losses": found[0]["losses"]} | {name: max(rank[name] for rank in found) for name in WORST}


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


def only_avx2() -> dict[str, str]:
    """What keeps the libraries of both sides to AVX2."""
    from numpy._core._multiarray_umath import __cpu_dispatch__, __cpu_features__
    beyond = [name for name in __cpu_dispatch__ if ("AVX512" in name or name == "X86_V4") and __cpu_features__[name]]
    return AVX2 | ({"NPY_DISABLE_CPU_FEATURES": " ".join(beyond)} if beyond else {})


def title(model: str, ranks: int, dtype: str, options: Any) -> str:
    sizes, batch = MODELS[model]
    return (f"GPT of {sizes.layers} layers, d {sizes.d_model}, context {sizes.context}, {batch} samples a rank, AdamW, "
            f"{dtype}, {ranks} rank(s); medians of {options.rounds} rounds; {processor()}"
            + (", kept to AVX2" if options.avx2 else ""))


def show(rows: list[dict[str, Any]]) -> str:
    header = ("system", "tokens/s", "ours / it", "CPU s a step", "ours / it", "peak RSS MB", "before the model",
              "loss differs by")
    return table(header, [(row["system"], f"{row['tokens_per_s']:,.0f}", times(row["ours_over_it"]),
                           f"{row['cpu_s_per_step']:.3f}", times(row["ours_over_it_by_cpu"]),
                           f"{row['peak_rss_bytes'] / 1e6:,.0f}", f"{row['start_rss_bytes'] / 1e6:,.0f}",
                           f"{row['loss_difference']:.1g}") for row in rows])


def times(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.2f}"


def about(options: Any) -> dict[str, Any]:
    """Where and with what it was measured."""
    versions = {name: version(name) for name in ("numpy", "mpi4py", "torch") if find_spec(name)}
    return {"processor": processor(), "cores": len(os.sched_getaffinity(0)), "versions": versions,
            "python": sys.version.split()[0], "command": shlex.join(sys.argv), "avx2": options.avx2}


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
