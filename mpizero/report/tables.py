"""The tables of a report, as plain data: the page shows them, and --json holds them."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mpizero.planner.timeline import COMPUTE
from mpizero.report.log import Log
from mpizero.report.memory import also_planned, equals_plan, fullest, kinds, model_states
from mpizero.report.spans import span_of
from mpizero.report.style import SPAN_COLORS
from mpizero.report.traffic import BETWEEN, on_plan, ops
from mpizero.text import precision, ranks_on

Row = dict[str, Any]
COMPUTED = ("forward", "recompute", "backward", "update")


@dataclass(frozen=True)
class Table:
    """columns: {key of the rows: heading with its unit}. note: what a reader must know."""

    name: str
    title: str
    columns: dict[str, str]
    rows: list[Row]
    note: str = ""


def tables(log: Log) -> list[Table]:
    """All tables for which the log has the data, the short ones first."""
    found = [] if log.run is None else [begin_table(log.run)]
    if log.summary is not None:
        found += [run_table(log.summary), *seconds_tables(log.summary), memory_table(log.summary),
                  traffic_table(log.summary, log.hosts)]
    if log.trace is not None:
        found += [make(log.trace) for make in (time_table, overlap_table, unit_table, collective_table, action_table)]
    return [*found, step_table(log.steps)]


def speed(log: Log) -> dict[str, Any]:
    """steps, seconds that all of them took, ms of one, and targets per_second; None for what the log does not tell, as
    older ones do not. Where not every step has a line, the others took what these took on average."""
    rows = [row for row in log.steps if row.get("seconds")]
    steps = len(log.summary["losses"]) if log.summary is not None else len(log.steps)
    if not rows:
        rates = sorted(row["per_second"] for row in log.steps)
        return {"steps": steps, "seconds": None, "ms": None, "per_second": rates[len(rates) // 2] if rates else None}
    spent = sum(row["seconds"] for row in rows)
    return {"steps": steps, "seconds": spent / len(rows) * steps, "ms": 1e3 * spent / len(rows),
            "per_second": sum(row["seconds"] * row["per_second"] for row in rows) / spent}


def run_table(summary: dict[str, Any]) -> Table:
    """What ran, and how it ended."""
    dtype, tensor = summary["dtype"], summary.get("tensor_size", 1)  # older logs have none
    grid, part = [summary["replicas"], summary["shard_size"], *([tensor] if tensor > 1 else [])], tensor > 1
    values = summary | {"grid": " x ".join(map(str, grid)), "units": len(summary["units"]),
                        "precision": precision({"reduce_dtype": dtype, "sum_dtype": dtype} | summary)}
    names = {"model": "model", "stage": "stage", "precision": "parameters and gradients", "world_size": "ranks",
             "grid": "replicas x shards" + part * " x tensor parallel ranks", "units": "units",
             "psi": "psi (parameters)", "padded_psi": "psi with padding" + part * ", of a tensor parallel rank's part",
             "batch_size": "samples a rank and microbatch", "accumulation": "microbatches in a step",
             "skipped_steps": "skipped steps", "eval_loss": "held-out loss (nats)",
             "replicas_equal": "replicas equal at the end", "weights_sha256": "SHA-256 of the weights"}
    rows = [{"what": words, "value": values[key]} for key, words in names.items()]
    return Table("run", "The run", {"what": "", "value": ""}, rows, "; ".join(summary["mismatches"][:3]))


def begin_table(run: dict[str, Any]) -> Table:
    """What was known before the first step. run: run.json."""
    values = {"run": run["run"], "began": run["began"], "command": run["command"], "MPI": run["mpi"],
              "ranks": ranks_on(run["hosts"]),
              "mesh": " x ".join(f"{size} {axis}" for axis, size in run["mesh"].items()), "data": run["data"],
              **{f"version of {name}": version for name, version in run["versions"].items()},
              **{name: str(value).lower() if isinstance(value, bool | None) else value
                 for name, value in run["settings"].items() if name not in ("data", "model", "stage")}}
    rows = [{"what": words, "value": value} for words, value in values.items()]
    return Table("begin", "How it was started", {"what": "", "value": ""}, rows)


def memory_table(summary: dict[str, Any]) -> Table:
    """Counted beside planned, rank by rank."""
    columns = {"rank": "rank", "at_rest": "at rest", "planned_at_rest": "planned", "after_backward": "after backward",
               "planned_after_backward": "planned", "formula_after_backward": "formula", "peak": "peak",
               "planned_peak": "planned", "equal": "equal", "activation_peak": "peak of activations",
               "device_peak": "peak of the device"}
    rows = [_pick(row | {"rank": rank, "equal": as_planned(row)}, columns)
            for rank, row in enumerate(summary["memory"])]
    return Table("memory", "Memory of model states, bytes", columns, rows,
                 "Formula: ZeRO's closed form for padded psi. Peak of the device: activations and workspace included.")


def as_planned(row: Row) -> bool:
    """Whether a rank's model states had the planned bytes. row: of summary.json's memory."""
    return all(row[key] == row[f"planned_{key}"] for key in ("at_rest", "after_backward", "peak"))


def traffic_table(summary: dict[str, Any], hosts: Sequence[str] = ()) -> Table:
    """Counted beside planned, rank by rank and op by op. hosts: of each rank, shown where there are several."""
    planned, others = ops(summary["traffic"])
    several = len(set(hosts)) > 1 or any(row[BETWEEN] for row in summary["traffic"])
    columns = {"rank": "rank"} | ({"host": "host"} if several and hosts else {})
    for op in planned:
        columns |= {op: op, f"planned_{op}": "planned"}
    columns |= {"sent_bytes_per_step": "sum", "planned_sent_bytes_per_step": "planned",
                **({BETWEEN: "to other hosts", f"planned_{BETWEEN}": "planned"} if several else {}),
                "equal": "equal in every step", "messages_per_step": "messages", **{op: op for op in others}}
    rows = []
    for rank, row in enumerate(summary["traffic"]):
        counted = {op: row["by_op"].get(op, 0) for op in (*planned, *others)}
        plan = {f"planned_{op}": row["planned_by_op"].get(op, 0) for op in planned}
        about = {"rank": rank, "host": hosts[rank] if hosts else None, "equal": on_plan(row)}
        rows.append(_pick(row | counted | plan | about, columns))
    note = f"{' and '.join(others)}: a few bytes by which ranks agree, in no plan and not in the sum." if others else ""
    return Table("traffic", "Sent in a step, bytes", columns, rows, note)


def time_table(trace: dict[str, Any]) -> Table:
    """Where the traced step's time went, rank by rank."""
    seen = {span_of(row) for rank in trace["ranks"] for row in rank["actions"]}
    computed = [name for name in COMPUTED if name != "recompute" or name in seen]
    columns = {"rank": "rank", "host": "host", **{name: name for name in computed},
               "collectives": "collectives", "rest": "rest", "step": "whole step"}
    rows = []
    for rank in trace["ranks"]:
        spans = [*rank["actions"], *rank["collectives"]]
        whole = max((row["end_s"] for row in spans), default=0.0) - min((row["begin_s"] for row in spans), default=0.0)
        parts = {name: sum(_ms(row) for row in rank["actions"] if span_of(row) == name) for name in computed}
        parts["collectives"] = sum(1e3 * row["exposed_s"] for row in rank["collectives"])
        rows.append(_pick(rank | parts | {"rest": 1e3 * whole - sum(parts.values()), "step": 1e3 * whole}, columns))
    return Table("time", f"Time in step {trace['step'] + 1}, milliseconds", columns, rows,
                 "Collectives: where it did nothing else, waiting for others included. Rest: all else, as data, the "
                 f"loss and bookkeeping.{_clocks(trace['ranks'])}")


