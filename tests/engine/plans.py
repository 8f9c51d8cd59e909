"""Runs that are held against their plans."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mpizero.comm import Group
from mpizero.engine.config import TrainConfig
from mpizero.engine.job import Job, prepare
from mpizero.engine.moves import moved_bytes
from mpizero.engine.trainer import AGREEMENT_OPS, Progress, run_steps
from mpizero.errors import OutOfDeviceMemory
from mpizero.layout import DEVICE, HOST, NVME
from mpizero.planner import plan_memory, plan_traffic
from mpizero.planner.footprint import Computation
from mpizero.planner.tiers import moved_by_link
from tests.engine.runs import Outcome, outcome


def run_as_planned(config: TrainConfig, group: Group, **options) -> tuple[Job, Outcome]:
    """`runs.run`, whose last step follows its plan."""
    job = prepare(config, group, **options)
    records = run_steps(job, steps=config.steps - 1).records
    return job, outcome(job, records + follows_its_plan(job).records)


def follows_its_plan(job: Job) -> Progress:
    """One step: bytes by kind after every action, peaks, and each collective."""
    ledger, executor, activations = job.ledger, job.executor, job.activations()
    assert activations is not None and not executor.values
    executor.timeline = []
    progress = run_steps(job, steps=1)
    actions = job.lists.step(skipped=progress.skipped > 0)
    plan = plan_memory(actions, job.geometry, activations)
    used = set(vars(job.geometry.placement.tiers).values())
    used |= {HOST} if NVME in used else set()  # files are read through buffers
    elsewhere = {tier: plan_memory(actions, job.geometry, activations, tier=tier) for tier in used - {DEVICE}}
    planned_moves, seen = moved_by_link(actions, job.geometry, activations), []
    assert [record.action for record in executor.timeline] == actions
    for record, point in zip(executor.timeline, plan.points, strict=True):
        assert {kind: record.live[kind] for kind in point.live} == point.live, point.action
        if plan.exact or not isinstance(point.action, Computation):
            assert record.peak_bytes == point.device_bytes, point.action
        for tier, (live, peak_bytes) in record.elsewhere.items():
            if tier not in used:
                assert not any(live.values()) and not peak_bytes, (tier, point.action)
                continue
            there = elsewhere[tier].points[len(seen)]
            assert {kind: live[kind] for kind in there.live} == there.live, (tier, point.action)
            assert peak_bytes == there.device_bytes, (tier, point.action)
        seen.append(record)
    executor.timeline = None
    assert moved_bytes(job.links) == planned_moves
    assert ledger.peak_model_state_bytes == plan.peak_bytes
    assert {kind: ledger.peak[kind] for kind in plan.peak_by_kind} == plan.peak_by_kind
    counted = [(record.op, record.bytes_sent, record.messages) for record in job.log.records
               if record.op not in AGREEMENT_OPS]
    planned = [(sent.op, sent.nbytes, sent.rounds)
               for sent in plan_traffic(actions, job.geometry, activations)]
    if job.settings.step.overlap:  # planned in the order of their beginnings, logged in that of their ends
        counted, planned = sorted(counted), sorted(planned)
    assert counted == planned
    assert progress.off_plan == 0 and not executor.values
    return progress


def fits_its_host_exactly(config: TrainConfig, group: Group) -> None:
    """The run takes what it has taken before, and is refused where its part of the host has a byte less."""
    job = prepare(config, group)
    run_steps(job)
    need = job.tiers[HOST].peak_bytes
    run_steps(prepare(replace(config, host_memory=f"{need}B"), group))
    with pytest.raises(OutOfDeviceMemory, match=f"out of host memory: the run needs {need:,} bytes.*`host_memory`"):
        prepare(replace(config, host_memory=f"{need - 1}B"), group)
