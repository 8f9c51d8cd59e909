"""What one step did on every rank, and when: the actions with bytes counted and planned, and the collectives with their messages."""

from __future__ import annotations

from typing import Any

from mpizero.dist import Group, Record
from mpizero.engine.executor import Done
from mpizero.engine.gather import gather_data
from mpizero.engine.job import Job
from mpizero.planner import plan_memory


def trace(job: Job, step: int, actions: list[Done], records: list[Record]) -> dict[str, Any]:
    """The data of trace.json. Collective; the same on every rank. Times in seconds from the start of the step on the earliest rank.

    actions: of the step, in order. Ranks of a host share its clock. Clocks of hosts are taken to agree where the last rank of each ends
    the step's agreement, having just heard from all.
    """
    met = max(record.begin_s + record.seconds for record in records if record.op == "agree")
    pairs = gather_data(job.world, [met, _rank(job, actions, records)])
    ranks = [rank for _, rank in pairs]
    latest = {rank["host"]: met for met, rank in sorted(pairs, key=lambda pair: pair[0])}
    for rank in ranks:
        _shift(rank, -latest[rank["host"]])
    earliest = min(rank["actions"][0]["begin_s"] for rank in ranks)
    for rank in ranks:
        _shift(rank, -earliest)
    return {"step": step, "stage": job.config.stage, "model": job.config.model, "dtype": job.config.dtype, "world_size": job.world.size,
            "capacity": job.ledger.capacity, "ranks": ranks}


def _rank(job: Job, actions: list[Done], records: list[Record]) -> dict[str, Any]:
    """This rank's part, times by its own clock."""
    plan = plan_memory([done.action for done in actions], job.geometry)
    return {
        "rank": job.world.rank, "host": job.world.hosts[job.world.rank],
        "groups": {name: list(group.ranks) for name, group in (("shard", job.mesh.shard), ("replicate", job.mesh.replicate))},
        "actions": [_action(done, point.live, point.peak_bytes) for done, point in zip(actions, plan.points, strict=True)],
        "collectives": [_collective(record, _group(job, record)) for record in records],
    }


def _action(done: Done, planned: dict[str, int], planned_peak: int) -> dict[str, Any]:
    return {"action": done.text, "kind": type(done.action).__name__, "label": done.label, "phase": done.phase, "begin_s": done.begin_s,
            "end_s": done.end_s, "live": done.live, "peak_bytes": done.peak_bytes, "planned_live": planned, "planned_peak_bytes": planned_peak}


def _collective(record: Record, group: Group) -> dict[str, Any]:
    return {"op": record.op, "unit": record.unit, "phase": record.phase, "group": record.group, "begin_s": record.begin_s,
            "end_s": record.begin_s + record.seconds, "bytes_sent": record.bytes_sent, "bytes_received": record.bytes_received,
            "messages": record.messages,
            "sends": [{"to": group.ranks[message.peer], "bytes": message.nbytes, "begin_s": message.time_s} for message in record.sends],
            "arrivals": [{"from": group.ranks[message.peer], "bytes": message.nbytes, "end_s": message.time_s} for message in record.arrivals]}


def _group(job: Job, record: Record) -> Group:
    """The group that the record names."""
    return next(group for group in (job.mesh.shard, job.mesh.replicate, job.world) if group.name == record.group)


def _shift(rank: dict[str, Any], seconds: float) -> None:
    """Move all times of a rank."""
    for row in (*rank["actions"], *rank["collectives"]):
        row["begin_s"] += seconds
        row["end_s"] += seconds
    for collective in rank["collectives"]:
        for message in collective["sends"]:
            message["begin_s"] += seconds
        for message in collective["arrivals"]:
            message["end_s"] += seconds
