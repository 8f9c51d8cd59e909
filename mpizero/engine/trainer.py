"""The training loop: lists of actions with a few decisions between them, each taken by all ranks alike."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from mpizero.data import eval_batches
from mpizero.dist import Record
from mpizero.engine.agreement import Agreed, finish_grads, mean_loss
from mpizero.engine.executor import Done, Update
from mpizero.engine.job import Job
from mpizero.engine.replicas import check_replicas
from mpizero.errors import DivergenceError
from mpizero.optim import clip_coefficient, learning_rate
from mpizero.planner import plan_traffic, sent_bytes

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
    per_second: float  # samples of the global batch (mlp) or tokens (gpt)
    live_bytes: int
    peak_bytes: int
    sent_bytes: int


@dataclass
class Progress:
    """What changes during a run, apart from buffers."""

    updates: int = 0  # optimizer steps taken; skipped ones do not count, nor move the learning rate
    skipped: int = 0
    records: list[StepRecord] = field(default_factory=list)
    sent: dict[str, int] = field(default_factory=dict)  # of the last step with an update (of the last one if all were skipped), by op
    messages: int = 0
    off_plan: int = 0  # steps whose traffic was not the planned one
    planned: dict[bool, int] = field(default_factory=dict)  # bytes sent by a step, by whether it is skipped
    at_rest: dict[str, int] = field(default_factory=dict)
    traced: tuple[int, list[Done], list[Record]] | None = None  # the last step that updated, where the job is traced


def run_steps(job: Job, report: Callable[[StepRecord], None] = lambda record: None) -> Progress:
    """Train `config.steps` steps. `report` is called on every rank after each step."""
    progress = Progress(planned={skipped: sent_bytes(plan_traffic(job.lists.step(skipped), job.geometry)) for skipped in (False, True)})
    job.ledger.reset_peaks()
    for step in range(job.config.value("steps")):
        record = _one_step(job, progress, step)
        progress.records.append(record)
        every = job.config.check_replicas
        if every and (step + 1) % every == 0:
            check_replicas(job.world, job.executor.units, step)
        report(record)
    progress.at_rest = dict(job.ledger.live)
    return progress


def _one_step(job: Job, progress: Progress, step: int) -> StepRecord:
    job.log.clear()
    if job.traced:
        job.executor.timeline = []
    begin, scale, run = time.perf_counter(), job.scaler.scale, job.executor.run
    loss, targets = run(job.lists.accumulate, batch=lambda mb: job.batch(step, mb), grad_scale=scale / job.targets)
    agreed = finish_grads(job.world, job.executor.units, job.ledger, loss, targets, scale)
    lr = learning_rate(progress.updates, base=job.config.value("lr"), warmup=job.config.value("warmup"), total=job.config.value("steps"))
    if agreed.found_inf:
        _skip(job, progress, agreed, step)
    else:
        progress.updates += 1
        clip = 1.0 if job.config.clip is None else clip_coefficient(agreed.total_norm, job.config.clip)
        run(job.lists.update, update=Update(job.hyper, lr, progress.updates, clip / scale))
    run(job.lists.zero_grad)
    job.scaler.update(agreed.found_inf, agreed.culprit)
    sent = _account(job, progress, agreed.found_inf)
    if job.executor.timeline and not agreed.found_inf:
        progress.traced = step, job.executor.timeline, list(job.log.records)
    if job.traced:
        job.executor.timeline = None
    rate = agreed.targets / (time.perf_counter() - begin)
    return StepRecord(step, agreed.loss, agreed.total_norm, lr, scale, agreed.found_inf, rate, job.ledger.live_bytes, job.ledger.peak_bytes, sent)


def _skip(job: Job, progress: Progress, agreed: Agreed, step: int) -> None:
    progress.skipped += 1
    if not job.scaler.enabled:
        raise DivergenceError(f"step {step}: the gradient of unit {agreed.culprit} is not finite, and {job.config.dtype} has no loss scale to lower: "
                              "lower --lr, lengthen --warmup, or set --clip 1.0")


def _account(job: Job, progress: Progress, skipped: bool) -> int:
    """Compare the step's traffic with its plan; returns the bytes sent by what the plan covers."""
    totals = job.log.totals()
    counted = {op: total for op, total in totals.items() if op not in AGREEMENT_OPS}
    sent = sum(total.bytes_sent for total in counted.values())
    progress.off_plan += sent != progress.planned[skipped]
    if not skipped or not progress.updates:
        progress.sent = {op: total.bytes_sent for op, total in totals.items()}
        progress.messages = sum(total.messages for total in counted.values())
    return sent


def evaluate_loss(job: Job) -> float:
    """Mean loss over the held-out samples. Every rank runs equally many batches; missing samples weigh nothing."""
    loss, targets = 0.0, 0
    for samples in eval_batches(job.data.eval_size, job.config.batch_size, job.world.rank, job.world.size):
        batch = job.data.eval_batch(samples)
        batch_loss, batch_targets = job.executor.run(job.lists.evaluate, batch=lambda mb, batch=batch: batch)  # type: ignore[misc]
        loss, targets = loss + batch_loss, targets + batch_targets
    return mean_loss(job.world, loss, targets)
