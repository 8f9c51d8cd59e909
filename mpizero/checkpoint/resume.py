"""Go on from a checkpoint, whoever wrote it: any number of ranks, any stage, any wrapping."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from mpizero.checkpoint.alike import changes, check_alike
from mpizero.checkpoint.contents import check_numbers, read_contents
from mpizero.checkpoint.files import parent_of
from mpizero.checkpoint.folder import complete
from mpizero.checkpoint.read import Checkpoint, open_checkpoint
from mpizero.checkpoint.together import together
from mpizero.engine import fill
from mpizero.engine.job import Job
from mpizero.errors import CheckpointError, MpizeroError
from mpizero.memory.kinds import WORKSPACE
from mpizero.planner.need import scratch_bytes
from mpizero.text import counted


@dataclass(frozen=True)
class Resumed:
    """job: in place of the one that was given, whose units it shares. runs: whose work it goes on with. said: a line
    for the user."""

    job: Job
    folder: Path
    runs: tuple[str, ...]
    said: str


def resume(job: Job, path: str | Path) -> Resumed:
    """Fill a fresh job's states from D/latest, D or D/step-00000020; each rank reads its own ranges. Collective.

    On as many ranks, the same mesh and stage, what follows is bit for bit the run that was not interrupted.
    Takes what `planner.need.loading_bytes` says beside what rests.
    CheckpointError on every rank for a checkpoint that is damaged or foreign, with the last good one beside it, and for
    a run that would go on differently: see `alike`.
    """
    job.ledger.at("load")
    try:
        checkpoint = _open_alike(job, path)
    except CheckpointError as error:
        raise _with_cure(job, path, error) from None
    together(job.world, lambda: check_alike(job, checkpoint))
    try:
        together(job.world, lambda: _fill(job, checkpoint))
    except CheckpointError as error:
        raise _with_cure(job, path, error) from None
    params_from_master(job)
    about, state = checkpoint.about, job.state
    state.step, state.updates, state.position = about["step"], about["updates"], about["position"]
    together(job.world, lambda: state.scaler.load_state_dict(about["scaler"]))
    job = _until_the_end(job)
    return Resumed(job, checkpoint.folder, tuple(about["runs"]), _said(job, checkpoint))


def params_from_master(job: Job) -> None:
    """Every unit's parameters from the master weights that were read. Collective."""
    for unit in job.state.units:
        unit.phase = "load"
        fill.params_from_master(unit)


def _open_alike(job: Job, path: str | Path) -> Checkpoint:
    """The same one on all ranks, though `latest` may move meanwhile."""
    folder = together(job.world, lambda: str(open_checkpoint(path).folder), only=0)[0]
    opened: list[Checkpoint] = []

    def open_mine() -> str:
        opened.append(open_checkpoint(folder))
        return opened[0].about["saved"]

    if len(set(together(job.world, open_mine))) > 1:
        raise CheckpointError(f"{folder} is not the same checkpoint on all ranks: let all of them see one folder, on a "
                              "file system that their hosts share")
    return opened[0]


def _fill(job: Job, checkpoint: Checkpoint) -> None:
    """This rank's range of each state."""
    scratch = job.ledger.empty(scratch_bytes(job.geometry), np.uint8, WORKSPACE)
    for unit in job.state.units:
        for state in unit.states:
            for span, values in unit.blocks(state, unit.range_of(unit.placement.optim), writes=True):
                for param, where, piece in unit.layout.pieces(span):
                    part = values[piece.start - span.start : piece.stop - span.start]
                    checkpoint.fill(state, param.name, where, part, scratch)


def _until_the_end(job: Job) -> Job:
    """With whole epochs: as many steps as this run's batches need for the samples that are left."""
    if job.settings.end is None:
        return job
    left = -(-max(job.settings.end - job.state.position, 0) // job.samples)
    return replace(job, settings=replace(job.settings, steps=job.state.step + left))


def _said(job: Job, checkpoint: Checkpoint) -> str:
    about, steps = checkpoint.about, job.settings.steps
    parts = [f"resumed from {checkpoint.folder} ({counted(about['world_size'], 'rank')}, stage "
             f"{about['settings'].get('stage')}) at step {about['step']:,} of {steps:,}", *changes(job, checkpoint)]
    if about["step"] >= steps:
        longer = "more `epochs`" if job.settings.end is not None else f"`steps` above {about['step']}"
        parts.append(f"nothing is left to train: give {longer} to go on")
    return "; ".join(parts)


def _with_cure(job: Job, path: str | Path, error: CheckpointError) -> CheckpointError:
    """The error with the last good checkpoint of the same folder, if there is one: all of it is read. Collective."""
    good = together(job.world, lambda: _last_good(parent_of(path)), only=0)[0]
    return CheckpointError(f"{error}{f'; the last good one is `resume` {good}' if good else ''}")


def _last_good(folder: Path) -> str | None:
    for path in complete(folder):
        with suppress(MpizeroError, OSError):
            contents = read_contents(path)
            for part in contents.parts:
                check_numbers(contents.file_of(part), part)
            return str(path)
    return None
