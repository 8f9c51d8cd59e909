"""Train a model on real MPI ranks: `mpirun -n 4 python -m mpizero.train --stage 2`."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

from mpizero.cli import (
    Parser,
    add_train_flags,
    check_writable,
    finite,
    on_rank_0,
    printer,
    spelled,
    train_config,
    write_json,
)
from mpizero.comm import run_main, start
from mpizero.dtypes import ITEMSIZE
from mpizero.engine.config import TrainConfig
from mpizero.engine.job import Job, prepare
from mpizero.engine.summary import summarise
from mpizero.engine.trace import trace
from mpizero.engine.trainer import StepRecord, run_steps
from mpizero.errors import ConfigError
from mpizero.schedule import show
from mpizero.text import counted, table

EXAMPLE = """examples:
  mpirun -n 4 python -m mpizero.train --stage 3
  mpirun -n 4 python -m mpizero.train --model gpt --dtype float32 --stage 2 --steps 100
  mpirun -n 4 python -m mpizero.train --stage 3 --shard-size 2 --check-replicas 10 --json summary.json"""


@spelled()
def main(argv: Sequence[str] | None = None) -> int:
    """Parse, train, print, write. Every rank runs it; rank 0 prints."""
    parser = Parser(prog="python -m mpizero.train", description=__doc__, epilog=EXAMPLE)
    add_train_flags(parser)
    config = train_config(parser, sys.argv[1:] if argv is None else argv)
    world = start()
    say = printer(world.rank)
    job = prepare(config, world)
    log = on_rank_0(world, lambda: _open_outputs(config))
    say(header(job))
    if config.print_actions:
        say("\n".join(show(action) for action in job.lists.step()))
    progress = run_steps(job, lambda record: _tell(job, record, log))
    traced = trace(job, *progress.traced) if progress.traced else None
    summary = summarise(job, progress)
    say(f"held-out loss {summary['eval_loss']:.4f} (nats per {job.task.target})\n")
    say(proof(summary))
    if world.rank == 0:
        if log is not None:
            log.close()
            write_json(Path(config.log or "") / "summary.json", summary)
            write_json(Path(config.log or "") / "trace.json", traced)
        if config.json is not None:
            write_json(config.json, summary)
    return 0


def header(job: Job) -> str:
    """What runs where."""
    settings, hosts = job.settings, Counter(job.world.hosts)
    where = ", ".join(f"{ranks} on {host}" for host, ranks in hosts.items())
    mesh = f"{counted(job.geometry.replicas, 'replica')} x {counted(job.geometry.shards, 'shard')}"
    return "\n".join([
        f"{job.world.library}; {counted(job.world.size, 'rank')}: {where}",
        f"model {job.task.model.name}: psi = {job.wrapping.numel:,} parameters in {len(job.wrapping.units)} units, "
        f"{job.wrapping.padded_numel - job.wrapping.numel} of padding; {settings.dtype}; {job.task.data.describe()}",
        f"stage {settings.step.stage}: {mesh}; {counted(settings.batch_size, 'sample')} a rank x "
        f"{counted(settings.step.accumulation, 'microbatch')} = {job.samples} a step",
    ])


def line(record: StepRecord, what: str) -> str:
    """A step as key=value pairs, for people and grep."""
    return (f"step={record.step:<4d} loss={record.loss:.6f} grad_norm={record.grad_norm:.4e} lr={record.lr:.3e} "
            f"loss_scale={record.loss_scale:g} skipped={int(record.skipped)} {what}_per_s={record.per_second:.0f} "
            f"live_bytes={record.live_bytes} peak_bytes={record.peak_bytes} sent_bytes={record.sent_bytes}")


def proof(summary: dict[str, Any]) -> str:
    """The tables at the end: counted bytes beside planned ones, rank by rank."""
    states = _states_table(summary["memory"])
    sent = _traffic_table(summary["traffic"], ITEMSIZE[summary["dtype"]] * summary["psi"])
    differ = "REPLICAS DIFFER: " + "; ".join(summary["mismatches"][:3])
    return (f"model states, bytes\n{states}\n\n"
            f"sent in a step, bytes by op (agree: overflow and norm, not part of the sum)\n{sent}\n\n"
            f"{'replicas equal: yes' if summary['replicas_equal'] else differ}; "
            f"weights sha256 {summary['weights_sha256']}")


def _states_table(ranks: list[dict[str, Any]]) -> str:
    header = ["rank", "at rest: param", "optim", "after backward", "plan", "equal", "formula", "peak", "plan", "equal",
              "activations", "device peak"]
    return table(header, [
        [rank, row["by_kind"]["param"]["at_rest"], row["by_kind"]["optim"]["at_rest"],
         row["after_backward"], row["planned_after_backward"], row["after_backward"] == row["planned_after_backward"],
         row["formula_after_backward"], row["peak"], row["planned_peak"], row["peak"] == row["planned_peak"],
         row["activation_peak"], row["device_peak"]] for rank, row in enumerate(ranks)])


def _traffic_table(ranks: list[dict[str, Any]], psi_bytes: int) -> str:
    ops = sorted({op for row in ranks for op in row["by_op"]})
    rows = []
    for rank, row in enumerate(ranks):
        sent, planned = row["sent_bytes_per_step"], row["planned_sent_bytes_per_step"]
        rows.append([rank, *(row["by_op"].get(op, 0) for op in ops), sent, planned,
                     sent == planned and not row["steps_off_plan"], row["messages_per_step"], sent / psi_bytes])
    return table(["rank", *ops, "sent", "plan", "equal", "messages", "elements / psi"], rows)


def _tell(job: Job, record: StepRecord, log: TextIO | None) -> None:
    """Rank 0 prints the step, moves the bar and writes the log."""
    if job.world.rank:
        return
    total = job.settings.steps
    bar = sys.stderr is not None and sys.stderr.isatty()
    if bar:
        sys.stderr.write("\r\033[K")  # the line of the bar
    print(line(record, f"{job.task.target}s"), flush=True)
    if bar:
        done = 40 * (record.step + 1) // total
        sys.stderr.write(f"[{'#' * done:<40}] {record.step + 1}/{total}" if record.step + 1 < total else "")
        sys.stderr.flush()
    if log is not None:
        _append(log, json.dumps(finite(asdict(record)), allow_nan=False) + "\n")


def _append(log: TextIO, text: str) -> None:
    try:
        log.write(text)
        log.flush()
    except OSError as error:
        raise ConfigError(f"`log` {log.name} cannot be written: {error.strerror}") from None


def _open_outputs(config: TrainConfig) -> TextIO | None:
    """steps.jsonl, if there is a log. Before training, so that a wrong path shows at once."""
    check_writable("--json", config.json)
    if config.log is None:
        return None
    try:
        Path(config.log).mkdir(parents=True, exist_ok=True)
        return open(Path(config.log) / "steps.jsonl", "w", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"`log` {config.log} cannot be written: {error.strerror}") from None


if __name__ == "__main__":
    run_main(main)
