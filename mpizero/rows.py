"""Rows of the proof: a run each, with what it computed, stored, sent and moved, beside plan and formula."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from mpizero.cli import on_rank_0
from mpizero.comm import Group, barrier
from mpizero.engine.config import TrainConfig
from mpizero.engine.executor import ActionRecord
from mpizero.engine.export import whole_params
from mpizero.engine.gather import gather_data
from mpizero.engine.job import Job, prepare
from mpizero.engine.summary import summarise
from mpizero.engine.trace import trace
from mpizero.engine.trainer import run_steps
from mpizero.memory.kinds import KEPT_INPUT
from mpizero.planner import plan_memory
from mpizero.runlog import begin_log, new_id
from mpizero.schedule.actions import Backward
from mpizero.text import counted

OFFLOADS = ("optimizer=cpu", "params=cpu,optimizer=cpu", "params=nvme,optimizer=nvme", "checkpoints=cpu")
PEAKS = ("device_peak", "host_peak", "nvme_peak")
LINKS = ("device-host", "host-nvme")
# float32, relative: another order of additions, amplified by the steps. See `distance`
TO_ROUNDING = {"loss": 1e-5, "state": 1e-4}
Row = dict[str, Any]


@dataclass(frozen=True)
class Logs:
    """Where the stages' logs go, and the command line that says so."""

    folder: str
    command: list[str]


def stage_row(kind: str, config: TrainConfig, group: Group, step: Callable[[str], None],
              logs: Logs | None = None) -> Row:
    """One run: what it stored and sent, beside plan and formula."""
    step(f"{counted(group.size, 'rank')}, stage {config.stage}")
    job, summary = run(config, group, logs)
    return _counted(kind, job, summary)


def recompute_row(config: TrainConfig, group: Group, step: Callable[[str], None]) -> Row:
    """One run with recompute, and the inputs that it kept."""
    step(f"{counted(group.size, 'rank')}, stage {config.stage} with recompute")
    job, summary = run(config, group)
    points = plan_memory(job.lists.step(), job.geometry, job.activations()).points
    kept = [rank["by_kind"][KEPT_INPUT]["peak"] for rank in summary["memory"]]
    return {**_counted("recompute", job, summary), "interval": config.recompute_interval, "kept_inputs": max(kept),
            "kept_inputs_equal_plan": set(kept) == {max(point.live[KEPT_INPUT] for point in points)}}


def kept_row(config: TrainConfig, group: Group, step: Callable[[str], None]) -> Row:
    """One run with recompute, and the inputs that a rank keeps between forward and backward, counted in one step more;
    of tensor parallel ranks, too, where they may keep parts."""
    kept_as = "in parts" if config.partition_activations else "whole"
    step(f"{counted(group.size, 'rank')}, tensor size {config.tensor_size}, with recompute, inputs {kept_as}")
    job, summary = run(config, group)
    job.executor.timeline = timeline = list[ActionRecord]()
    run_steps(job, steps=1)
    after = next(place for place, record in enumerate(timeline) if isinstance(record.action, Backward)) - 1
    kept = gather_data(group, timeline[after].live[KEPT_INPUT])
    planned = plan_memory(job.lists.step(), job.geometry, job.activations()).points[after].live[KEPT_INPUT]
    return {**_counted("kept inputs", job, summary), "kept_as": kept_as, "kept_inputs": max(kept),
            "kept_inputs_equal_plan": set(kept) == {planned}}


def offload_row(config: TrainConfig, offload: str, group: Group, step: Callable[[str], None]) -> Row:
    """One run with something off the device: the peak of each tier, and what moves between them."""
    step(f"{counted(group.size, 'rank')}, stage {config.stage} with {offload}")
    config = replace(config, offload=offload, recompute="checkpoints" in offload)
    if "nvme" in offload:
        with _folder(group) as folder:
            job, summary = run(replace(config, nvme=folder), group)
    else:
        job, summary = run(config, group)
    memory, traffic = summary["memory"], summary["traffic"]
    return {**_counted("offload", job, summary), "offload": offload,
            **{tier: max(rank[tier] for rank in memory) for tier in PEAKS},
            "moved": {link: max(row["moved_bytes_per_step"][link] for row in traffic) for link in LINKS},
            "tiers_equal_plan": all(rank[tier] == rank[f"planned_{tier}"] for rank in memory for tier in PEAKS),
            "moves_equal_plan": all(rank["moved_bytes_per_step"] == rank["planned_moved_bytes_per_step"]
                                    for rank in traffic)}


