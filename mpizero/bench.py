"""Measure mpizero on the machine at hand: `mpirun -n 4 python -m mpizero.bench collectives`; also `step`, `update`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from mpizero.cli import Parser, on_rank_0, spelled
from mpizero.comm import Group, cores_each, run_main, start
from mpizero.comm.benchmark import Row, measure
from mpizero.engine import overhead, update_rate
from mpizero.engine.alike import compare_flags
from mpizero.engine.config import TrainConfig
from mpizero.engine.resolve import resolve
from mpizero.errors import ConfigError
from mpizero.layout import UPDATE_BLOCK
from mpizero.memory.host import available_bytes
from mpizero.output import check_writable, write_json
from mpizero.quantities import in_units, parse_bytes, parse_count
from mpizero.schedule import STRATEGIES
from mpizero.schedule.settings import LARGEST
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

UPDATE = """Adam on the host, as --offload optimizer=cpu runs it: parameters a second of a rank, by dtype and number of
threads, which take turns; of the slowest rank while all update. All threads of a rank share one block of elements.
ratio: how many times as fast as with the first number of threads, the median of rounds. best: of all rounds, which
tells more than the median where other programs run."""


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
    add = commands.add_parser("update", help="the host's Adam, by dtype and threads", description=UPDATE,
                              epilog=EXAMPLE)
    add.add_argument("--numel", default="2M", help="parameters (default %(default)s)")
    add.add_argument("--threads", metavar="T,T", help="numbers of threads (1, and this rank's share of its cores)")
    add.add_argument("--block", type=int, default=UPDATE_BLOCK, metavar="N",
                     help="elements that all threads take at once (default %(default)s, as in training)")
    add.add_argument("--repeat", type=int, default=21, help="rounds (default %(default)s)")
    add.add_argument("--json", metavar="FILE", help="write the rows")
    add.set_defaults(run=run_update)
    return top


def run_collectives(options: Any) -> int:
    """The sub-command `collectives`."""
    sizes = [parse_bytes(size) for size in options.sizes.split(",")]
    world = start()
    compare_flags(vars(options), world)
    on_rank_0(world, lambda: check_writable("--json", options.json))
    _check_room(world, f"--sizes {size_text(max(sizes))}", ARRAYS * max(sizes))
    rows = measure(world, sizes, options.dtype, options.repeat, options.in_place)
    if world.rank == 0:
        print(f"{world.library}, {world.size} ranks on {len(set(world.hosts))} host(s); medians of {options.repeat}")
        print(collectives_table(rows), flush=True)
        if options.json:
            write_json(options.json, {"rows": [asdict(row) for row in rows]})
    return 0


def _check_room(world: Group, flag: str, nbytes: int) -> None:
    """ConfigError where this host has no room for the arrays of all its ranks, `nbytes` each."""
    ranks, room = world.hosts.count(world.hosts[world.rank]), available_bytes()
    if room is not None and nbytes * ranks > room:
        raise ConfigError(f"{flag}: {counted(ranks, 'rank')} on this host would take {in_units(nbytes * ranks)} for "
                          f"their arrays, but it has {in_units(room)} of memory left: use a smaller size")


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


def run_update(options: Any) -> int:
    """The sub-command `update`."""
    numel = parse_count(options.numel)
    world = start()
    threads = _numbers("--threads", options.threads) if options.threads else [1, cores_each(world.hosts, world.rank)]
    for name, value in (("--numel", numel), ("--block", options.block), *(("--threads", each) for each in threads)):
        if not 1 <= value < LARGEST:
            raise ConfigError(f"{name} {value} cannot be measured: use at least 1, and less than 2^40")
    compare_flags(vars(options), world)
    on_rank_0(world, lambda: check_writable("--json", options.json))
    _check_room(world, f"--numel {options.numel}", update_rate.BYTES * numel)
    rows = update_rate.measure(world, numel, list(dict.fromkeys(threads)), options.repeat, options.block)
    if world.rank == 0:
        print(f"{counted(world.size, 'rank')} at once, {numel:,} parameters each; medians of {options.repeat}")
        print(update_table(rows), flush=True)
        if options.json:
            write_json(options.json, {"numel": numel, "rows": [asdict(row) for row in rows]})
    return 0


def _numbers(flag: str, text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"{flag} {text!r} is no list of whole numbers: write it as in 1,2") from None


def update_table(rows: Sequence[update_rate.Rate]) -> str:
    """Rates in millions a second."""
    return table(("dtype", "threads", "block of a thread", "M params/s", "best", "ratio"),
                 [(row.dtype, row.threads, row.block, row.rate / 1e6, row.best / 1e6, row.ratio) for row in rows])


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
