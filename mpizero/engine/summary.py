"""What a run has shown, as plain data: counted and planned bytes side by side, one entry a rank."""

from __future__ import annotations

import signal
from typing import Any

from mpizero.engine.alike import flat
from mpizero.engine.export import sha256
from mpizero.engine.gather import gather_data
from mpizero.engine.job import Job
from mpizero.engine.moves import moved_bytes
from mpizero.engine.replicas import compare_replicas
from mpizero.engine.trainer import Progress, evaluate_loss
from mpizero.engine.versions import versions
from mpizero.layout import DEVICE, MASTER, Axis
from mpizero.memory.kinds import ACTIVATION, MODEL_STATE
from mpizero.planner import (
    formula_after_backward,
    formula_sent,
    gathered_more,
    moved_by_link,
    plan_memory,
    plan_traffic,
    sent_between,
    sent_by_op,
)
from mpizero.planner.need import actions_peak, digest_peak, highest
from mpizero.schedule import STRATEGIES, Action

# of StepSettings
OPTIONS = ("accumulation", "no_sync", "backward_prefetch", "forward_prefetch", "keep_last_unit", "limit_all_gathers",
           "overlap", "offload", "recompute", "recompute_interval", "bucket_size", "allocator",
           "delayed_update_after", "tensor_size", "partition_activations")


def summarise(job: Job, progress: Progress) -> dict[str, Any]:
    """The summary of `--json`. Collective: call it on every rank; all get the same. Evaluates the held-out loss, unless
    a signal has ended the steps: then there is little time."""
    memory, traffic = _memory(job, progress), _traffic(job, progress)  # before evaluation adds to peaks and log
    eval_loss = None if progress.signal else _held_out(job, progress)
    mismatches = compare_replicas(job.world, job.state.units)
    names = [MASTER.name, *(state.name for state in job.optimizer.spec.states)]
    digests = {name: sha256(job.task.model.spec, job.state.units, name) for name in names}
    memory |= _device_peak(job, progress)  # now that nothing more needs the device
    ranks = gather_data(job.world, [memory, traffic, progress.seconds_by])
    settings = job.settings
    return {
        "interrupted": progress.signal != 0,
        "signal": signal.Signals(progress.signal).name if progress.signal else None,
        "settings": flat(settings),
        "world_size": job.world.size, "stage": settings.step.stage, "model": job.task.model.name,
        "dtype": settings.dtype, "reduce_dtype": settings.reduce_dtype, "sum_dtype": settings.sum_dtype,
        "optimizer_bytes": job.geometry.optimizer_bytes,
        "shard_size": job.mesh.shape.size(Axis.SHARD),
        "replicas": job.mesh.shape.size(Axis.REPLICATE),
        "batch_size": settings.batch_size,
        **{name: getattr(settings.step, name) for name in OPTIONS},
        "seed": settings.seed,
        "psi": job.task.model.spec.psi,
        "padded_psi": job.wrapping.padded_numel,
        "frozen_psi": job.task.model.spec.frozen_psi,
        "trained_padded_psi": sum(job.wrapping.units[unit].padded_numel for unit in job.wrapping.trained),
        "gathered_more": gathered_more(job.geometry),
        "samples_per_step": job.samples,
        "units": [unit.numel for unit in job.wrapping.units],
        "seconds": sum(record.seconds for record in progress.records),
        "per_second": _per_second(progress),
        "seconds_by": [rank[2] for rank in ranks],
        "losses": [record.loss for record in progress.records],
        "eval_loss": eval_loss,
        "eval_losses": [[record.step + 1, record.eval_loss] for record in progress.records
                        if record.eval_loss is not None],
        "skipped_steps": progress.skipped,
        "weights_sha256": digests.pop(MASTER.name),
        **{f"{name}_sha256": digest for name, digest in digests.items()},
        "replicas_equal": not mismatches, "mismatches": [str(mismatch) for mismatch in mismatches],
        "memory": [rank[0] for rank in ranks], "traffic": [rank[1] for rank in ranks],
    }


def _held_out(job: Job, progress: Progress) -> float:
    """The held-out loss now, which may have been computed after the last step."""
    step, loss = progress.evaluated or (-1, 0.0)
    return loss if step == job.state.step else evaluate_loss(job)


def _per_second(progress: Progress) -> float:
    """Targets a second over all steps."""
    seconds = sum(record.seconds for record in progress.records)
    return sum(record.per_second * record.seconds for record in progress.records) / seconds if seconds else 0.0


def facts(job: Job) -> dict[str, Any]:
    """What is known of a run before its first step."""
    return {
        "model": job.task.model.name, "stage": job.settings.step.stage, "world_size": job.world.size,
        "mesh": {axis.value: job.mesh.shape.size(axis) for axis in Axis},
        "hosts": list(job.world.hosts), "mpi": job.world.library, "versions": versions(),
        "psi": job.task.model.spec.psi, "data": job.task.data.describe(), "settings": flat(job.settings),
        "files": _files(job),
    }


