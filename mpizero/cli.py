"""Command lines: argparse whose mistakes are `ConfigError`s, and the keys of a TOML file as flags that come first."""

from __future__ import annotations

import argparse
import difflib
import functools
import json
import math
import os
import re
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, ParamSpec, TypeVar

from mpizero.engine.config import TrainConfig
from mpizero.errors import ConfigError, MpizeroError
from mpizero.launcher import rank_in_job

if TYPE_CHECKING:
    from mpizero.comm import Group

# as they are written, without the dashes in front
FLAGS = {field.name.replace("_", "-"): field for field in fields(TrainConfig)}
P = ParamSpec("P")
T = TypeVar("T")


def spelled(ranks: str = "mpirun -n") -> Callable[[Callable[P, T]], Callable[P, T]]:
    """For entry points: errors that name fields in backticks name flags instead. ranks: how the user asks for a number
    of ranks."""
    def as_flag(match: re.Match[str]) -> str:
        return ranks if match[1] == "ranks" else "--" + match[1].replace("_", "-")

    def decorate(main: Callable[P, T]) -> Callable[P, T]:
        @functools.wraps(main)
        def inner(*args: P.args, **kwargs: P.kwargs) -> T:
            try:
                return main(*args, **kwargs)
            except MpizeroError as error:
                error.args = (re.sub(r"`([a-z][a-z_]*)`", as_flag, str(error)),)
                raise
        return inner
    return decorate


class Parser(argparse.ArgumentParser):
    """Raises a `ConfigError` instead of printing a usage once per rank."""

    def __init__(self, **options: Any):
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False, **options)

    def print_help(self, file: Any = None) -> None:
        """Once, not once per rank."""
        if not rank_in_job():
            super().print_help(file)

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message} (see {self.prog} --help)")


def add_train_flags(parser: argparse.ArgumentParser) -> None:
    """One flag for each field of `TrainConfig`."""
    for name, field in FLAGS.items():
        parser.add_argument(f"--{name}", dest=field.name, default=argparse.SUPPRESS, **field.metadata)
    parser.add_argument("--config", metavar="FILE.toml",
                        help="keys are the flags' names without dashes in front; flags win")


def train_config(parser: argparse.ArgumentParser, argv: Sequence[str]) -> TrainConfig:
    """Defaults, then the TOML file, then flags. ConfigError for what can never work."""
    options = vars(parser.parse_args(argv))
    path = options.pop("config")
    if path is not None:
        options = vars(parser.parse_args([*_toml_flags(Path(path)), *argv]))
        del options["config"]
    config = TrainConfig(**options)
    config.resolved()  # raises
    return config


def _toml_flags(path: Path) -> list[str]:
    """The file's keys as command-line flags."""
    if path.exists() and not path.is_file():
        raise ConfigError(f"--config {path} is not a regular file: name a TOML file")
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"--config {path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:  # not TOML, not UTF-8, or numbers and nesting beyond Python's limits
        raise ConfigError(f"--config {path} is not TOML: {' '.join(str(error).split())[:200]}") from None
    flags = []
    for key, value in values.items():
        if key not in FLAGS:
            near = difflib.get_close_matches(key, FLAGS, n=1)
            cure = f"did you mean {near[0]!r}?" if near else f"keys are {', '.join(FLAGS)}"
            raise ConfigError(f"--config {path}: unknown key {key!r}: {cure}")
        is_switch, is_scalar = "action" in FLAGS[key].metadata, isinstance(value, bool | int | float | str)
        if isinstance(value, bool) != is_switch or not is_scalar or "\0" in str(value)[:4096]:
            wanted = "true or false" if is_switch else "a number or a string"
            raise ConfigError(f"--config {path}: {key} = {value!r} must be {wanted}")
        if not is_switch:
            flags.append(f"--{key}={value}")
        elif value:
            flags.append(f"--{key}")
    return flags


def check_writable(flag: str, path: str | Path | None) -> None:
    """Raise `ConfigError` before long work if the file cannot be written after it. Leaves an existing file as it is."""
    if path is not None:
        try:
            open(path, "a", encoding="utf-8").close()
        except OSError as error:
            raise ConfigError(f"{flag} {path} cannot be written: {error.strerror}") from None


def write_json(path: str | Path, data: Any) -> None:
    """`data` as JSON, which replaces the file whole or not at all; a `ConfigError` if it cannot be written."""
    text, part = json.dumps(finite(data), indent=1, allow_nan=False) + "\n", f"{path}.part"
    try:
        if Path(path).exists() and not Path(path).is_file():  # a device or a pipe cannot be replaced
            Path(path).write_text(text, encoding="utf-8")
        else:
            Path(part).write_text(text, encoding="utf-8")
            os.replace(part, path)
    except OSError as error:
        Path(part).unlink(missing_ok=True)
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from None


def finite(data: Any) -> Any:
    """`data` with None for numbers that JSON does not have: NaN and the infinities."""
    if isinstance(data, dict):
        return {key: finite(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [finite(value) for value in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data


def printer(rank: int) -> Callable[[str], None]:
    """print, on rank 0; nothing on the others."""

    def say(text: str) -> None:
        if rank == 0:
            print(text, flush=True)

    return say


def on_rank_0(world: Group, act: Callable[[], T]) -> T | None:
    """What `act` returns on rank 0, None elsewhere. What goes wrong there, as a `ConfigError`, goes wrong on all ranks
    alike. Collective."""
    from mpizero.engine.gather import gather_data  # commands without ranks do not load NumPy

    result, problem = None, ""
    if world.rank == 0:
        try:
            result = act()
        except ConfigError as error:
            problem = str(error)
    problem = gather_data(world, problem)[0]
    if problem:
        raise ConfigError(problem)
    return result
