"""The mpirun above this process: which program it is, and which hosts it was given."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from mpizero.launcher import launch, mpirun_of

PROC = Path("/proc")
LAUNCHERS = re.compile(r"(mpirun|mpiexec|prterun|orterun)([.-].*)?")
HOSTFILE = ("--hostfile", "-hostfile", "--machinefile", "-machinefile", "-f")
HOSTS = ("--host", "-host", "-H", "-hosts")
GENERATIONS = 8  # of parents that are looked at: proxies and shells stand between


@dataclass(frozen=True)
class Started:
    """name: the launcher as ranks know it, "" without one. program: the file of the mpirun that runs, "" where it is
    not seen. arguments: its command line. expected: the mpirun of the MPI library that is loaded, "" where its tree has
    none. found: what PATH leads to. hosts: those that mpirun was given, with slots (None: not said). crowds: whether
    it was asked, in so many words or not, to put all ranks on the first host (hostfiles/README.md, Traps)."""

    name: str
    program: str
    arguments: tuple[str, ...]
    expected: str
    found: str
    hosts: tuple[tuple[str, int | None], ...]
    crowds: bool


@dataclass(frozen=True)
class _Process:
    """program: its file."""

    program: str = ""
    arguments: tuple[str, ...] = ()
    environ: Mapping[str, str] = field(default_factory=dict)
    folder: Path = Path(".")


def started(library: str, environ: Mapping[str, str] = os.environ, proc: Path = PROC) -> Started:
    """library: its name, "" if MPI does not work."""
    found, loaded, above = launch(environ), _read(proc / "self/maps"), _mpirun(proc)
    return Started("" if found is None else found.name, above.program, above.arguments,
                   mpirun_of(library, loaded) or "", shutil.which("mpirun", path=environ.get("PATH")) or "",
                   given_hosts(above.arguments, above.environ, above.folder), crowds(above.arguments, above.environ))


def crowds(arguments: Sequence[str], environ: Mapping[str, str]) -> bool:
    """Whether oversubscription is asked for without a placement beside it: then Open MPI 5 fills the first host."""
    words = [*arguments, environ.get("PRTE_MCA_rmaps_default_mapping_policy", "")]
    return any(word.rpartition("=")[2].lower() in ("--oversubscribe", "-oversubscribe", ":oversubscribe")
               for word in words)


def _mpirun(proc: Path) -> _Process:
    """The nearest of the parents. Its environment is not its ranks': Open MPI's passes on little."""
    number = os.getpid()
    for _ in range(GENERATIONS):
        status = re.search(r"^PPid:\s*(\d+)$", _read(proc / str(number) / "status"), re.MULTILINE)
        if status is None or (number := int(status[1])) <= 1:
            break
        folder = proc / str(number)
        words = tuple(_read(folder / "cmdline").rstrip("\0").split("\0"))
        if LAUNCHERS.fullmatch(Path(words[0]).name):
            pairs = (pair.partition("=") for pair in _read(folder / "environ").split("\0"))
            return _Process(_link(folder / "exe") or words[0], words, {name: value for name, _, value in pairs},
                            Path(_link(folder / "cwd") or "."))
    return _Process()


def given_hosts(arguments: Sequence[str], environ: Mapping[str, str], folder: Path
                ) -> tuple[tuple[str, int | None], ...]:
    """By --hostfile, --host, and what stands for them in the environment; () if no hosts were given."""
    if (hosts := _after(arguments, HOSTS)) is not None:
        return _merged(_parts(word) for word in hosts.split(","))
    file = _after(arguments, HOSTFILE) or environ.get("HYDRA_HOST_FILE") or environ.get(
        "PRTE_MCA_prte_default_hostfile")
    lines = _read(folder / file).splitlines() if file else []
    return _merged(_parts(line) for line in (line.partition("#")[0].strip() for line in lines) if line)


def _after(arguments: Sequence[str], flags: Sequence[str]) -> str | None:
    """What follows one of `flags`, or stands behind its `=`. Words of the program behind them are not looked at by an
    mpirun, but no program of ours has such flags."""
    for word, following in pairwise([*arguments, ""]):
        if word in flags:
            return following
        name, equals, value = word.partition("=")
        if equals and name in flags:
            return value
    return None


def _parts(line: str) -> tuple[str, int | None]:
    """`host0 slots=2`, `host0:2`, `host0`."""
    slots = re.search(r"slots\s*=\s*(\d+)", line)
    name, _, behind = line.split()[0].partition(":")
    return name, int(slots[1]) if slots else int(behind) if behind.isdigit() else None


def _merged(hosts: Iterator[tuple[str, int | None]]) -> tuple[tuple[str, int | None], ...]:
    """A host that is named twice has the slots of both, and one that has no number a slot each time."""
    found: dict[str, int | None] = {}
    for name, slots in hosts:
        found[name] = (found[name] or 1) + (slots or 1) if name in found else slots
    return tuple(found.items())


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _link(path: Path) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""
