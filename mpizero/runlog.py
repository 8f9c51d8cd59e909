"""The folder of `--log`: what a run writes there, when, and what becomes of an older run's files."""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn, TextIO, final

from mpizero.engine.job import Job
from mpizero.engine.summary import facts
from mpizero.engine.trainer import StepRecord
from mpizero.errors import ConfigError
from mpizero.output import finite, write_json

# What a run writes, and what a report of it does (`mpizero.report`)
RESULTS = ("steps.jsonl", "summary.json", "trace.json")
DRAWN = ("report.html", "perfetto.json",
         *(f"{name}.{form}" for name in ("loss", "memory", "traffic", "gantt") for form in ("png", "svg")))


def new_id() -> str:
    """`20261130-031502-ab12cd`: the time in UTC, and something that no other run has."""
    return f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{secrets.token_hex(3)}"


@final
@dataclass
class RunLog:
    """The files of a run that goes on. older: where those of another one are now, if there were some.

    about: run.json, open and locked as long as the process lives: so no second run writes into the folder.
    """

    folder: Path
    run: str
    steps: TextIO
    about: TextIO
    older: Path | None

    @property
    def files(self) -> list[str]:
        """The names of what stands there now."""
        return [name for name in ("run.json", *RESULTS) if (self.folder / name).exists()]

    def append(self, record: StepRecord) -> None:
        """A line of steps.jsonl, whole."""
        line = json.dumps(finite({"run": self.run, **asdict(record)}), allow_nan=False) + "\n"
        try:
            self.steps.write(line)
            self.steps.flush()
        except OSError as error:
            _fail(self.steps.name, error)

    def end(self, summary: dict[str, Any], trace: dict[str, Any] | None) -> None:
        """Write the other files and let go of the folder. trace: None if no step was traced."""
        write_json(self.folder / "summary.json", summary, "`log`")
        if trace is not None:
            write_json(self.folder / "trace.json", {"run": self.run, **trace}, "`log`")
        self.steps.close()
        self.about.close()


def begin_log(folder: str | Path, run: str, command: Sequence[str], job: Job) -> RunLog:
    """`open_log` in a folder that is made if need be, with what is known of the run before its first step. command: the
    module and its arguments."""
    make_folder(folder)
    about = {"began": datetime.now().astimezone().isoformat(timespec="seconds"),
             "command": shlex.join(["python", "-m", *command]), **facts(job)}
    return open_log(folder, run, about)


def make_folder(folder: str | Path) -> None:
    """ConfigError if it cannot be made."""
    try:
        os.makedirs(folder, exist_ok=True)
    except FileExistsError:
        raise ConfigError(f"`log` {folder} is a file: give a folder, which is made if need be") from None
    except OSError as error:
        _fail(folder, error)


def open_log(folder: str | Path, run: str, about: Mapping[str, Any]) -> RunLog:
    """Move an older run's files away, and write run.json: `about` with the run's identifier.

    ConfigError if it cannot be written, or another run writes there.
    """
    folder = Path(folder)
    try:
        file = open(folder / "run.json", "a+", encoding="utf-8", errors="surrogateescape")
        _lock(file, folder)
        older = _move_older(folder, file)
        file.truncate(0)
        file.write(json.dumps(finite({"run": run, **about}), indent=1, allow_nan=False) + "\n")
        file.flush()
        return RunLog(folder, run, open(folder / "steps.jsonl", "w", encoding="utf-8"), file, older)
    except OSError as error:
        _fail(error.filename or folder / "run.json", error)


def _lock(file: TextIO, folder: Path) -> None:
    """A lock that ends with the process, however it ends. Some file systems have none; there nobody is stopped."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.seek(0)
        raise ConfigError(f"`log` {folder} is being written by another run{_id_in(file.read(), ' ')}: wait until it "
                          "has ended, or name another folder") from None
    except OSError:
        pass


def _move_older(folder: Path, about: TextIO) -> Path | None:
    """Move the files of an older run to older/ITS IDENTIFIER, or its date if it has none. They are never overwritten.

    run.json itself stays, since it is locked: its text is copied.
    """
    about.seek(0)
    text = about.read()
    there = [name for name in RESULTS if (folder / name).exists()]
    if not text and not there:
        return None
    written = os.path.getmtime(folder / (there or ["run.json"])[0])
    name = _id_in(text) or time.strftime("%Y%m%d-%H%M%S", time.gmtime(written))
    target = _new_folder(folder / "older", name)
    for each in (*there, *(name for name in DRAWN if (folder / name).exists())):
        os.rename(folder / each, target / each)
    if text:
        (target / "run.json").write_text(text, encoding="utf-8", errors="surrogateescape")
    return target


def _new_folder(parent: Path, name: str) -> Path:
    """parent/name, or parent/name-2 if that is there already, and so on."""
    parent.mkdir(exist_ok=True)
    number = 1
    while True:
        target = parent / (name if number == 1 else f"{name}-{number}")
        try:
            target.mkdir()
            return target
        except FileExistsError:
            number += 1


def _id_in(text: str, before: str = "") -> str:
    """The identifier in a text of run.json, "" if it has none that could name a folder."""
    try:
        run = json.loads(text)["run"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return ""
    fine = isinstance(run, str) and run.replace("-", "").isalnum() and run.isascii() and len(run) < 64
    return before + run if fine else ""


def _fail(path: object, error: OSError) -> NoReturn:
    raise ConfigError(f"`log` {path} cannot be written: {error.strerror}") from None
