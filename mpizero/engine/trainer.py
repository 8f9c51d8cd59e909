"""The training loop: lists of actions with a few decisions between them, each taken by all ranks alike."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from mpizero.comm import Record
from mpizero.data import eval_batches
from mpizero.engine.agreement import Agreed, finish_grads, mean_loss
from mpizero.engine.beside import Updated
from mpizero.engine.computation import LossSum
from mpizero.engine.executor import ActionRecord
from mpizero.engine.job import Job
from mpizero.engine.moves import moved_bytes
from mpizero.engine.replicas import check_replicas
from mpizero.engine.spent import added, seconds_by
from mpizero.engine.update import Update
from mpizero.errors import DataError, DivergenceError
from mpizero.memory.links import Moved
from mpizero.optim import clip_coefficient, learning_rate
from mpizero.schedule import Course

AGREEMENT_OPS = ("agree", "check", "report")  # a few bytes that no formula counts: listed under their own names


@dataclass(frozen=True)
class StepRecord:
    """One line of the log, as rank 0 of the run has it. Bytes are this rank's; the rest is the same on every rank."""

    step: int
    loss: float  # mean over the global batch, before the update
    grad_norm: float  # global, unscaled, before clipping; NaN when skipped
    lr: float
    loss_scale: float
    skipped: bool
    seconds: float
    per_second: float  # targets of the global batch: samples (mlp), tokens (gpt)
    live_bytes: int
    peak_bytes: int
    sent_bytes: int
    seconds_by: dict[str, float] = field(default_factory=dict)  # this rank's, see `spent`
    eval_loss: float | None = None  # held-out, after the update, where the step was one to evaluate after


class Traced(NamedTuple):
    """What the last step that updated did: its number, actions, collectives, moves between tiers, what it did with its
    gradients, and the updates that ended in it."""

    step: int
    actions: list[ActionRecord]
    records: list[Record]
    moves: list[Moved]
    course: Course
    updates: list[Updated]


@dataclass
class Progress:
    """What the steps of one call have shown. What they changed is in the job's state."""

    updates: int = 0  # steps that were not skipped
    skipped: int = 0
    records: list[StepRecord] = field(default_factory=list)
    # of the last step with an update, or of the last one if all were skipped: bytes by op, and messages of planned ops
    sent: dict[str, int] = field(default_factory=dict)
    messages: int = 0
    between: int = 0  # bytes of planned ops that left the host
    moved: dict[str, int] = field(default_factory=dict)  # bytes by link between tiers
    off_plan: int = 0  # steps whose traffic, or moves, were not the planned ones
    signal: int = 0  # the number of the one that ended the steps early
    at_rest: dict[str, int] = field(default_factory=dict)  # live bytes by kind after the last step
    seconds_by: dict[str, float] = field(default_factory=dict)  # of all steps
    evaluated: tuple[int, float] | None = None  # after how many steps the last time, and the held-out loss
    courses: set[Course] = field(default_factory=set)  # that steps have taken
    course: Course = Course()  # of the step that `sent` is of
    traced: Traced | None = None  # where the job is traced


def run_steps(job: Job, report: Callable[[StepRecord], None] = lambda record: None, *,
              steps: int | None = None, stop: Callable[[], int] = lambda: 0) -> Progress:
    """Train `steps` steps more; None: up to the number that the settings name. With `epochs` no call goes beyond that.
    Collective over the job's ranks. `report` is called on every rank after each step. `stop` is asked in each: where it
    gives a signal's number on some rank, all ranks end after that step. Two calls do what one does for as many steps,
    unless updates are delayed: a call ends the last one.

    LossScaleError or DivergenceError where gradients stay infinite, DataError where targets were counted wrongly,
    ReplicaMismatch where replicas differ, OutOfDeviceMemory.
    """
    progress = Progress()
    for each in job.tiers.values():
        each.reset_peaks()
    job.executor.after_backward = {}
    left = max(job.settings.steps - job.state.step, 0)
    for _ in range(left if steps is None else steps if job.settings.end is None else min(steps, left)):
        record = _one_step(job, progress, stop)
        if _due(job, job.settings.eval_every) and not progress.signal:
            progress.evaluated = job.state.step, evaluate_loss(job)
            record = replace(record, eval_loss=progress.evaluated[1])
        progress.records.append(record)
        if _due(job, job.settings.check_replicas):
            catch_up(job)
            check_replicas(job.world, job.state.units, job.state.step)
        report(record)
        if progress.signal:
            break
    catch_up(job)
    progress.at_rest = dict(job.ledger.live)
    return progress


def _due(job: Job, every: int) -> bool:
    """Whether it is time after this step; 0: never."""
    return every > 0 and job.state.step % every == 0