def overlap_table(trace: dict[str, Any]) -> Table:
    """How much of each rank's communication lay behind computation, who came late, and the same as simulated."""
    columns = {"rank": "rank", "host": "host", "under_way": "collectives under way", "exposed": "of it exposed",
               "hidden": "hidden %", "last": "came last to", "late": "late by, mean"}
    late = _lateness(trace["ranks"])
    rows = []
    for rank in trace["ranks"]:
        spans = sorted((row["begin_s"], row["end_s"]) for row in rank["collectives"])
        row = {"under_way": 1e3 * _union(spans), "exposed": 1e3 * sum(row["exposed_s"] for row in rank["collectives"]),
               "last": len(late[rank["rank"]]),
               "late": 1e3 * sum(late[rank["rank"]]) / len(late[rank["rank"]]) if late[rank["rank"]] else 0.0}
        rows.append(_pick(rank | row | {"hidden": _hidden(row)}, columns))
    played = trace["simulated"]
    spans = sorted((event["begin_s"], event["end_s"]) for event in played["events"] if event["stream"] != COMPUTE)
    row = {"rank": "simulated", "host": "", "under_way": 1e3 * _union(spans), "last": "", "late": "",
           "exposed": 1e3 * (played["seconds"] - played["compute_s"])}
    rows.append(row | {"hidden": _hidden(row)})
    return Table("overlap", f"Communication in step {trace['step'] + 1}, milliseconds", columns, rows,
                 "Exposed: the rank did nothing but wait for a collective. Came last to: of its groups' collectives, "
                 "those that no other rank began later; late by: after the one before it. Simulated: the same list of "
                 "actions, with the mean seconds of each computation, and of each collective what it took once all "
                 "ranks had come.")