def _files(job: Job) -> dict[str, Any] | None:
    """In which something rests, of rank 0."""
    if job.storage is None:
        return None
    return {"folder": job.config.nvme, "direct": job.storage.file.direct, "bytes": job.storage.file.nbytes}


def _memory(job: Job, progress: Progress) -> dict[str, Any]:
    """Bytes of this rank: model states unless the key says otherwise."""
    plan, ledger = plan_memory(_ran(job, progress), job.geometry), job.ledger
    after = job.executor.after_backward
    kinds = {name: {"at_rest": progress.at_rest.get(name, 0), "after_backward": after.get(name, 0),
                    "peak": ledger.peak[name]} for name in ledger.live}
    for name in MODEL_STATE:
        kinds[name] |= {"planned_at_rest": plan.at_rest[name], "planned_peak": plan.peak_by_kind[name],
                        "planned_after_backward": plan.after_backward.get(name, 0)}
    return {
        "after_backward": _model_state(after),
        "at_rest": _model_state(progress.at_rest),
        "peak": ledger.peak_model_state_bytes,
        "peak_action": ledger.peak_model_state_action,
        "by_kind": kinds,
        "activation_peak": ledger.peak[ACTIVATION],
        "planned_after_backward": plan.after_backward_bytes,
        "planned_at_rest": plan.at_rest_bytes,
        "planned_peak": plan.peak_bytes,
        **_elsewhere(job, progress),
        "formula_after_backward": formula_after_backward(job.geometry),
    }


def _elsewhere(job: Job, progress: Progress) -> dict[str, Any]:
    """The peaks of the other tiers, counted and planned."""
    found: dict[str, Any] = {}
    for tier, ledger in job.tiers.items():
        if tier is not DEVICE:
            plan = plan_memory(_ran(job, progress), job.geometry, job.tables.train, tier=tier)
            found |= {f"{tier}_peak": ledger.peak_bytes, f"planned_{tier}_peak": plan.device_peak_bytes}
    return found


def _device_peak(job: Job, progress: Progress) -> dict[str, Any]:
    """The most that has lived at a time, all kinds together, and what it was; planned None where the plan does not know
    all that computations take."""
    ledger, geometry = job.ledger, job.geometry
    evaluated = progress.evaluated is not None or not progress.signal
    planned = highest([actions_peak(_ran(job, progress), geometry, job.tables.train),
                       actions_peak(job.lists.evaluate if evaluated else [], geometry, job.tables.held_out),
                       digest_peak(geometry)])
    return {"device_peak": ledger.peak_bytes, "device_peak_by_kind": ledger.peak_live,
            "device_peak_action": ledger.peak_action,
            "device_extent": ledger.device and ledger.device.addresses.extent,
            "planned_device_peak": planned and planned.nbytes,
            "planned_device_peak_action": planned and planned.during}


def _ran(job: Job, progress: Progress) -> list[Action]:
    """What the run has come to in bytes at a time, from rest to rest: without the update if every step was skipped."""
    return job.lists.run(progress.courses)


def _model_state(live: dict[str, int]) -> int:
    return sum(live.get(kind, 0) for kind in MODEL_STATE)


def _formula_sent(job: Job, progress: Progress) -> int | None:
    """As papers have it, of a step of one microbatch that updates; None of others, and where tiles are gathered for
    their recompute too."""
    step = job.settings.step
    if step.accumulation > 1 or not progress.updates or (step.recompute and any(u.tile for u in job.wrapping.units)):
        return None
    return formula_sent(job.geometry, STRATEGIES[job.settings.step.stage].volume)


def _traffic(job: Job, progress: Progress) -> dict[str, Any]:
    """Bytes that this rank sent in the last step that updated."""
    actions = job.lists.along(progress.course) if progress.records else []
    sends = plan_traffic(actions, job.geometry, job.tables.train)
    planned = sent_by_op(sends)
    return {
        "sent_bytes_per_step": sum(progress.sent.get(op, 0) for op in planned),
        "messages_per_step": progress.messages,
        "between_hosts_bytes_per_step": progress.between,
        "planned_between_hosts_bytes_per_step": sent_between(sends, job.geometry.mesh, job.world.hosts, job.world.rank),
        "by_op": progress.sent,
        "planned_sent_bytes_per_step": sum(planned.values()),
        "formula_sent_bytes_per_step": _formula_sent(job, progress),
        "planned_by_op": planned,
        "moved_bytes_per_step": progress.moved or moved_bytes(job.links),
        "planned_moved_bytes_per_step": moved_by_link(actions, job.geometry, job.tables.train,
                                                      job.lists.before(progress.course)),
        "steps_off_plan": progress.off_plan,
    }
