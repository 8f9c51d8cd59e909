"""What one step did on every rank, and when: the actions with bytes counted and planned, and the collectives with their
messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mpizero.comm import Group, Record, clock_offset
from mpizero.engine.beside import Updated
from mpizero.engine.executor import ActionRecord
from mpizero.engine.gather import gather_data
from mpizero.engine.job import Job
from mpizero.engine.simulated import simulated
from mpizero.memory.links import Moved
from mpizero.planner import plan_memory
from mpizero.planner.footprint import Point
from mpizero.schedule import Action, Course, Effect, effect_of
from mpizero.schedule.actions import Agree, Phase


def trace(job: Job, step: int, actions: list[ActionRecord], records: list[Record], moves: list[Moved],
          course: Course = Course(), updates: Sequence[Updated] = ()) -> dict[str, Any]:
    """The data of trace.json. Collective; the same on every rank. Times in seconds from the start of the step on the
    earliest rank.

    actions: of the step, in order. course: what it did with its gradients. updates: that went on beside it, and have
    ended. Clocks of hosts are held against rank 0's, now.
    """
    clock = clock_offset(job.world)
    mine = {"clock_offset_s": clock.seconds, "clock_uncertainty_s": clock.uncertainty,
            **_rank(job, actions, records, moves, job.lists.before(course)), "updates": list(map(_update, updates))}
    ranks = gather_data(job.world, mine)
    for rank in ranks:
        _shift(rank, -rank["clock_offset_s"])
    earliest = min(rank["actions"][0]["begin_s"] for rank in ranks)
    for rank in ranks:
        _shift(rank, -earliest)
    return {"step": step, "stage": job.settings.step.stage, "model": job.task.model.name, "dtype": job.settings.dtype,
            "world_size": job.world.size, "capacity": job.ledger.capacity, "ranks": ranks,
            "simulated": simulated([record.action for record in actions], ranks, job.geometry,
                                   job.lists.before(course))}


def _rank(job: Job, actions: list[ActionRecord], records: list[Record], moves: list[Moved],
          before: list[Action]) -> dict[str, Any]:
    """This rank's part, times by its own clock. before: what comes before, from rest on."""
    plan = plan_memory([*before, *(record.action for record in actions)], job.geometry, job.activations())
    return {
        "rank": job.world.rank, "host": job.world.hosts[job.world.rank],
        "groups": {axis.value: list(group.ranks) for axis, group in job.mesh.groups.items()},
        "actions": [_action(record, effect_of(record.action, job.geometry), point)
                    for record, point in zip(actions, plan.points[len(before):], strict=True)],
        "collectives": [_collective(record, _group(job, record)) for record in records],
        "moves": [_move(move) for move in moves],
    }


def _action(record: ActionRecord, effect: Effect, planned: Point) -> dict[str, Any]:
    """work: the kind of it, None for an action that does none. computes: whether this rank computes, rather than waits
    for others. planned_peak_bytes: of model states; planned_device_peak_bytes: of all kinds, as is peak_bytes, as far
    as the plan knows them."""
    work, waits = effect.work, effect.sends is not None or effect.moves or effect.ends is not None
    computes = not waits and not isinstance(record.action, Agree | Phase)
    return {"action": record.text, "kind": type(record.action).__name__, "work": work and work.kind,
            "computes": computes, "label": record.label, "phase": record.phase, "begin_s": record.begin_s,
            "end_s": record.end_s, "live": record.live, "peak_bytes": record.peak_bytes, "peak_live": record.peak_live,
            "planned_live": planned.live, "planned_peak_bytes": planned.peak_bytes,
            "planned_device_peak_bytes": planned.device_bytes}


def _collective(record: Record, group: Group) -> dict[str, Any]:
    """A collective with its messages; ranks in them are those of the group that trains."""
    sends = [{"to": group.ranks[message.peer], "bytes": message.nbytes, "begin_s": message.time_s}
             for message in record.sends]
    arrivals = [{"from": group.ranks[message.peer], "bytes": message.nbytes, "end_s": message.time_s}
                for message in record.arrivals]
    return {"op": record.op, "unit": record.unit, "phase": record.phase, "group": record.group,
            "begin_s": record.begin_s, "end_s": record.begin_s + record.seconds, "bytes_sent": record.bytes_sent,
            "bytes_received": record.bytes_received, "messages": record.messages, "exposed_s": record.exposed,
            "sends": sends, "arrivals": arrivals}


def _move(move: Moved) -> dict[str, Any]:
    """A move between tiers."""
    return {"link": move.link, "source": move.source, "target": move.target, "what": move.what, "unit": move.unit,
            "bytes": move.nbytes, "begin_s": move.begin_s, "end_s": move.begin_s + move.seconds,
            "exposed_s": move.exposed}


def _update(update: Updated) -> dict[str, Any]:
    """An update that went on beside the step, and may have begun before it."""
    return {"unit": update.unit, "begin_s": update.begin_s, "end_s": update.begin_s + update.seconds,
            "exposed_s": update.exposed}


def _group(job: Job, record: Record) -> Group:
    """The group that the record names."""
    return next(group for group in (*job.mesh.groups.values(), job.world) if group.name == record.group)


def _shift(rank: dict[str, Any], seconds: float) -> None:
    """Move all times of a rank."""
    for row in (*rank["actions"], *rank["collectives"], *rank["moves"], *rank["updates"]):
        row["begin_s"] += seconds
        row["end_s"] += seconds
    for collective in rank["collectives"]:
        for message in collective["sends"]:
            message["begin_s"] += seconds
        for message in collective["arrivals"]:
            message["end_s"] += seconds