def _hidden(row: Row) -> float:
    return 100 * max(1 - row["exposed"] / row["under_way"], 0.0) if row["under_way"] else 0.0


def _union(spans: Sequence[tuple[float, float]]) -> float:
    """Seconds in which at least one of the spans, sorted, lasts."""
    total, until = 0.0, -math.inf
    for begin, end in spans:
        total += max(end - max(begin, until), 0.0)
        until = max(until, end)
    return total


def _lateness(ranks: Sequence[Row]) -> dict[int, list[float]]:
    """Of each rank: by how many seconds it began later than any other rank of the group, for the collectives to which
    it came last."""
    late: dict[int, list[float]] = defaultdict(list)
    for name in ranks[0]["groups"]:
        for members in {tuple(rank["groups"][name]) for rank in ranks if len(rank["groups"][name]) > 1}:
            columns = [[each["begin_s"] for each in ranks[member]["collectives"] if each["group"] == name]
                       for member in members]
            for begins in zip(*columns, strict=False):
                *_, before, last = sorted(begins)
                late[members[begins.index(last)]].append(last - before)
    return late


def _clocks(ranks: Sequence[Row]) -> str:
    """How sure times of different hosts are of one another; "" where there is one host."""
    first = ranks[0]["host"]
    unsure = {row["host"]: row["clock_uncertainty_s"] for row in ranks if row["host"] != first}
    told = ", ".join(f"{host} {1e3 * seconds:.2g}" for host, seconds in unsure.items())
    return f" By so many milliseconds may a host's clock still be off that of {first}: {told}." if unsure else ""


def seconds_tables(summary: dict[str, Any]) -> list[Table]:
    """Where the time of all steps went, rank by rank; none for logs of older versions, which do not tell."""
    if not summary.get("seconds_by") or not summary["seconds_by"][0]:
        return []
    columns = {"rank": "rank", **{part: part for part in summary["seconds_by"][0]}, "sum": "sum"}
    rows = [{"rank": rank, **parts, "sum": sum(parts.values())} for rank, parts in enumerate(summary["seconds_by"])]
    return [Table("seconds", "Where the time went in all steps, seconds", columns, rows,
                  "Waiting: until a collective's first message was there, so for ranks that came later. Rest: norms, "
                  "bookkeeping, and what lies between actions.")]