def _one_step(job: Job, progress: Progress, stop: Callable[[], int]) -> StepRecord:
    begin, state, ledger = time.perf_counter(), job.state, job.ledger
    job.log.clear()
    for link in job.links.values():
        link.records.clear()
    job.executor.spent.clear()
    if job.traced:
        job.executor.timeline = []
    job.executor.host.records.clear()
    step, scale, lr = state.step, state.scaler.scale, _learning_rate(job)
    agreed = _accumulate(job, scale, stop)
    progress.signal = agreed.stop
    course = Course(not agreed.found_inf, not agreed.found_inf and job.delays(step), job.executor.updating)
    catch_up(job)
    _update(job, course, agreed, lr, scale)
    state.scaler.update(agreed.found_inf, agreed.culprit)
    state.step += 1
    state.position += job.samples
    sent = _account(job, progress, course)
    _keep_trace(job, progress, step, course)
    seconds = time.perf_counter() - begin
    moves = [record for link in job.links.values() for record in link.records]
    parts = seconds_by(job.executor.spent, job.log.records, moves, seconds)
    progress.seconds_by = added(progress.seconds_by, parts)
    return StepRecord(step, agreed.loss, agreed.total_norm, lr, scale, agreed.found_inf, seconds,
                      agreed.targets / seconds, ledger.live_bytes, ledger.peak_bytes, sent, parts)


def _learning_rate(job: Job) -> float:
    optim = job.settings.optim
    return learning_rate(job.state.updates, base=optim.lr, warmup=optim.warmup, total=job.settings.steps)


def _accumulate(job: Job, scale: float, stop: Callable[[], int]) -> Agreed:
    """The gradients of a step, and what all ranks agree on about them."""
    expected = job.count_targets()

    def agree(found: LossSum) -> Agreed:
        return finish_grads(job.world, job.state.units, job.update_ledger, found.loss, found.targets, scale, stop(),
                            job.mesh.shape.tensor)

    agreed = job.executor.run(job.lists.accumulate, batch=job.batch, grad_scale=scale / max(expected, 1),
                              agree=agree).agreed
    assert agreed is not None, "a list of gradients ends in Agree"
    if agreed.targets != expected:
        raise DataError(f"step {job.state.step + 1}: the loss counted {agreed.targets:,} targets, but Dataset.count "
                        f"gave {expected:,}, by which rank {job.world.rank} divided its gradients: let it give the "
                        "number that the batches hold, alike on all ranks")
    if agreed.found_inf and not job.state.scaler.enabled:
        raise DivergenceError(f"step {job.state.step + 1}: the gradient of unit {agreed.culprit} is not finite, and "
                              f"{job.settings.dtype} has no loss scale to lower: lower `lr`, lengthen `warmup`, or "
                              "set `clip` 1.0")
    return agreed


def _update(job: Job, course: Course, agreed: Agreed, lr: float, scale: float) -> None:
    """Of the gradients on which all have agreed: done, begun, or left out."""
    if not course.updates:
        job.executor.run(job.lists.zero_grad)
        return
    job.state.updates += 1
    clip = 1.0 if job.settings.optim.clip is None else clip_coefficient(agreed.total_norm, job.settings.optim.clip)
    update = Update(job.optimizer, lr, job.state.updates, clip / scale, job.workers)
    if course.late:
        job.executor.run(job.lists.begin, update=update)
    else:
        job.executor.run([*job.lists.update, *job.lists.zero_grad], update=update)


def catch_up(job: Job) -> None:
    """End the update that is under way, if one is: then parameters and states are those of all steps so far, and the
    next step reads them. Collective."""
    if job.executor.updating:
        job.executor.run(job.lists.catch_up)


def _account(job: Job, progress: Progress, course: Course) -> int:
    """Compare the step's traffic with its plan; returns the bytes sent by what the plan covers."""
    progress.updates += course.updates
    progress.skipped += not course.updates
    totals = job.log.totals()
    counted = {op: total for op, total in totals.items() if op not in AGREEMENT_OPS}
    sent = sum(total.bytes_sent for total in counted.values())
    moved = moved_bytes(job.links)
    progress.off_plan += (sent, moved) != job.planned(course)
    progress.courses.add(course)
    if course.updates or not progress.updates:
        progress.sent, progress.course = {op: total.bytes_sent for op, total in totals.items()}, course
        progress.messages = sum(total.messages for total in counted.values())
        progress.moved = moved
        progress.between = sum(total.bytes_between for total in counted.values())
    return sent


def _keep_trace(job: Job, progress: Progress, step: int, course: Course) -> None:
    """Of a traced job, what the step did, unless it was skipped."""
    if job.traced and job.executor.timeline is not None:
        if course.updates:
            moves = [record for link in job.links.values() for record in link.records]
            progress.traced = Traced(step, job.executor.timeline, list(job.log.records), moves, course,
                                     list(job.executor.host.records))
        job.executor.timeline = None


def evaluate_loss(job: Job) -> float:
    """Mean loss over the held-out samples. Collective: every rank runs equally many batches; missing samples weigh
    nothing. An update that is under way is ended first."""
    catch_up(job)
    loss, targets, data = 0.0, 0, job.task.data
    for samples in eval_batches(data.eval_size, job.settings.batch_size, *job.data_place):
        found = job.executor.run(job.lists.evaluate, batch=lambda mb: data.eval_batch(samples))
        loss, targets = loss + found.loss, targets + found.targets
    return mean_loss(job.world, loss, targets, job.mesh.shape.tensor)
