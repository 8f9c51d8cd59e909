"""The files of a training log (`python -m mpizero.train --log DIR`), read and checked whole before one is drawn."""

from __future__ import annotations

import fcntl
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mpizero.errors import ConfigError
from mpizero.report.spans import SPAN_OF_WORK

# A shape is a type, a tuple of types, [shape of each item], {str: shape of each value}, or {key: shape}, which names
# the keys that must be there.
STEPS = "steps.jsonl"
NUMBER = (int, float)
OR_NULL = (int, float, type(None))  # NaN and infinity count as null: neither can be drawn
STEP = {"step": int, "loss": OR_NULL, "grad_norm": OR_NULL, "lr": NUMBER, "loss_scale": NUMBER, "skipped": bool,
        "per_second": NUMBER, "live_bytes": int, "peak_bytes": int, "sent_bytes": int}
MEMORY = {"at_rest": int, "planned_at_rest": int, "after_backward": int, "planned_after_backward": int,
          "formula_after_backward": NUMBER, "by_kind": {str: {"after_backward": int}}, "peak": int,
          "planned_peak": int, "activation_peak": int, "device_peak": int}
TRAFFIC = {"by_op": {str: int}, "planned_by_op": {str: int}, "sent_bytes_per_step": int,
           "planned_sent_bytes_per_step": int, "messages_per_step": int, "steps_off_plan": int,
           "between_hosts_bytes_per_step": int, "planned_between_hosts_bytes_per_step": int}
SUMMARY = {"world_size": int, "stage": str, "model": str, "dtype": str, "shard_size": int, "replicas": int,
           "batch_size": int, "accumulation": int, "psi": int, "padded_psi": int, "units": [int], "losses": [OR_NULL],
           "eval_loss": OR_NULL, "skipped_steps": int, "replicas_equal": bool, "mismatches": [str],
           "weights_sha256": str, "memory": [MEMORY],
           "traffic": [TRAFFIC]}
SPAN = {"phase": str, "begin_s": NUMBER, "end_s": NUMBER}
ACTION = SPAN | {"action": str, "kind": str, "work": (str, type(None)), "computes": bool, "label": str,
                 "live": {str: int}, "peak_bytes": int, "peak_live": {str: int}, "planned_live": {str: int},
                 "planned_peak_bytes": int}
COLLECTIVE = SPAN | {"op": str, "unit": str, "group": str, "bytes_sent": int, "bytes_received": int, "messages": int,
                     "exposed_s": NUMBER,
                     "sends": [{"to": int, "bytes": int, "begin_s": NUMBER}],
                     "arrivals": [{"from": int, "bytes": int, "end_s": NUMBER}]}
MOVE = {"link": str, "source": str, "target": str, "what": str, "unit": str, "bytes": int, "begin_s": NUMBER,
        "end_s": NUMBER, "exposed_s": NUMBER}
RANK = {"rank": int, "host": str, "clock_offset_s": NUMBER, "clock_uncertainty_s": NUMBER, "groups": {str: [int]},
        "actions": [ACTION], "collectives": [COLLECTIVE], "moves": [MOVE]}
PLAYED = {"work": str, "label": str, "stream": str, "begin_s": NUMBER, "end_s": NUMBER}
TRACE = {"step": int, "stage": str, "model": str, "dtype": str, "world_size": int, "capacity": (int, type(None)),
         "ranks": [RANK],
         "simulated": {"seconds": NUMBER, "compute_s": NUMBER, "communication_s": NUMBER, "events": [PLAYED]}}
SETTING = (str, int, float, bool, type(None))
RUN = {"run": str, "began": str, "command": str, "model": str, "stage": str, "world_size": int, "mesh": {str: int},
       "hosts": [str], "mpi": str, "versions": {str: str}, "psi": int, "data": str, "settings": {str: SETTING}}
PARTS = [{str: NUMBER}]  # seconds of each rank, by part
OWN_RUN = (str, type(None))  # the run's identifier in the other files; older versions wrote none
NAMES = {dict: "an object", list: "a list", str: "a string", int: "a whole number", float: "a number",
         bool: "true or false", type(None): "null"}


@dataclass(frozen=True)
class Log:
    """One run. summary: None if it has not ended; trace: None if no step was traced; run: run.json, None in logs of
    older versions. running: it is being written. notes: what was left out, and why: sentences."""

    folder: Path
    steps: list[dict[str, Any]]
    summary: dict[str, Any] | None
    trace: dict[str, Any] | None
    run: dict[str, Any] | None = None
    running: bool = False
    notes: tuple[str, ...] = ()

    @property
    def hosts(self) -> list[str]:
        """Of each rank; empty where no file tells."""
        if self.run is not None:
            return list(self.run["hosts"])
        return [] if self.trace is None else [rank["host"] for rank in self.trace["ranks"]]


def read_log(folder: str | Path) -> Log:
    """All files of the log; `ConfigError` for the first thing that is wrong with them."""
    folder = Path(folder)
    if not folder.is_dir():
        what = "is not a folder" if folder.exists() else "does not exist"
        raise ConfigError(f"{folder} {what}: give the folder that a run wrote, as in python -m mpizero.train --log DIR")
    if not (folder / STEPS).exists():
        raise ConfigError(f"{folder} is not a training log: it has no steps.jsonl; a run writes one with python -m "
                          "mpizero.train --log DIR")
    notes: list[str] = []
    running = _running(folder / "run.json")
    about, steps = _read(folder / "run.json", RUN), _read_steps(folder / "steps.jsonl", notes)
    run = about["run"] if about is not None else steps[0].get("run") if steps else None
    strange = next((row for row in steps if row.get("run") != run), None)
    if strange is not None:
        line = steps.index(strange) + 1
        raise ConfigError(f"{folder / 'steps.jsonl'}, line {line}, is of another run ({strange.get('run')}) than "
                          f"{'run.json' if about else 'the first one'} ({run}): give the folder of one run")
    summary, trace = _read(folder / "summary.json", SUMMARY), _read(folder / "trace.json", TRACE)
    if summary is not None:
        _check(summary.get("seconds_by", []), PARTS, f"{folder / 'summary.json'}: seconds_by")
    if trace is not None:
        _check_trace(folder / "trace.json", trace)
    return Log(folder, steps, _of_run("summary.json", summary, run, notes), _of_run("trace.json", trace, run, notes),
               about, running, tuple(notes))