def unit_table(trace: dict[str, Any]) -> Table:
    """Mean over the ranks of what each segment and unit took in the traced step."""
    spent: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for rank in trace["ranks"]:
        for row in rank["actions"]:
            if row["work"] is not None:
                spent[row["label"] or "loss"][span_of(row)] += _ms(row) / len(trace["ranks"])
    names = [name for name in SPAN_COLORS if any(name in row for row in spent.values())]
    columns = {"unit": "segment or unit"} | {name: name for name in names}
    rows = [{"unit": unit} | {name: row.get(name, 0.0) for name in names} for unit, row in spent.items()]
    return Table("units", f"Segments and units in step {trace['step'] + 1}, milliseconds", columns, rows,
                 "Means over the ranks, microbatches added up; a collective counts waiting for other ranks.")


def collective_table(trace: dict[str, Any]) -> Table:
    """The traced step's collectives by op and group; numbers of one rank, as a mean."""
    columns = {"op": "op", "group": "group", "calls": "calls", "bytes_sent": "bytes sent", "messages": "messages",
               "ms": "milliseconds", "mb_per_s": "MB/s sent"}
    members: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for rank in trace["ranks"]:
        for each in rank["collectives"]:
            members[each["op"], each["group"]].append(each)
    rows, ranks = [], len(trace["ranks"])
    for (op, group), found in members.items():
        sent, spent = sum(each["bytes_sent"] for each in found), sum(map(_ms, found))
        rows.append({"op": op, "group": group, "calls": _mean(len(found), ranks), "bytes_sent": _mean(sent, ranks),
                     "messages": _mean(sum(each["messages"] for each in found), ranks), "ms": spent / ranks,
                     "mb_per_s": sent / spent / 1e3 if spent else 0.0})
    return Table("collectives", f"Collectives of a rank in step {trace['step'] + 1}", columns, rows,
                 "Means over the ranks. MB = 1,000,000 bytes.")


def action_table(trace: dict[str, Any]) -> Table:
    """Every action of the fullest rank, with memory counted and planned."""
    rank = fullest(trace)
    names, planned = kinds(rank["actions"]), also_planned(rank["actions"])
    columns = {"action": "action", "label": "segment or unit", "ms": "milliseconds", **{kind: kind for kind in names},
               "model_states": "model states", "planned": "planned",
               **{f"planned_{kind}": f"planned {kind}" for kind in planned}, "equal": "equal",
               "peak_bytes": "most during it"}
    rows = []
    for row in rank["actions"]:
        plan = {f"planned_{kind}": row["planned_live"].get(kind, 0) for kind in planned}
        states = {"model_states": model_states(row["live"]), "planned": model_states(row["planned_live"])}
        about = {"equal": equals_plan(row), "ms": _ms(row)}
        rows.append(_pick(row | dict.fromkeys(names, 0) | row["live"] | states | plan | about, columns))
    return Table("actions", f"Actions of step {trace['step'] + 1} on rank {rank['rank']}, and bytes live after each",
                 columns, rows)


def step_table(steps: list[dict[str, Any]]) -> Table:
    """All rows of steps.jsonl, as they are: steps count from 0. The page shows them from 1."""
    columns = {"step": "step", "loss": "loss (nats)", "grad_norm": "gradient norm", "lr": "learning rate",
               "loss_scale": "loss scale", "skipped": "skipped", "per_second": "samples or tokens a second",
               "live_bytes": "live bytes", "peak_bytes": "peak bytes", "sent_bytes": "bytes sent"}
    return Table("steps", "Steps", columns, [_pick(row, columns) for row in steps], "Bytes are rank 0's.")


def _pick(row: Row, columns: dict[str, str]) -> Row:
    return {key: row[key] for key in columns}


def _ms(span: Row) -> float:
    return 1e3 * (span["end_s"] - span["begin_s"])


def _mean(total: float, count: int) -> float:
    """An int where it comes out even."""
    return total // count if isinstance(total, int) and total % count == 0 else total / count
