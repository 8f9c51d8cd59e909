"""Several runs beside one another: may their losses be compared, what differs between them, and do they agree?"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mpizero.report.log import Log
from mpizero.report.tables import Table, speed
from mpizero.report.traffic import BETWEEN, SENT
from mpizero.text import readable

# Settings that change bytes, messages and time, but not what is trained
HOW = ("stage", "shard_size", "no_sync", "wrap", "tiles", "backward_prefetch", "forward_prefetch", "keep_last_unit",
       "limit_all_gathers", "overlap", "recompute", "recompute_interval", "partition_activations", "bucket_size",
       "tensor_size", "offload", "allocator", "device_memory", "host_memory", "host_threads", "limit",
       "check_replicas", "eval_every", "data", "save", "save_every", "keep", "resume")
SPLIT = ("ranks", "batch_size", "accumulation")  # their product is what one step takes
# What decides in which order terms are added, though it does not change them
ORDER = {"ranks": "number of ranks", "batch_size": "batch of a rank", "accumulation": "number of microbatches",
         "no_sync": "moment of reducing", "hybrid": "mesh", "wrap": "wrapping", "tiles": "tiles",
         "tensor_size": "tensor parallel ranks"}
LONGEST = 28  # characters of a run's name
NAMED = 3  # settings in it
Settings = dict[str, Any]
Losses = dict[int, float | None]  # number of the step, from 1 -> loss


@dataclass(frozen=True)
class Run:
    """A log with a name that tells it from the others. differs: what makes its training another one than the first
    run's: settings with both values; "" if nothing does."""

    name: str
    log: Log
    differs: str

    @property
    def losses(self) -> Losses:
        return {row["step"] + 1: row["loss"] for row in self.log.steps}


def compare(logs: Sequence[Log]) -> list[Run]:
    """The runs; the first is what others are held against."""
    first = trained(logs[0])
    return [Run(name, log, _differences(first, trained(log))) for name, log in zip(names(logs), logs, strict=True)]


def settings(log: Log) -> Settings:
    """What the run was asked to do. Empty where no file tells."""
    if log.run is not None:
        return {"ranks": log.run["world_size"], **log.run["settings"]}
    if log.summary is None:
        return {}
    told = ("model", "stage", "dtype", "shard_size", "batch_size", "accumulation", "psi")
    return {"ranks": log.summary["world_size"], **{name: log.summary[name] for name in told}}


def trained(log: Log) -> Settings:
    """What of its settings decides about losses, but for the order of additions."""
    every = settings(log)
    found = {name: value for name, value in every.items() if name not in (*HOW, *SPLIT)}
    if total := found.pop("global_batch", None):
        found["samples in a step"] = total
    elif all(name in every for name in SPLIT):
        found["samples in a step"] = math.prod(every[name] for name in SPLIT)
    return found | ({"data": log.run["data"]} if log.run is not None else {})


def names(logs: Sequence[Log]) -> list[str]:
    """By the settings that differ, if those are few: `stage 3`, `stage 3, shard size 2`; else by their folders."""
    every = [settings(log) for log in logs]
    differing = [name for name in _keys(every) if len({repr(each.get(name)) for each in every}) > 1]
    found = [", ".join(_say(name, each[name]) for name in differing if each.get(name) is not None) for each in every]
    folders = [readable(log.folder.name) for log in logs]
    if len(differing) > NAMED or any(not 0 < len(name) <= LONGEST for name in found):
        found = folders
    again = Counter(found)
    return [name if again[name] == 1 else f"{name} ({folder if again[folder] == 0 else number})"
            for number, (name, folder) in enumerate(zip(found, folders, strict=True), 1)]


def _say(name: str, value: Any) -> str:
    words = name.replace("_", " ")
    if isinstance(value, bool):
        return words if value else f"with {words[3:]}" if words.startswith("no ") else f"not {words}"
    return f"{value} ranks" if name == "ranks" else f"{words} {value}"


def _keys(every: Sequence[Settings]) -> list[str]:
    return list(dict.fromkeys(name for each in every for name in each))


def _differences(first: Settings, other: Settings) -> str:
    found = [f"{name.replace('_', ' ')} is {_show(other.get(name))}, not {_show(first.get(name))}"
             for name in _keys([first, other]) if first.get(name) != other.get(name)]
    return ", ".join(found[:NAMED]) + (f" and {len(found) - NAMED} more" if len(found) > NAMED else "")


def _show(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool | None) else str(value)


# -- what there is to say ---------------------------------------------------------------------------------------------


def differences(first: Losses, other: Losses) -> dict[int, float]:
    """step -> other - first, where both have the step."""
    return {step: _difference(first[step], loss) for step, loss in other.items() if step in first}


def _difference(first: float | None, other: float | None) -> float:
    """0.0 where bits are equal or neither is a number; infinite where only one is."""
    if first is None or other is None:
        return 0.0 if first is other else math.inf
    return other - first


