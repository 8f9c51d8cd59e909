"""Start the processes of one system, wait for all of them, and end all if one fails or time is up."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

GRACE = 5.0  # seconds that the others have to say something after one has failed, and mpirun to end its ranks
SAID = 4000  # characters of each process's output that are shown: the last ones

Command = tuple[list[str], Mapping[str, str]]  # words, and environment


class StartError(Exception):
    """Processes that failed, or did not end in time. The text says which, and what they said."""


def together(commands: Iterable[Command], folder: Path, limit: float, cwd: Path) -> None:
    """Run `commands` at the same time. Their output goes to files in `folder`, so that none waits for a reader.

    limit: seconds. StartError where one fails or time is up; nothing is left running.
    """
    outputs, jobs = [], []
    try:
        for number, (words, environment) in enumerate(commands):
            outputs.append(folder / f"said-{number}")
            with outputs[-1].open("wb") as output:
                # a session of its own, so that what it starts ends with it
                jobs.append(subprocess.Popen(words, env=dict(environment), cwd=cwd, stdin=subprocess.DEVNULL,
                                             stdout=output, stderr=subprocess.STDOUT, start_new_session=True))
        late = _wait(jobs, limit)
        ends = [job.poll() for job in jobs]
    finally:
        _end(jobs)
    if late or any(ends):
        raise StartError(f"{f'did not end within {limit:g} s' if late else 'failed'}:\n" + "\n".join(
            f"process {number} {_how(end)}{_said(output)}"
            for number, (end, output) in enumerate(zip(ends, outputs, strict=True))))


def _wait(jobs: list[subprocess.Popen], limit: float) -> bool:
    """Until all have ended, or one has failed and the others have had GRACE. Returns whether time was up first."""
    until, failed = time.monotonic() + limit, False
    while any(job.poll() is None for job in jobs):
        if not failed and any(job.poll() for job in jobs):
            failed, until = True, min(until, time.monotonic() + GRACE)
        if time.monotonic() > until:
            return not failed
        time.sleep(0.02)
    return False


def _end(jobs: list[subprocess.Popen]) -> None:
    """First asked, so that mpirun ends its ranks, then killed with all that they started."""
    left = [job for job in jobs if job.poll() is None]
    for job in left:
        os.killpg(job.pid, signal.SIGTERM)
    until = time.monotonic() + GRACE
    for job in left:
        try:
            job.wait(max(until - time.monotonic(), 0))
        except subprocess.TimeoutExpired:
            os.killpg(job.pid, signal.SIGKILL)
            job.wait()


def _how(end: int | None) -> str:
    if end is None:
        return "was still running"
    return f"was killed by {signal.Signals(-end).name}" if end < 0 else f"ended with status {end}"


def _said(output: Path) -> str:
    text = output.read_text(errors="replace").strip()
    return f", and said:\n{text[-SAID:]}" if text else ", and said nothing"
