"""What code a run consists of: two ranks of one run must not differ in it, and a log names it."""

from __future__ import annotations

import hashlib
import platform
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np

import mpizero


@cache
def versions() -> dict[str, str]:
    """Versions of what computes on this rank, by name. `sources` is a digest of this package's files, which an edited
    checkout on one host changes though its version stays."""
    found = {"mpizero": _installed("mpizero"), "sources": sources(Path(mpizero.__file__).parent),
             "python": platform.python_version(), "numpy": np.__version__, "mpi4py": _installed("mpi4py"),
             "ml_dtypes": _installed("ml_dtypes")}
    return {name: found[name] for name in found if found[name]}


def sources(package: Path) -> str:
    """The first 12 digits of the SHA-256 of all Python files below a folder, with their names."""
    digest = hashlib.sha256()
    for file in sorted(package.rglob("*.py")):
        content = file.read_bytes()
        digest.update(f"{file.relative_to(package).as_posix()} {len(content)}\n".encode() + content)
    return digest.hexdigest()[:12]


def _installed(name: str) -> str:
    """"" where it is not installed, as when this package runs from its source folder."""
    try:
        return version(name)
    except PackageNotFoundError:
        return ""
