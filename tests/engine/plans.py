"""What a step counted, held against its plan."""

from __future__ import annotations

from mpizero.engine.job import Job
from mpizero.engine.trainer import AGREEMENT_OPS, run_steps
from mpizero.planner import plan_memory, plan_traffic


def follows_its_plan(job: Job) -> None:
    """One step more: bytes by kind after every action, peaks, and each collective."""
    ledger, executor, activations = job.ledger, job.executor, job.activations()
    assert activations is not None and not executor.values
    executor.timeline = []
    progress = run_steps(job, steps=1)
    actions = job.lists.step(skipped=progress.skipped > 0)
    plan = plan_memory(actions, job.geometry, activations)
    assert [record.action for record in executor.timeline] == actions
    for record, point in zip(executor.timeline, plan.points, strict=True):
        assert {kind: record.live[kind] for kind in point.live} == point.live, point.action
    executor.timeline = None
    assert ledger.peak_model_state_bytes == plan.peak_bytes
    assert {kind: ledger.peak[kind] for kind in plan.peak_by_kind} == plan.peak_by_kind
    counted = [(record.op, record.bytes_sent, record.messages) for record in job.log.records
               if record.op not in AGREEMENT_OPS]
    assert counted == [(sent.op, sent.nbytes, sent.rounds) for sent in plan_traffic(actions, job.geometry)]
    assert progress.off_plan == 0 and not executor.values
