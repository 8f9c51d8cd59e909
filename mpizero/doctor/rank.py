"""What a rank says of itself: where it may run, what multiplies its matrices, which versions it has."""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mpizero.comm import Group
from mpizero.comm.hosts import this_place
from mpizero.engine.versions import versions

# of each BLAS: how its library is called, and what tells the number of its threads
OPENBLAS = tuple(f"{prefix}openblas_get_num_threads{suffix}" for prefix in ("scipy_", "")
                 for suffix in ("64_", "", "64"))
THREADS = {"openblas": OPENBLAS, "mkl_rt": ("MKL_Get_Max_Threads", "mkl_get_max_threads"),
           "blis": ("bli_thread_get_num_threads",)}


@dataclass(frozen=True)
class Rank:
    """cores: those it may use; quota: how many at a time, None without a limit. blas_threads: None where it does not
    say. thread_level: MPI's, as MULTIPLE. variables: those of the environment that set threads."""

    host: str
    cores: tuple[int, ...]
    quota: int | None
    library: str
    thread_level: str
    blas: str
    blas_threads: int | None
    variables: Mapping[str, str]
    versions: Mapping[str, str]

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Rank:
        return cls(**data | {"cores": tuple(data["cores"])})


def this_rank(world: Group | None) -> Rank:
    """world: None where MPI does not work."""
    place, (blas, threads) = this_place(), blas_in_use()
    found = {name: os.environ[name] for name in sorted(os.environ) if re.fullmatch(r"(OMP|\w+)_NUM_THREADS", name)}
    return Rank(place.name if world is None else world.hosts[world.rank], place.cores, place.quota,
                "" if world is None else world.library, "" if world is None else world.thread_level, blas, threads,
                found, versions())


def blas_in_use(maps: Path = Path("/proc/self/maps")) -> tuple[str, int | None]:
    """(name and version, threads) of NumPy's BLAS."""
    told: Any = np.show_config(mode="dicts")
    built = told.get("Build Dependencies", {}).get("blas", {})
    name = f"{built.get('name') or 'unknown'} {built.get('version') or ''}".replace(" unknown", "").strip()
    try:
        text = maps.read_text()
    except OSError:
        return name, None
    for kind, functions in THREADS.items():
        for path in dict.fromkeys(re.findall(rf"/\S*{kind}\S*\.so\S*", text)):
            if (threads := _threads(path, functions)) is not None:
                return name, threads
    return name, None


def _threads(path: str, functions: tuple[str, ...]) -> int | None:
    """Asks a library that is loaded already."""
    try:
        library = ctypes.CDLL(path)
    except OSError:
        return None
    for function in functions:
        if hasattr(library, function):
            return int(getattr(library, function)())
    return None
