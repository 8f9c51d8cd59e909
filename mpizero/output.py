"""What commands write: files whole or not at all, standard output, and the sentence and exit status of what failed."""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import secrets
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mpizero.errors import ConfigError, MpizeroError
from mpizero.launcher import rank_in_job
from mpizero.text import readable

USER_ERROR = 2  # exit status, as of entry points with ranks


def check_writable(flag: str, path: str | Path | None) -> None:
    """Raise `ConfigError` before long work if the file cannot be written after it. Leaves everything as it is."""
    if path is None:
        return
    try:
        if os.path.exists(path):
            open(path, "a", encoding="utf-8").close()
        else:
            _make_and_remove(path)
        if _replaceable(path):
            _make_and_remove(_part(path))
    except OSError as error:
        raise ConfigError(f"{flag} {path} cannot be written: {error.strerror}") from None


def write_json(path: str | Path, data: Any, flag: str = "--json") -> None:
    """`data` as JSON, which replaces the file whole or not at all; a `ConfigError` if it cannot be written. flag: with
    which the user has named it."""
    text, part = json.dumps(finite(data), indent=1, allow_nan=False) + "\n", _part(path)
    try:
        Path(part if _replaceable(path) else path).write_text(text, encoding="utf-8")
        if _replaceable(path):
            os.replace(part, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.unlink(part)
        raise ConfigError(f"{flag} {path} cannot be written: {error.strerror}") from None


def _replaceable(path: str | Path) -> bool:
    """Whether a new file can take its place: not that of a device or a pipe."""
    return os.path.isfile(path) or not os.path.exists(path)


def _part(path: str | Path) -> str:
    """A new name beside the file."""
    return os.path.join(os.path.dirname(path), f".mpizero-{secrets.token_hex(4)}.part")


def _make_and_remove(path: str | Path) -> None:
    open(path, "x", encoding="utf-8").close()
    os.unlink(path)


def finite(data: Any) -> Any:
    """`data` with None for numbers that JSON does not have, NaN and the infinities, and names of files that are not
    UTF-8 as a terminal shows them."""
    if isinstance(data, dict):
        return {key: finite(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [finite(value) for value in data]
    if isinstance(data, str):
        return readable(data)
    return None if isinstance(data, float) and not math.isfinite(data) else data


def printer(rank: int) -> Callable[[str], None]:
    """`tell`, on rank 0; nothing on the others."""

    def say(text: str) -> None:
        if rank == 0:
            tell(text)

    return say


def tell(text: str, end: str = "\n") -> None:
    """print; a `ConfigError` where standard output takes no more."""
    try:
        print(text, end=end, flush=True)
    except BrokenPipeError:  # whoever read has enough
        raise
    except OSError as error:
        _write_no_more()
        raise ConfigError(f"standard output cannot be written: {error.strerror}") from None


def alone(act: Callable[[], object]) -> int:
    """The frame of an entry point that needs no ranks: does `act`, and returns the exit status. A mistake of the user's
    is one sentence and status 2. Of the ranks of an mpirun, one works and speaks."""
    if rank_in_job():
        return 0
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a name that the terminal cannot show is no reason to fail
            stream.reconfigure(errors="backslashreplace")
    try:
        try:
            act()
        finally:  # here it can still be said that standard output, of --help too, cannot be written
            if sys.stdout is not None:
                sys.stdout.flush()
    except MpizeroError as error:
        return _failed(str(error))
    except BrokenPipeError:  # `| head` has seen enough
        _write_no_more()
    except OSError as error:  # those of files are MpizeroErrors
        if error.filename is not None:
            raise
        _write_no_more()
        return _failed(f"standard output cannot be written: {error.strerror}")
    return 0


def _failed(sentence: str) -> int:
    print(f"mpizero: error: {sentence}", file=sys.stderr)
    return USER_ERROR


def _write_no_more() -> None:
    """Python would try again at its end to write what it could not."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
