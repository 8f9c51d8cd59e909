"""Train a model on real MPI ranks: `mpirun -n 4 python -m mpizero.train --stage 2`."""

from __future__ import annotations

import shlex
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any

from mpizero.checkpoint.run import Checkpoints, begin_checkpoints
from mpizero.cli import Parser, add_train_flags, as_flags, on_rank_0, spelled, train_config
from mpizero.comm import barrier, run_main, start
from mpizero.console import StepLines, duration, header, key_values, proof, shares
from mpizero.engine.gather import gather_data
from mpizero.engine.job import Job, prepare
from mpizero.engine.summary import summarise
from mpizero.engine.trace import trace
from mpizero.engine.trainer import StepRecord, run_steps
from mpizero.engine.verdict import verdict
from mpizero.interrupt import noted
from mpizero.output import check_writable, printer, tell, write_json
from mpizero.runlog import RunLog, begin_log, make_folder, new_id
from mpizero.schedule import Action, Course, show
from mpizero.tensorboard import EventFile
from mpizero.text import counted

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
        checkpoints = begin_checkpoints(prepare(config, world), run)
        job = checkpoints.job
        log, events = on_rank_0(world, lambda: _open_outputs(job, run, words)) or (None, None)
        say = printer(world.rank)
        say("\n".join([header(job), *map(as_flags, checkpoints.said)]))
        if config.print_actions:
            say("\n".join(show(action) for action in _steady(job)))
        summary = _train(checkpoints, run, log, events, stop)
        say(f"{ending(job, summary)}\n{shares(summary['seconds_by'])}\n\n{proof(summary)}")
        if log is not None:
            say(f"\nwrote {', '.join(log.files)} into {log.folder}\n"
                f"report: python -m mpizero.report {shlex.quote(str(log.folder))}")
        if checkpoints.last_words:
            say(f"\n{as_flags(checkpoints.last_words)}")
        barrier(world)  # whoever leaves with a status takes the others along: not before rank 0 has written and spoken
    return exit_status(summary)


def _train(checkpoints: Checkpoints, run: str, log: RunLog | None, events: EventFile | None,
           stop: Callable[[], int]) -> dict[str, Any]:
    """All steps, and the files; the summary."""
    job = checkpoints.job
    lines, files = StepLines(job.settings.steps, job.task.target), [file for file in (log, events) if file is not None]
    progress = run_steps(job, lambda record: _tell(job, record, lines, files, checkpoints.after_step()), stop=stop)
    checkpoints.save()
    if progress.records and not _told(job, progress.records[-1]):
        _tell(job, progress.records[-1], lines, files, last=True)
    if events is not None:
        events.end()
    summary = {"run": run, **summarise(job, progress), "checkpoints": checkpoints.facts()}
    traced = trace(job, *progress.traced) if progress.traced else None
    if log is not None:
        log.end(summary, traced)
    if job.config.json is not None and job.world.rank == 0:
        write_json(job.config.json, summary)
    return summary


def _steady(job: Job) -> list[Action]:
    """The step that comes again and again: with delayed updates one that follows another."""
    late = job.lists.delay is not None and job.lists.delay < job.settings.steps - 1
    return job.lists.along(Course(late=late, catches_up=late))


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
    speed = f" ({summary['per_second']:,.0f} {job.task.target}s/s)" if summary["seconds"] else ""
    return (f"{counted(len(summary['losses']), 'step')} in {duration(summary['seconds'])}{speed}; held-out loss "
            f"{summary['eval_loss']:.4f} (nats per {job.task.target})")


def _told(job: Job, record: StepRecord) -> bool:
    """Whether the step has a line of itself: the first, every K-th, and where the held-out loss is told. The last one
    gets it in the end."""
    return record.step % job.config.log_every == 0 or record.eval_loss is not None


def _tell(job: Job, record: StepRecord, lines: StepLines, files: Sequence[RunLog | EventFile], saved: str = "",
          last: bool = False) -> None:
    """Rank 0 prints the step and what was saved after it, moves the bar and writes the log."""
    if job.world.rank:
        return
    if not last:
        lines.count(record)
    total, told = job.settings.steps, last or _told(job, record)
    bar = sys.stderr is not None and sys.stderr.isatty()
    if bar:
        sys.stderr.write("\r\033[K")  # the line of the bar
    if told:
        tell(lines.line(record) if job.config.log_format == "text" else key_values(record, f"{job.task.target}s"))
    if saved:
        tell(saved)
    if bar:
        done = 40 * (record.step + 1) // total
        sys.stderr.write(f"[{'#' * done:<40}] {record.step + 1}/{total}" if record.step + 1 < total else "")
        sys.stderr.flush()
    if told:
        for file in files:
            file.append(record)


def _open_outputs(job: Job, run: str, words: Sequence[str]) -> tuple[RunLog | None, EventFile | None]:
    """The log and the event file, if there are some. Before training, so that a wrong path shows at once."""
    config = job.config
    if config.log is not None:
        make_folder(config.log)
    check_writable("--json", config.json)  # which may lie in that folder
    log = None if config.log is None else begin_log(config.log, run, ["mpizero.train", *words], job)
    if log is not None and log.older is not None:
        tell(f"results of an older run moved to {log.older}")
    return log, None if config.tensorboard is None else EventFile(config.tensorboard)


if __name__ == "__main__":
    run_main(main)