def _of_run(name: str, value: dict[str, Any] | None, run: str | None, notes: list[str]) -> dict[str, Any] | None:
    """The file's content, None if it is of another run than the steps."""
    if value is None or value.get("run") == run:
        return value
    notes.append(f"{name} is of another run ({value.get('run')}) than the steps ({run}): it is left out.")
    return None


def _running(path: Path) -> bool:
    """Whether the run that writes the log lives: it holds a lock on run.json."""
    try:
        with open(path, encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # there is no such file; or no locks, where nobody knows
        pass
    return False


def _read_steps(path: Path, notes: list[str]) -> list[dict[str, Any]]:
    """Every line. A last one without its end is dropped if it is not whole: the run was stopped while it wrote, or is
    writing now."""
    *lines, last = _text(path).split("\n")
    steps: list[dict[str, Any]] = []
    for number, line in enumerate([*lines, last] if _whole(last) else lines, 1):
        where = f"{path}, line {number}"
        steps.append(_parse(line, where))
        _check(steps[-1], STEP, where)
        _check(steps[-1].get("run"), OWN_RUN, f"{where}: run")
        for key in ("seconds", "eval_loss"):
            _check(steps[-1].get(key), OR_NULL, f"{where}: {key}")  # older versions wrote none
    if last and len(steps) == len(lines):
        notes.append(f"The last line of steps.jsonl is torn: {len(steps):,} whole steps.")
    return steps


def _whole(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _read(path: Path, shape: Any) -> dict[str, Any] | None:
    if not path.exists():
        return None
    value = _parse(_text(path), str(path))
    _check(value, shape, str(path))
    _check(value.get("run"), OWN_RUN, f"{path}: run")
    return value


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not text: give the folder of a training log") from None


def _parse(text: str, where: str) -> Any:
    try:
        return json.loads(text, parse_constant=lambda name: None)
    except json.JSONDecodeError as error:
        what = f"is not whole JSON ({error.msg} at column {error.colno})"
        raise ConfigError(f"{where} {what}: was the run stopped while it wrote? Run it again") from None
    except (ValueError, RecursionError):  # a number of thousands of digits; lists in lists in lists
        raise ConfigError(f"{where} holds JSON that no run wrote: give the folder of a training log") from None


def _check(value: Any, shape: Any, where: str) -> None:
    """Raise `ConfigError` naming the place where `value` does not have the shape."""
    if isinstance(shape, list):
        _expect(value, (list,), where)
        for index, item in enumerate(value):
            _check(item, shape[0], f"{where}[{index}]")
    elif isinstance(shape, dict):
        _expect(value, (dict,), where)
        for key, inner in shape.items():
            if key is str:
                for name, item in value.items():
                    _check(item, inner, f"{where}: {name}")
            elif key in value:
                _check(value[key], inner, f"{where}: {key}")
            else:
                raise ConfigError(f"{where}: the key {key!r} is missing: it was written by another program, or another "
                                  "version of this one")
    else:
        _expect(value, shape if isinstance(shape, tuple) else (shape,), where)


def _expect(value: Any, types: tuple[type, ...], where: str) -> None:
    if type(value) not in types:  # not isinstance: true is no number
        raise ConfigError(f"{where} must be {NAMES[types[0]]}, not {NAMES[type(value)]}: it was written by another "
                          "program, or edited")
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{where} is beyond any number that a run writes: it was edited")


def _check_trace(path: Path, trace: dict[str, Any]) -> None:
    """What shapes cannot say: ranks are 0, 1, 2..., each span ends after it begins, each kind of work is one that we
    know, and messages go between ranks that exist."""
    if not trace["ranks"] or [rank["rank"] for rank in trace["ranks"]] != list(range(trace["world_size"])):
        raise ConfigError(f"{path}: the ranks must be 0 to {trace['world_size'] - 1} in order (world_size is "
                          f"{trace['world_size']})")
    for rank in trace["ranks"]:
        for span in (*rank["actions"], *rank["collectives"], *rank["moves"]):
            if span["end_s"] < span["begin_s"]:
                what = span.get("action") or span.get("op") or f"the move of {span['what']} {span['unit']}"
                raise ConfigError(f"{path}: rank {rank['rank']}: {what} ends before it begins")
        for row in rank["actions"]:
            if row["work"] not in (None, *SPAN_OF_WORK):
                raise ConfigError(f"{path}: rank {rank['rank']}: {row['action']} does {row['work']!r}, a kind of work "
                                  "that is not known here: it was written by another version of this program")
        peers = {row[key] for each in rank["collectives"] for rows, key in (("sends", "to"), ("arrivals", "from"))
                 for row in each[rows]}
        if strangers := sorted(peers - set(range(trace["world_size"]))):
            raise ConfigError(f"{path}: rank {rank['rank']} talks to rank {strangers[0]}, which does not exist")