def _counted(kind: str, job: Job, summary: dict[str, Any]) -> Row:
    """What a run stored and sent, beside plan and formula."""
    memory, traffic = summary["memory"], summary["traffic"]

    def most(ranks: Sequence[Row], what: str) -> int:
        return max(rank[what] for rank in ranks)

    return {
        "row": kind, "ranks": job.world.size, "stage": job.settings.step.stage, "shard_size": job.geometry.shards,
        "tensor_size": job.geometry.tensors,
        "weights": summary["weights_sha256"], "moments": summary["exp_avg_sha256"] + summary["exp_avg_sq_sha256"],
        "losses": summary["losses"], "after_backward": most(memory, "after_backward"), "peak": most(memory, "peak"),
        "sent": most(traffic, "sent_bytes_per_step"), "messages": most(traffic, "messages_per_step"),
        "formula_after_backward": most(memory, "formula_after_backward"),
        "formula_sent": most(traffic, "formula_sent_bytes_per_step"),
        "bytes_equal_plan": all(rank[what] == rank[f"planned_{what}"] for rank in memory
                                for what in ("after_backward", "peak", "at_rest")),
        "bytes_equal_formula": all(rank["after_backward"] == rank["formula_after_backward"] for rank in memory),
        "traffic_equals_plan": all(rank["by_op"].get(op, 0) == sent and not rank["steps_off_plan"] for rank in traffic
                                   for op, sent in rank["planned_by_op"].items()),
        "traffic_equals_formula": all(rank["sent_bytes_per_step"] == rank["formula_sent_bytes_per_step"]
                                      for rank in traffic),
        "replicas_equal": summary["replicas_equal"],
    }


def tensor_row(row: Row) -> Row:
    """Of tensor parallel ranks, whose activations no formula of ZeRO's traffic has."""
    return {key: value for key, value in row.items() if key not in ("formula_sent", "traffic_equals_formula")}


def compare(rows: list[Row], dp: Row) -> None:
    """Add to each row whether weights, moments and losses are those of data parallelism, bit for bit."""
    for row in rows:
        for what in ("weights", "moments", "losses"):
            row[f"{what}_equal_dp"] = row[what] == dp[what]


def against_one_process(config: TrainConfig, group: Group, meshes: Iterable[tuple[str, int | None]],
                        step: Callable[[str], None]) -> list[Row]:
    """In float32, meshes (F = 1 is data parallelism) against one process that computes the concatenated batch. Rows on
    rank 0 only."""
    config, size = replace(config, dtype="float32"), config.tensor_size
    alone = group.subgroup([0], f"alone of {group.size} with {size}")
    step("one process on the concatenated batch")
    concatenated = replace(config, batch_size=config.batch_size * group.size // size, stage="3", tensor_size=1)
    reference = None if alone is None else states(concatenated, alone)
    barrier(group)
    rows: list[Row] = []
    for stage, shards in meshes:
        step(f"{counted(group.size, 'rank')} against one process, stage {stage}")
        here = states(replace(config, stage=stage, shard_size=shards), group)
        if reference is not None:
            shards = shards or (1 if stage == "0" else group.size // size)
            rows.append({"row": "one process", "ranks": group.size, "stage": stage, "shard_size": shards,
                         "tensor_size": size, **distance(here, reference)})
    return rows


def states(config: TrainConfig, group: Group) -> tuple[list[float], list[np.ndarray]]:
    """Losses of a run, and at its end master weights, exp_avg and the root of exp_avg_sq, (psi,) each."""
    job = prepare(config, group)
    losses = [record.loss for record in run_steps(job).records]
    master, exp_avg, exp_avg_sq = (
        np.concatenate([whole.ravel() for whole in whole_params(job.task.model.spec, job.state.units, name)])
        for name in ("master", "exp_avg", "exp_avg_sq"))
    return losses, [master, exp_avg, np.sqrt(exp_avg_sq)]


def distance(here: tuple[list[float], list[np.ndarray]], reference: tuple[list[float], list[np.ndarray]]) -> Row:
    """Largest relative difference of a loss, and largest norm of the difference of a state over its norm."""
    loss = max(float(abs(a - b) / abs(b)) for a, b in zip(here[0], reference[0], strict=True))
    state = max(float(np.linalg.norm(a - b) / np.linalg.norm(b)) for a, b in zip(here[1], reference[1], strict=True))
    return {"loss_difference": loss, "state_difference": state,
            "equal_to_rounding": loss <= TO_ROUNDING["loss"] and state <= TO_ROUNDING["state"]}


@contextmanager
def _folder(group: Group) -> Iterator[str]:
    """A temporary folder of one name on every host, which is gone afterwards."""
    name = gather_data(group, on_rank_0(group, lambda: tempfile.mkdtemp(prefix="mpizero-verify-")))[0]
    Path(name).mkdir(mode=0o700, exist_ok=True)  # of this host
    barrier(group)
    try:
        yield name
    finally:
        with suppress(OSError):  # another rank of the host has removed it
            Path(name).rmdir()


def run(config: TrainConfig, group: Group, logs: Logs | None = None) -> tuple[Job, dict[str, Any]]:
    """A run and its summary; with its log, if there shall be one."""
    if logs is None:
        job = prepare(config, group)
        return job, summarise(job, run_steps(job))
    folder, run = Path(logs.folder) / f"stage{config.stage}", gather_data(group, new_id())[0]
    job = prepare(replace(config, log=str(folder)), group)
    log = on_rank_0(group, lambda: begin_log(folder, run, logs.command, job))
    done = run_steps(job, lambda record: None if log is None else log.append(record))
    summary = summarise(job, done)
    traced = trace(job, *done.traced) if done.traced else None
    if log is not None:
        log.end({"run": run, **summary}, traced)
    return job, summary
