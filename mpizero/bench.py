"""Measure mpizero on the machine at hand: `mpirun -n 4 python -m mpizero.bench collectives`, `... step`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from mpizero.cli import Parser, on_rank_0, spelled
from mpizero.comm import Group, run_main, start
from mpizero.comm.benchmark import Row, measure
from mpizero.engine import overhead
from mpizero.engine.alike import compare_flags
from mpizero.engine.config import TrainConfig
from mpizero.engine.resolve import resolve
from mpizero.errors import ConfigError
from mpizero.memory.host import available_bytes
from mpizero.output import check_writable, write_json
from mpizero.quantities import in_units, parse_bytes
from mpizero.schedule import STRATEGIES
from mpizero.text import counted, table

ARRAYS = 4  # of the size measured, that a rank has: flat, whole, and parts of both

EXAMPLE = """examples:
  mpirun -n 4 python -m mpizero.bench collectives --sizes 1MiB,16MiB,64MiB --repeat 21 --json collectives.json
  mpirun -n 2 python -m mpizero.bench step --stage 3 --hidden 512"""

COLLECTIVES = """Our rings against MPI's own collectives, called in turn; medians of the slowest rank's times.

bytes is the whole array, as in nccl-tests: what a rank puts into a reduce-scatter or an all-reduce, what it has after
an all-gather. algbw = bytes / time; busbw = algbw (n-1)/n, for an all-reduce algbw 2 (n-1)/n: what a rank of the ring
sends per second; for broadcast and reduce, from and to rank 0, algbw. The last row gathers shards of which one element
has moved from rank 1 to rank 0, by a broadcast from each rank in turn, as PyTorch does, against MPI_Allgatherv. Ours
works in place, MPI's is called with a send and a receive buffer, or with MPI_IN_PLACE if --in-place is given: then an
all-gather of two ranks is the same single copy on both sides, and the best that can be had is a tie."""

STEP = """A whole training step of the MLP against the same NumPy operators without ledger, schedule and rings, in turn;
medians of the slowest rank. rings: of the step, inside collectives, waiting for the other ranks included. With more
ranks than cores, every time holds waiting for a core."""


@spelled()
def main(argv: Sequence[str] | None = None) -> int:
    """Parse and run a sub-command; the exit status. Every rank runs it; rank 0 prints."""
    options = parser().parse_args(sys.argv[1:] if argv is None else argv)
    if options.repeat < 1:
        raise ConfigError(f"--repeat {options.repeat} leaves nothing to measure: use 1 or more")
    status: int = options.run(options)
    return status


def parser() -> argparse.ArgumentParser:
    """Each sub-command sets `run`, a function of the parsed options that returns the exit status."""
    top = Parser(prog="python -m mpizero.bench", description=__doc__, epilog=EXAMPLE)
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    add = commands.add_parser("collectives", help="rings against MPI's own collectives", description=COLLECTIVES,
                              epilog=EXAMPLE)
    add.add_argument("--sizes", default="16MiB,64MiB",
                     help="of the whole array, separated by commas (default %(default)s)")
    add.add_argument("--dtype", choices=("float32", "float64"), default="float32", help="default %(default)s")
    add.add_argument("--repeat", type=int, default=21, help="calls of each (default %(default)s)")
    add.add_argument("--in-place", action="store_true", help="call MPI's with MPI_IN_PLACE")
    add.add_argument("--json", metavar="FILE", help="write the rows")
    add.set_defaults(run=run_collectives)
    add = commands.add_parser("step", help="what a step costs beyond its arithmetic", description=STEP, epilog=EXAMPLE)
    add.add_argument("--stage", choices=list(STRATEGIES), help="one stage (default: every stage)")
    add.add_argument("--hidden", type=int, default=96, help="width of the MLP (default %(default)s)")
    add.add_argument("--batch-size", type=int, default=16, help="samples a rank (default %(default)s)")
    add.add_argument("--dtype", choices=("float16", "float32"), default="float16", help="default %(default)s")
    add.add_argument("--repeat", type=int, default=51, help="steps of each (default %(default)s)")
    add.add_argument("--json", metavar="FILE", help="write the rows")
    add.set_defaults(run=run_step)
    return top


def run_collectives(options: Any) -> int:
    """The sub-command `collectives`."""
    sizes = [parse_bytes(size) for size in options.sizes.split(",")]
    world = start()
    compare_flags(vars(options), world)
    on_rank_0(world, lambda: check_writable("--json", options.json))
    _check_memory(world, max(sizes))
    rows = measure(world, sizes, options.dtype, options.repeat, options.in_place)
    if world.rank == 0:
        print(f"{world.library}, {world.size} ranks on {len(set(world.hosts))} host(s); medians of {options.repeat}")
        print(collectives_table(rows), flush=True)
        if options.json:
            write_json(options.json, {"rows": [asdict(row) for row in rows]})
    return 0


def _check_memory(world: Group, size: int) -> None:
    """ConfigError where this host has no room for the arrays of all its ranks."""
    ranks, room = world.hosts.count(world.hosts[world.rank]), available_bytes()
    if room is not None and ARRAYS * size * ranks > room:
        raise ConfigError(f"--sizes {size_text(size)}: {counted(ranks, 'rank')} on this host would take "
                          f"{in_units(ARRAYS * size * ranks)} for their arrays, but it has {in_units(room)} of memory "
                          "left: use a smaller size")


def run_step(options: Any) -> int:
    """The sub-command `step`."""
    config = TrainConfig(model="mlp", hidden=options.hidden, batch_size=options.batch_size, dtype=options.dtype)
    resolve(config)  # raises
    world = start()
    compare_flags(vars(options), world)
    on_rank_0(world, lambda: check_writable("--json", options.json))
    stages = [options.stage] if options.stage else list(STRATEGIES)
    rows = [overhead.measure(replace(config, stage=stage), world, options.repeat) for stage in stages]
    if world.rank == 0:
        print(f"{world.library}, {world.size} ranks; MLP of width {options.hidden}, {options.batch_size} samples a "
              f"rank, {options.dtype}; medians of {options.repeat}")
        print(step_table(rows), flush=True)
        if options.json:
            write_json(options.json, {"rows": [asdict(row) for row in rows]})
    return 0


def step_table(rows: Sequence[overhead.Overhead]) -> str:
    """Times in ms."""
    header = ("stage", "step ms", "arithmetic ms", "beyond it ms", "of the step in rings ms", "step / arithmetic")
    return table(header, [(row.stage, row.step_s * 1e3, row.arithmetic_s * 1e3, (row.step_s - row.arithmetic_s) * 1e3,
                           row.rings_s * 1e3, row.step_s / row.arithmetic_s) for row in rows])


def collectives_table(rows: Sequence[Row]) -> str:
    """Times in ms, bandwidths in GB/s (1e9 bytes)."""
    header = ("op", "size", "dtype", "ours ms", "MPI ms", "ratio", "algbw GB/s", "busbw GB/s")
    return table(header, [(row.op, size_text(row.bytes), row.dtype, row.ours_s * 1e3, row.mpi_s * 1e3, row.ratio,
                           row.algbw / 1e9, row.busbw / 1e9) for row in rows])


def size_text(nbytes: int) -> str:
    """'64 MiB', '1.5 KiB', '12 B'."""
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if nbytes >= scale:
            return f"{nbytes / scale:.4g} {unit}"
    return f"{nbytes} B"


if __name__ == "__main__":
    run_main(main)
