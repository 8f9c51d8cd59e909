"""The folder of `--save`: who may write there, what is complete, and what goes. Of all this rank 0 alone does anything.

A checkpoint becomes visible by one rename, and goes by one. What a run leaves half done is hidden (`temporary`), and
the next run that has the lock removes it. Names that are not ours, and folders with a file that is not, stay.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from mpizero.checkpoint.contents import read_about
from mpizero.checkpoint.files import sync_folder, unwritable, write_durably
from mpizero.checkpoint.format import ABOUT, CHECKPOINT, LATEST, STEP_NAME, encode
from mpizero.errors import CheckpointError

LOCK = ".mpizero-checkpoints"  # `data.files` knows a folder of checkpoints by it
TEMPORARY = re.compile(r"\.(step-\d{8,18}|latest)\.tmp-[\w-]{1,64}", re.ASCII)
OURS = re.compile(r"part-\d{4,9}\.(bin|json)|checkpoint\.json", re.ASCII)


def temporary(name: str, run: str) -> str:
    """What a file or folder is called until it is whole."""
    return f".{name}.tmp-{run}"


def lock(folder: Path, run: str) -> TextIO:
    """Make the folder, keep other runs out as long as the file is open, and remove what a killed run has left.

    CheckpointError if it cannot be written, or another run saves there.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = open(folder / LOCK, "a+", encoding="ascii", errors="replace")
        alone = _locked(file, folder)
        file.truncate(0)
        file.write(f"{run}\n")
        file.flush()
    except OSError as error:
        raise unwritable(Path(error.filename or folder / LOCK), error) from None
    if alone:
        for path in folder.iterdir():
            if TEMPORARY.fullmatch(path.name):
                _remove(path)
    return file


def _locked(file: TextIO, folder: Path) -> bool:
    """A lock that ends with the process, however it ends. False on file systems that have none."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.seek(0)
        other = re.fullmatch(r"([\w-]{1,64})\n", file.read(), re.ASCII)
        raise CheckpointError(f"another run{f' ({other[1]})' if other else ''} saves into {folder}: wait until it has "
                              "ended, or name another folder with `save`") from None
    except OSError:
        return False
    return True


def complete(folder: Path) -> dict[Path, dict[str, Any]]:
    """Complete checkpoints by what their checkpoint.json says, the last saved first."""
    found = {}
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            if STEP_NAME.fullmatch(path.name) and path.is_dir() and not path.is_symlink():
                with contextlib.suppress(CheckpointError):
                    found[path] = read_about(path)
    order = sorted(found, key=lambda path: (found[path]["saved"], found[path]["step"]), reverse=True)
    return {path: found[path] for path in order}


def commit(made: Path, target: Path, about: Mapping[str, Any], run: str) -> None:
    """Complete the temporary folder `made` by its checkpoint.json, give it its name, and let `latest` say so."""
    write_durably(made / ABOUT, encode(CHECKPOINT, about))
    sync_folder(made)
    _set_aside(target)
    os.rename(made, target)
    sync_folder(target.parent)
    part = target.parent / temporary(LATEST, run)
    write_durably(part, f"{target.name}\n".encode())
    os.rename(part, target.parent / LATEST)
    sync_folder(target.parent)


def _set_aside(target: Path) -> None:
    """What has the name already, say of a run that went on from an earlier step, moves to older/."""
    if not os.path.lexists(target):
        return
    older, number = target.parent / "older", 1
    older.mkdir(exist_ok=True)
    while os.path.lexists(place := older / (target.name if number == 1 else f"{target.name}-{number}")):
        number += 1
    os.rename(target, place)


def remove_old(newest: Path, keep: int, runs: Sequence[str]) -> list[str]:
    """Of the complete checkpoints that these runs have written, leave the `keep` last saved, `newest` among them; the
    names of those that are gone."""
    mine = [path for path, about in complete(newest.parent).items()
            if path != newest and about["runs"] and about["runs"][-1] in runs]
    gone = []
    for path in mine[keep - 1 :]:
        if all(OURS.fullmatch(name) for name in os.listdir(path)):
            hidden = path.with_name(temporary(path.name, runs[-1]))  # a half removed one must not look complete
            os.rename(path, hidden)
            _remove(hidden)
            gone.append(path.name)
    return gone


def _remove(path: Path) -> None:
    """A file or folder of ours, if nothing else is in it. What cannot be removed stays."""
    with contextlib.suppress(OSError):
        if path.is_symlink() or not path.is_dir():
            path.unlink()
        elif all(OURS.fullmatch(name) for name in os.listdir(path)):
            shutil.rmtree(path)
