"""Shows that a change alters no bit and no byte: trains a grid of small runs at two commits and compares all they say.

Models, stages, types, accumulation, meshes, prefetch and ranks are combined. Of each run's summary (`mpizero.train
--json`) everything is compared that no clock tells: digests of weights and moments, losses, skipped steps, units,
memory and traffic of every rank. Status 1 if anything differs, 2 if it cannot be told. A new key is no difference, a
lost one is.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import cycle, product
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).resolve().parents[1]
EXAMPLE = """examples:
  python scripts/compare_commits.py HEAD      # the last commit and the working tree with what is not committed
  python scripts/compare_commits.py main~3 main --json differences.json
A path that begins with / or . stands for the files in that folder. The MPI is that of this Python."""
WORKER = "--worker"  # hidden: what mpirun starts
SHOWN, ABSENT = 20, "-"  # differences; a value
OF_THE_RUN = {"run", "seconds", "per_second", "seconds_by"}  # keys of a summary: its identifier, and what a clock tells
Row = tuple[str, str, str, Any, Any]  # run, kind of difference, key, value at BASE, value at HEAD

# An mpirun must not take what an outer one tells its ranks for its own. Open MPI refuses root and crowded cores.
LAUNCHERS = ("OMPI_", "OPAL_", "PMIX_", "PMI_", "PRTE_", "HYDRA_", "HYDI_", "MPI_LOCAL", "MPIEXEC_")
OPEN_MPI = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_mpi_yield_when_idle": "1",
            "PRTE_MCA_rmaps_default_mapping_policy": "slot:oversubscribe",  # Open MPI 5; the next line: 4
            "OMPI_MCA_rmaps_base_oversubscribe": "1", "OMPI_MCA_hwloc_base_binding_policy": "none"}

RANKS, STAGES, DTYPES = (1, 2, 3, 4), ("0", "1", "1-allreduce", "2", "3"), ("float16", "bfloat16", "float32")
ACCUMULATION = ("", "--accumulation 2", "--accumulation 2 --no-sync")
MESHES = [(ranks, shards) for ranks in RANKS for shards in range(1, ranks) if ranks % shards == 0]
AHEAD = "--backward-prefetch 1 --forward-prefetch 1", "--keep-last-unit", "--limit-all-gathers 1 --backward-prefetch 2"
MODELS = {"mlp": "--hidden 24", "gpt": "--layers 2 --d-model 16 --heads 2 --context 8 --batch-size 2 --data text"}
EXTRAS = (  # options of the update, skipped steps, sizes beyond the blocks and segments that work is cut into
    "--model mlp --dtype float16 --optimizer adamw --weight-decay 0.1 --warmup 2 --check-replicas 2",
    "--model gpt --dtype float32 --optimizer adam --weight-decay 0.1 --clip 0.1 --seed 7",
    "--model mlp --dtype float16 --hidden 96 --lr 0.03 --steps 5",
    "--model mlp --dtype float16 --hidden 400 --batch-size 128 --lr 0.001",
    "--model mlp --dtype float32 --hidden 1536 --batch-size 128 --lr 0.001",
    "--model gpt --dtype float16 --d-model 96 --context 128 --batch-size 3",
    "--model gpt --dtype bfloat16 --d-model 96 --heads 4 --context 64 --accumulation 2")


def fail(message: object) -> NoReturn:
    print(f"compare_commits: error: {message}", file=sys.stderr)
    sys.exit(2)


def grid() -> list[tuple[int, str]]:
    """(ranks, flags). All combinations of what concerns every stage; the rest with types and accumulation in turn."""
    turns = cycle(product(DTYPES, ACCUMULATION))
    rows = list(product(RANKS, MODELS, STAGES, DTYPES, ACCUMULATION[:2]))
    rows += [(ranks, model, stage, dtype, ACCUMULATION[2])
             for (ranks, stage, model), dtype in zip(product(RANKS, STAGES, MODELS), cycle(DTYPES))]
    rows += [(ranks, model, stage, dtype, f"{more} --shard-size {shards}")
             for ((ranks, shards), stage, model), (dtype, more) in zip(product(MESHES, STAGES[1:], MODELS), turns)]
    rows += [(ranks, model, "3", dtype, f"{more} {ahead} {mesh}") for (ahead, model, (ranks, mesh)), (dtype, more)
             in zip(product(AHEAD, MODELS, [*zip(RANKS, cycle([""])), (4, "--shard-size 2")]), turns)]
    runs = [(row[0], " ".join("--model {1} --stage {2} --dtype {3} {4}".format(*row).split())) for row in rows]
    return runs + [(ranks, f"{extra} --stage {STAGES[(ranks + number) % len(STAGES)]}")
                   for number, extra in enumerate(EXTRAS) for ranks in RANKS]


def work(tree: str) -> None:
    """What each rank does: trains all that `todo` lists, in one MPI job."""
    import mpizero
    from mpizero.train import main as train_main

    if not Path(str(mpizero.__file__)).is_relative_to(tree):
        fail(f"{mpizero.__file__} was imported, not {tree}")
    sys.stdout = open(os.devnull, "w")
    for number, arguments in enumerate(json.loads(Path("todo").read_text())):
        with contextlib.suppress(SystemExit):  # a summary is compared, whatever is wrong with the run
            train_main([*arguments, "--json", f"{number}.json"])


def train(tree: Path, ranks: int, runs: Sequence[str], folder: Path) -> list[dict[str, Any]]:
    """The summary of each run; the first that fails is the last one, as {"error": why}."""
    folder.mkdir()
    (folder / "text").write_text(" ".join(map(str, range(900))))
    todo = [f"--steps 3 {MODELS['gpt' if '--model gpt' in flags else 'mlp']} {flags}".split() for flags in runs]
    (folder / "todo").write_text(json.dumps(todo))
    mpirun = shutil.which("mpirun", path=f"{sys.prefix}/bin:{os.environ.get('PATH', '')}") or fail("there is no mpirun")
    environ = {name: value for name, value in os.environ.items() if not name.startswith(LAUNCHERS)}
    environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(tree), environ.get("PYTHONPATH"))))
    done = subprocess.run([mpirun, "-n", str(ranks), sys.executable, __file__, WORKER, str(tree)], cwd=folder,
                          env={"MPIZERO_TIMEOUT": "120", **environ, **OPEN_MPI}, stdin=subprocess.DEVNULL,
                          stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace")
    paths = [folder / f"{number}.json" for number in range(len(runs))]
    found = [json.loads(path.read_text()) for path in paths if path.exists() and path.stat().st_size]
    if len(found) == len(runs) and not done.returncode:
        return found
    why = re.search(r"^([a-z_]+: error: .*|(?!NOTE)[A-Za-z_][\w.]*(: .*)?)$", done.stderr, re.M)
    return [*found[:len(runs) - 1], {"error": why[0] if why else f"ended with status {done.returncode}"}]


def flat(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """{"memory": [{"peak": 8}]} -> ("memory.length", 1), ("memory.0.peak", 8)."""
    if isinstance(value, list):
        value = {"length": len(value), **dict(enumerate(value))}
    if isinstance(value, dict):
        for name, inner in value.items():
            if key or name not in OF_THE_RUN:
                yield from flat(inner, f"{key}.{name}".lstrip("."))
    else:
        yield key, value


def differences(base: dict[str, Any], head: dict[str, Any]) -> Iterator[tuple[str, str, Any, Any]]:
    """(kind of difference, key, value at BASE, value at HEAD). New bytes of an op or a kind are more than a new key."""
    left, right = {} if "error" in head else dict(flat(base)), dict(flat(head))
    for key in {**left, **right}:
        old, new = left.get(key, ABSENT), right.get(key, ABSENT)
        if repr(old) != repr(new):
            harmless = key not in left and key != "error" and not ("by_" in key and new)
            yield "lost" if key not in right else "new" if harmless else "different", key, old, new


def show(rows: Sequence[Row]) -> None:
    """The first differences as a table, then all keys with the number of runs."""
    values = [(run, key, str(base)[:20], str(head)[:20 if key != "error" else None])
              for run, kind, key, base, head in rows if kind == "different"]
    table = [("configuration", "key", "base", "head"), *values[:SHOWN]] if values else []
    for row in table:
        print("  ".join(cell.ljust(max(map(len, column))) for cell, column in zip(row, zip(*table))).rstrip())
    print(f"... and {len(values) - SHOWN:,} more\n" if len(values) > SHOWN else "", end="")
    keys = Counter((kind, key) for _, kind, key in {(*row[:2], re.sub(r"\.\d+", ".*", row[2])) for row in rows})
    for kind in sorted({kind for kind, _ in keys}):
        print(f"{kind} keys:", ", ".join(f"{key} ({keys[kind, key]})" for found, key in sorted(keys) if found == kind))


def fetch(name: str, into: Path) -> str:
    """Put the package of a commit or of a folder into a new folder; returns what it is."""
    into.mkdir()
    if name.startswith(("/", ".")):
        shutil.copytree(Path(name, "mpizero"), into / "mpizero", ignore=shutil.ignore_patterns("__pycache__"))
        return f"the files in {Path(name).resolve()}"
    git = ["git", "-C", str(ROOT), "archive", "--format=zip", f"--output={into}/zip", f"{name}^{{commit}}", "mpizero"]
    done = subprocess.run(git, capture_output=True, text=True, errors="replace")
    if done.returncode:
        fail(f"{name} is not a commit of {ROOT} that holds mpizero ({' '.join(done.stderr.split())})")
    with zipfile.ZipFile(into / "zip") as archive:
        archive.extractall(into)
        return f"commit {archive.comment.decode()[:10]}, {name}"


def compare(asked: argparse.Namespace, scratch: Path) -> int:
    """Train at both commits and tell, N after N; the exit status."""
    base, head, runs = scratch / "base", scratch / "head", grid()[3::7] if asked.quick else grid()
    told: dict[str, Any] = {tree.name: fetch(name, tree) for tree, name in ((base, asked.base), (head, asked.head))}
    print(*(f"{side}: {title}" for side, title in told.items()), sep="\n", flush=True)
    rows: list[Row] = []
    for ranks in RANKS:
        begin, chosen = time.monotonic(), [flags for number, flags in runs if number == ranks]
        old, new = (train(tree, ranks, chosen, scratch / f"{tree.name}-{ranks}") for tree in (base, head))
        if "error" in old[-1]:
            fail(f"BASE cannot run -n {ranks} {chosen[len(old) - 1]}: {old[-1]['error']}")
        for name, *pair in zip((f"-n {ranks} {flags}" for flags in chosen), old, new):
            told[name] = dict(zip(("base", "head"), pair))
            rows += [(name, *row) for row in differences(*pair)]
        print(f"-n {ranks}: {len(chosen)} configurations, {time.monotonic() - begin:.0f} s", flush=True)
    show(rows)
    if asked.json:
        json.dump({**told, "differences": rows}, asked.json, indent=1)
    differ, reached = len({name for name, kind, *_ in rows if kind != "new"}), len(told) - 2
    verdict = f"{differ} differ" + f", {len(runs) - reached} were not reached" * (reached < len(runs))
    print(f"{len(runs)} configurations on {', '.join(map(str, RANKS))} ranks:", verdict if differ else "all equal")
    return 1 if differ else 0


def main() -> NoReturn:
    parser = argparse.ArgumentParser(description=__doc__, epilog=EXAMPLE, formatter_class=argparse.RawTextHelpFormatter)
    parser.error = fail  # type: ignore[method-assign]  # one sentence
    parser.add_argument("base", metavar="BASE", help="the commit before the change")
    parser.add_argument("head", metavar="HEAD", nargs="?", default=str(ROOT), help="after it (the working tree)")
    parser.add_argument("--quick", action="store_true", help="a seventh of the grid")
    parser.add_argument("--json", metavar="FILE", type=lambda path: open(path, "w"), help="write everything to it")
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: sys.exit(128 + number))  # not without cleaning up
    try:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
            sys.exit(compare(parser.parse_args(), Path(scratch).resolve()))
    except OSError as error:
        fail(error)


if __name__ == "__main__":
    work(sys.argv[2]) if sys.argv[1:2] == [WORKER] else main()
