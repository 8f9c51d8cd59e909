"""Rows of the proof: a run each, with what it computed, stored, sent and moved, beside plan and formula."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mpizero.cli import on_rank_0
from mpizero.comm import Group, barrier
from mpizero.engine.config import TrainConfig
from mpizero.engine.gather import gather_data
from mpizero.engine.job import Job, prepare
from mpizero.engine.summary import summarise
from mpizero.engine.trace import trace
from mpizero.engine.trainer import run_steps
from mpizero.memory.kinds import KEPT_INPUT
from mpizero.planner import plan_memory
from mpizero.runlog import begin_log, new_id
from mpizero.text import counted

OFFLOADS = ("optimizer=cpu", "params=cpu,optimizer=cpu", "params=nvme,optimizer=nvme", "checkpoints=cpu")
PEAKS = ("device_peak", "host_peak", "nvme_peak")
LINKS = ("device-host", "host-nvme")
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


def compare(rows: list[Row], dp: Row) -> None:
    """Add to each row whether weights, moments and losses are those of data parallelism, bit for bit."""
    for row in rows:
        for what in ("weights", "moments", "losses"):
            row[f"{what}_equal_dp"] = row[what] == dp[what]


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