def verdicts(runs: Sequence[Run]) -> list[str]:
    """Which losses agree with those of the first run, and how far the others are off; which weights."""
    first = runs[0]
    same: dict[int, list[str]] = {}
    said = []
    for run in runs[1:]:
        apart = differences(first.losses, run.losses)
        off = [step for step, difference in apart.items() if difference]
        if run.differs:
            said.append(f"{run.name} trains something else than {first.name}, so their losses are not held against one "
                        f"another: {run.differs}.")
        elif not apart:
            said.append(f"{run.name} and {first.name} have no step in common.")
        elif off:
            said.append(f"{run.name}: the loss differs from that of {first.name} in {len(off):,} of {len(apart):,} "
                        f"steps, first in step {off[0]:,}, by at most {max(map(abs, apart.values())):.2g}."
                        f"{_reason(first.log, run.log)}")
        else:
            same.setdefault(len(apart), []).append(run.name)
    equal = [f"{_list(found)}: all {steps:,} losses are those of {first.name}, bit for bit: the difference is exactly "
             "zero." for steps, found in same.items()]
    return [*equal, *said, *_weights(runs)]


def _reason(first: Log, other: Log) -> str:
    """Why equal training gives other bits; "" where nothing tells."""
    orders = [_order(log) for log in (first, other)]
    found = [words for name, words in ORDER.items() if orders[0].get(name) != orders[1].get(name)]
    if not found:
        return ""
    return (f" With another {' and '.join(found)} the same terms are added in another order, and each sum is "
            f"rounded to {orders[1].get('dtype', 'its type')}, which later steps amplify: bits are "
            "the same across stages, not across that.")


def _order(log: Log) -> Settings:
    """The settings of `ORDER`. Groups of one rank, and of all, add as data parallelism does."""
    found = settings(log)
    ranks, shards = found.get("ranks"), found.get("shard_size")
    alone = found.get("accumulation", 1) == 1  # then there is one moment of reducing
    return {**found, "no_sync": not alone and found.get("no_sync"), "hybrid": None if shards in (1, ranks) else shards}


def _weights(runs: Sequence[Run]) -> list[str]:
    """Whose master weights at the end are those of the first run."""
    ended = [run for run in runs if run.log.summary is not None and not run.differs]
    if len(ended) < 2 or ended[0] is not runs[0]:
        return []
    digests = [run.log.summary["weights_sha256"] for run in ended if run.log.summary is not None]
    equal = [run.name for run, digest in zip(ended[1:], digests[1:], strict=True) if digest == digests[0]]
    other = [run.name for run in ended[1:] if run.name not in equal]
    said = [f"The master weights at the end are those of {runs[0].name}, bit for bit: {_list(equal)}."] if equal else []
    return said + ([f"The master weights at the end are others: {_list(other)}."] if other else [])


def _list(found: Sequence[str]) -> str:
    """`a, b and c`; with semicolons where names have commas."""
    comma = "; " if any("," in name for name in found) else ", "
    return f"{comma.join(found[:-1])} and {found[-1]}" if len(found) > 1 else found[0]


# -- tables -----------------------------------------------------------------------------------------------------------


def tables(runs: Sequence[Run]) -> list[Table]:
    """The runs, and what differs between them."""
    return [_runs_table(runs), _settings_table(runs)]


def _runs_table(runs: Sequence[Run]) -> Table:
    """One row each. Bytes: of the rank that has most."""
    columns = {"run": "run", "ranks": "ranks", "began": "began", "steps": "steps", "seconds": "seconds",
               "ms": "ms a step", "per_second": "samples or tokens a second", "loss": "last loss (nats)",
               "eval_loss": "held-out loss (nats)", "weights": "weights, SHA-256", "after_backward": "after backward",
               "peak": "peak of model states", "device_peak": "peak of the device", "sent": "sent a step",
               "between": "of it to other hosts", "messages": "messages"}
    rows = []
    for run in runs:
        row: Settings = {**dict.fromkeys(columns), "run": run.name, "ranks": settings(run.log).get("ranks"),
                         "began": run.log.run["began"] if run.log.run is not None else None,
                         **speed(run.log)}
        row["loss"] = run.log.steps[-1]["loss"] if run.log.steps else None
        if run.log.summary is not None:
            row |= _ended(run.log.summary)
        rows.append({key: row[key] for key in columns})
    return Table("runs", "The runs", columns, rows, "Bytes are those of the rank that has most of them.")


def _ended(summary: dict[str, Any]) -> Settings:
    most = {key: max(row[key] for row in summary["memory"]) for key in ("after_backward", "peak", "device_peak")}
    sent = {name: max(row[key] for row in summary["traffic"]) for name, key in
            (("sent", SENT), ("between", BETWEEN), ("messages", "messages_per_step"))}
    return {**most, **sent, "eval_loss": summary["eval_loss"], "weights": summary["weights_sha256"][:12]}


def _settings_table(runs: Sequence[Run]) -> Table:
    """A column for each run; settings that differ, then what differs of where they ran."""
    every = [settings(run.log) | _where(run.log) for run in runs]
    columns = {"what": "", **{f"run{number}": run.name for number, run in enumerate(runs)}}
    rows = [{"what": name, **{f"run{number}": _show(each.get(name)) for number, each in enumerate(every)}}
            for name in _keys(every) if len({repr(each.get(name)) for each in every}) > 1]
    note = "" if rows else "Nothing that their logs tell."
    return Table("settings", "What differs between the runs", columns, rows, note)


def _where(log: Log) -> Settings:
    if log.run is None:
        return {}
    hosts = ", ".join(f"{ranks} on {host}" for host, ranks in Counter(log.run["hosts"]).items())
    return {"MPI": log.run["mpi"], "hosts": hosts,
            **{f"version of {name}": version for name, version in log.run["versions"].items()}}
