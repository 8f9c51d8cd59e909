"""Train a model on real MPI ranks: `mpirun -n 4 python -m mpizero.train --stage 2`."""

from __future__ import annotations

import signal
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from mpizero.cli import (
    Parser,
    add_train_flags,
    as_flags,
    check_writable,
    on_rank_0,
    printer,
    spelled,
    tell,
    train_config,
    write_json,
)
from mpizero.comm import barrier, run_main, start
from mpizero.dtypes import ITEMSIZE
from mpizero.engine.gather import gather_data
from mpizero.engine.job import Job, prepare
from mpizero.engine.summary import summarise
from mpizero.engine.trace import trace
from mpizero.engine.trainer import StepRecord, run_steps
from mpizero.engine.verdict import verdict
from mpizero.interrupt import noted
from mpizero.runlog import RunLog, begin_log, make_folder, new_id
from mpizero.schedule import show
from mpizero.text import counted, table

EXAMPLE = """examples:
  mpirun -n 4 python -m mpizero.train --stage 3
  mpirun -n 4 python -m mpizero.train --model gpt --dtype float32 --stage 2 --steps 100
  mpirun -n 4 python -m mpizero.train --stage 3 --shard-size 2 --check-replicas 10 --json summary.json"""


@spelled()
def main(argv: Sequence[str] | None = None) -> int:
    """Parse, train, print, write; the exit status. Every rank runs it; rank 0 prints."""
    parser = Parser(prog="python -m mpizero.train", description=__doc__, epilog=EXAMPLE)
    add_train_flags(parser)
    words = sys.argv[1:] if argv is None else argv
    config = train_config(parser, words)
    world = start()
    run = gather_data(world, new_id())[0]
    with noted() as stop:
        job = prepare(config, world)
        log = on_rank_0(world, lambda: _open_outputs(job, run, words))
        say = printer(world.rank)
        say(header(job))
        if config.print_actions:
            say("\n".join(show(action) for action in job.lists.step()))
        summary = _train(job, run, log, stop)
        say(f"{ending(job, summary)}\n\n{proof(summary)}")
        barrier(world)  # whoever leaves with a status takes the others along: not before rank 0 has written and spoken
    return exit_status(summary)


def _train(job: Job, run: str, log: RunLog | None, stop: Callable[[], int]) -> dict[str, Any]:
    """All steps, and the files; the summary."""
    progress = run_steps(job, lambda record: _tell(job, record, log), stop=stop)
    if progress.records and not _told(job, progress.records[-1]):
        _tell(job, progress.records[-1], log, last=True)
    summary = {"run": run, **summarise(job, progress)}
    traced = trace(job, *progress.traced) if progress.traced else None
    if log is not None:
        log.end(summary, traced)
    if job.config.json is not None and job.world.rank == 0:
        write_json(job.config.json, summary)
    return summary


def exit_status(summary: dict[str, Any]) -> int:
    """128 + its number if a signal has ended the run, as shells have it. What is wrong with the run ends it with 1, and
    is the last that it says."""
    wrong = verdict(summary)
    if wrong:
        sys.exit(f"mpizero: error: {as_flags(wrong)}")
    return 128 + signal.Signals[summary["signal"]] if summary["interrupted"] else 0


def ending(job: Job, summary: dict[str, Any]) -> str:
    """How it went."""
    if summary["interrupted"]:
        return (f"interrupted by {summary['signal']} after {counted(job.state.step, 'step')} of "
                f"{job.settings.steps:,}: the held-out loss is left out")
    return f"held-out loss {summary['eval_loss']:.4f} (nats per {job.task.target})"


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


def _told(job: Job, record: StepRecord) -> bool:
    """Whether the step has a line of itself: the first, and every K-th. The last one gets it in the end."""
    return record.step % job.config.log_every == 0


def _tell(job: Job, record: StepRecord, log: RunLog | None, last: bool = False) -> None:
    """Rank 0 prints the step, moves the bar and writes the log."""
    if job.world.rank:
        return
    total, told = job.settings.steps, last or _told(job, record)
    bar = sys.stderr is not None and sys.stderr.isatty()
    if bar:
        sys.stderr.write("\r\033[K")  # the line of the bar
    if told:
        tell(line(record, f"{job.task.target}s"))
    if bar:
        done = 40 * (record.step + 1) // total
        sys.stderr.write(f"[{'#' * done:<40}] {record.step + 1}/{total}" if record.step + 1 < total else "")
        sys.stderr.flush()
    if told and log is not None:
        log.append(record)


def _open_outputs(job: Job, run: str, words: Sequence[str]) -> RunLog | None:
    """The log, if there is one. Before training, so that a wrong path shows at once."""
    config = job.config
    if config.log is not None:
        make_folder(config.log)
    check_writable("--json", config.json)  # which may lie in that folder
    if config.log is None:
        return None
    log = begin_log(config.log, run, ["mpizero.train", *words], job)
    if log.older is not None:
        tell(f"results of an older run moved to {log.older}")
    return log


if __name__ == "__main__":
    run_main(main)
