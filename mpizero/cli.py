"""Command lines: argparse whose mistakes are `ConfigError`s, the keys of a TOML file as flags that come first, messages
in the words of flags, and work that rank 0 does for all."""

from __future__ import annotations

import argparse
import difflib
import functools
import re
import sys
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, ParamSpec, TypeVar

from mpizero.engine.config import TrainConfig
from mpizero.engine.resolve import resolve
from mpizero.errors import ConfigError, MpizeroError
from mpizero.launcher import rank_in_job
from mpizero.output import tell

if TYPE_CHECKING:
    from mpizero.comm import Group

# as they are written, without the dashes in front
FLAGS = {field.name.replace("_", "-"): field for field in fields(TrainConfig)}
# how --help arranges them: title -> flags
GROUPS = {
    "the model and its data": "model hidden layers d-model heads context freeze data",
    "the step and how it is sharded": "stage shard-size global-batch batch-size accumulation no-sync "
                                      "wrap tiles backward-prefetch forward-prefetch keep-last-unit "
                                      "limit-all-gathers overlap recompute recompute-interval bucket-size tensor-size "
                                      "partition-activations",
    "precision and optimizer": "dtype reduce-dtype sum-dtype loss-scale growth-interval no-master-weights optimizer "
                               "lr warmup momentum betas weight-decay decay clip",
    "what rests where": "offload nvme delayed-update-after device-memory allocator host-memory host-threads limit",
    "the run": "steps epochs seed check-replicas eval-every debug",
    "checkpoints": "save save-every keep resume init",
    "what is printed and written": "print-actions log log-every log-format tensorboard json",
}
P = ParamSpec("P")
T = TypeVar("T")


def spelled(ranks: str = "mpirun -n") -> Callable[[Callable[P, T]], Callable[P, T]]:
    """For entry points: errors that name fields in backticks name flags instead. ranks: how the user asks for a number
    of ranks."""
    def decorate(main: Callable[P, T]) -> Callable[P, T]:
        @functools.wraps(main)
        def inner(*args: P.args, **kwargs: P.kwargs) -> T:
            try:
                return main(*args, **kwargs)
            except MpizeroError as error:
                error.args = (as_flags(str(error), ranks),)
                raise
        return inner
    return decorate


def as_flags(text: str, ranks: str = "mpirun -n") -> str:
    """A message with flags in place of fields in backticks; what the user has written stands as it is."""
    def flag(match: re.Match[str]) -> str:
        if match[1] not in Parser.dests:
            return match[0]
        return ranks if match[1] == "ranks" else "--" + match[1].replace("_", "-")

    written = sorted((word for word in Parser.words if "`" in word), key=len, reverse=True)
    return re.sub("|".join([*map(re.escape, written), "`([a-z][a-z_]*)`"]), flag, text)


class Parser(argparse.ArgumentParser):
    """Raises a `ConfigError` instead of printing a usage once per rank.

    What all parsers of a process have seen, for messages: dests: fields that have a flag. words: what was given.
    """

    dests: ClassVar[set[str]] = {"ranks"}
    words: ClassVar[set[str]] = set()

    def __init__(self, **options: Any):
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False, **options)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Values of a TOML file come here too."""
        Parser.dests.update(action.dest for action in self._actions)
        Parser.words.update(part for word in args or () for part in (word, word.partition("=")[2]))
        return super().parse_known_args(args, namespace)

    def print_help(self, file: Any = None) -> None:
        """Once, not once per rank."""
        if not rank_in_job():
            super().print_help(file)

    def _print_message(self, message: str, file: Any = None) -> None:
        """argparse's own is silent where nothing can be written."""
        if message and file in (None, sys.stdout):
            tell(message, end="")
        elif message:
            super()._print_message(message, file)

    def parse_args(self, args=None, namespace=None):  # type: ignore[no-untyped-def]
        """What a command does not know is the command's to tell, with its own flags at hand."""
        found, left = self.parse_known_args(args, namespace)
        commands = [action for action in self._actions if isinstance(action, argparse._SubParsersAction)]
        if left:
            told = commands[0].choices[found.command] if commands else self
            told.error(f"unrecognized arguments: {' '.join(left)}")
        return found

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}{self._near(message)} (see {self.prog} --help)")

    def _near(self, message: str) -> str:
        """The flag that a mistyped one may have meant: `: did you mean --batch-size?`"""
        typed = re.match(r"unrecognized arguments: --?([\w-]+)", message)
        known = [flag[2:] for action in self._actions for flag in action.option_strings if flag.startswith("--")]
        near = typed and difflib.get_close_matches(typed[1], known, n=1)  # dashes would make all of them alike
        return f": did you mean --{near[0]}?" if near else ""


def add_train_flags(parser: argparse.ArgumentParser) -> None:
    """One flag for each field of `TrainConfig`, in groups."""
    for title, names in GROUPS.items():
        group = parser.add_argument_group(title)
        for name in names.split():
            field = FLAGS[name]
            told = field.default is None or isinstance(field.default, bool) or field.metadata["help"].endswith(")")
            more = dict(field.metadata) | ({} if told else {"help": f"{field.metadata['help']} ({field.default})"})
            group.add_argument(f"--{name}", dest=field.name, default=argparse.SUPPRESS, **more)
    group.add_argument("--config", metavar="FILE.toml",
                       help="keys are the flags' names without dashes in front; flags win")


def train_config(parser: argparse.ArgumentParser, argv: Sequence[str]) -> TrainConfig:
    """Defaults, then the TOML file, then flags. ConfigError for what can never work."""
    options: dict[str, Any] = vars(parser.parse_args(argv))
    path = options.pop("config")
    if path is not None:
        several = {name: value for name, value in options.items() if isinstance(value, list)}  # not added to the file's
        options = vars(parser.parse_args([*_toml_flags(Path(path)), *argv])) | several
        del options["config"]
    options |= {name: tuple(value) for name, value in options.items() if isinstance(value, list)}
    config = TrainConfig(**options)
    resolve(config)  # raises
    return config


def _toml_flags(path: Path) -> list[str]:
    """The file's keys as command-line flags."""
    if path.exists() and not path.is_file():
        raise ConfigError(f"--config {path} is not a regular file: name a TOML file")
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8-sig"))  # some editors begin with a BOM
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
        action = FLAGS[key].metadata.get("action")
        is_switch = action == "store_true"
        several = value if action == "append" and isinstance(value, list) else [value]
        is_scalar = all(isinstance(each, bool | int | float | str) for each in several)
        if isinstance(value, bool) != is_switch or not is_scalar or "\0" in str(value)[:4096]:
            wanted = "true or false" if is_switch else "a number or a string" + (", or several" if action else "")
            raise ConfigError(f"--config {path}: {key} = {value!r} must be {wanted}")
        if not is_switch:
            flags += [f"--{key}={each}" for each in several]
        elif value:
            flags.append(f"--{key}")
    return flags


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
