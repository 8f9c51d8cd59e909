"""Whether a run has shown what it should: counts equal plans, replicas are equal, training trained. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from mpizero.memory.kinds import MODEL_STATE

MOMENTS = {"at_rest": "at rest", "after_backward": "after backward", "peak": "at their peak"}


def verdict(summary: dict[str, Any]) -> str:
    """What is wrong with a run, in one sentence; "" if nothing is. summary: see `summarise`.

    Faults of ours come before a training that went wrong.
    """
    found = [*_replicas(summary), *_memory(summary), *_traffic(summary), *_checkpoints(summary)]
    if found:
        more = f"; and {len(found) - 1} more, see the tables" if len(found) > 1 else ""
        return found[0] + more
    return next(_training(summary), "")


def _replicas(summary: dict[str, Any]) -> Iterator[str]:
    for mismatch in summary["mismatches"]:
        yield f"replicas differ: {mismatch}"


def _memory(summary: dict[str, Any]) -> Iterator[str]:
    """Model states of each rank, kind by kind where kinds tell, else their sum; and the device as a whole."""
    for rank, row in enumerate(summary["memory"]):
        for moment, words in MOMENTS.items():
            kinds = {kind: row["by_kind"][kind] for kind in MODEL_STATE} | {"all model states": row}
            off = [(name, counts[moment], counts[f"planned_{moment}"]) for name, counts in kinds.items()
                   if counts[moment] != counts[f"planned_{moment}"]]
            if off:
                name, counted, planned = off[0]
                yield f"rank {rank} held {counted:,} bytes of {name} {words}, but {planned:,} were planned"
        if row["planned_device_peak"] not in (None, row["device_peak"]):
            yield (f"rank {rank} held {row['device_peak']:,} bytes of all kinds at {row['device_peak_action']}, but "
                   f"{row['planned_device_peak']:,} were planned")
        for tier, where in (("host", "in the host's memory"), ("nvme", "in its file")):
            if row[f"{tier}_peak"] != row[f"planned_{tier}_peak"]:
                yield (f"rank {rank} held {row[f'{tier}_peak']:,} bytes {where} at their peak, but "
                       f"{row[f'planned_{tier}_peak']:,} were planned")


def _traffic(summary: dict[str, Any]) -> Iterator[str]:
    """Of each rank the op that is off its plan, else the number of steps that were."""
    for rank, row in enumerate(summary["traffic"]):
        off = [op for op, planned in row["planned_by_op"].items() if row["by_op"].get(op, 0) != planned]
        if off:
            yield (f"rank {rank} sent {row['by_op'].get(off[0], 0):,} bytes of {off[0]} in its last step, but "
                   f"{row['planned_by_op'][off[0]]:,} were planned")
        elif row["moved_bytes_per_step"] != row["planned_moved_bytes_per_step"]:
            yield (f"rank {rank} moved {row['moved_bytes_per_step']} bytes between tiers in its last step, but "
                   f"{row['planned_moved_bytes_per_step']} were planned")
        elif row["steps_off_plan"]:
            yield (f"rank {rank} sent other bytes than the {row['planned_sent_bytes_per_step']:,} that were planned "
                   f"for a step in {row['steps_off_plan']:,} of its steps")


def _checkpoints(summary: dict[str, Any]) -> Iterator[str]:
    """Peaks of each rank while loading and saving, where it did."""
    for rank, row in enumerate(summary.get("checkpoints", {}).get("memory", ())):
        for what in ("loading", "saving"):
            if row.get(f"{what}_peak") != row.get(f"planned_{what}_peak"):
                yield (f"rank {rank} held {row[f'{what}_peak']:,} bytes while {what} a checkpoint, but "
                       f"{row[f'planned_{what}_peak']:,} were planned")


def _training(summary: dict[str, Any]) -> Iterator[str]:
    steps = len(summary["losses"])
    if steps and summary["skipped_steps"] == steps and not summary["interrupted"]:
        yield (f"all {steps:,} steps were skipped, since their gradients overflowed: train more `steps`, for each "
               "halves the loss scale, or use `dtype` float32")
    for what, loss in (("last", summary["losses"][-1] if steps else 0.0), ("held-out", summary["eval_loss"])):
        if loss is not None and not math.isfinite(loss):
            yield f"the {what} loss is {loss}, so training has diverged: lower `lr`, lengthen `warmup`, or set `clip`"
