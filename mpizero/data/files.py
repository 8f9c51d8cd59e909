"""Which files a path stands for, and their bytes, read when they are needed."""

from __future__ import annotations

import io
import os
import stat
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from mpizero.errors import DataError

BLOCK = 256 * 1024  # bytes of a read: what is computed from them fits a core's cache
GENERATED = ("__pycache__", "node_modules")  # folders
COMPILED = (".pyc", ".pyo")
RUN = "steps.jsonl"  # a folder that holds it is a run's log
CHECKPOINTS = ".mpizero-checkpoints"  # a folder that holds it is one of checkpoints
LOG = (RUN, "run.json", "summary.json", "trace.json")
GRANT = "grant read permission, or give `data` another path"


@dataclass(frozen=True, slots=True)
class File:
    """A regular file as it was when the run began. Nothing of it is kept in memory."""

    path: str
    size: int
    modified_ns: int

    def read(self, offsets: Iterable[int], size: int) -> bytes:
        """`size` bytes from each offset on. DataError if the file is not what it was."""
        with self._opened() as file:
            return b"".join(self._at(file, offset, size) for offset in offsets)

    def blocks(self) -> Iterator[bytes]:
        """All bytes, at most `BLOCK` at a time."""
        with self._opened() as file:
            for offset in range(0, self.size, BLOCK):
                yield self._at(file, offset, min(BLOCK, self.size - offset))

    def check(self) -> None:
        """DataError if the file is not what it was."""
        self._compare(status(self.path))

    def _opened(self) -> io.FileIO:
        try:
            file = io.FileIO(self.path)
        except OSError as error:
            raise _unreadable("file", self.path, error) from None
        self._compare(os.fstat(file.fileno()))
        return file

    def _at(self, file: io.FileIO, offset: int, size: int) -> bytes:
        try:
            data = os.pread(file.fileno(), size, offset)
        except OSError as error:
            raise _unreadable("file", self.path, error) from None
        if len(data) != size:
            raise self._changed()
        return data

    def _compare(self, now: os.stat_result | None) -> None:
        if now is None or (now.st_size, now.st_mtime_ns) != (self.size, self.modified_ns):
            raise self._changed()

    def _changed(self) -> DataError:
        return DataError(f"the file {self.path} changed while the run read it: leave `data` alone until the run ends, "
                         "or give it a copy")


@dataclass(frozen=True)
class Found:
    """files: in the order of their paths. skipped_files, skipped_folders: how many were passed over."""

    files: list[File]
    skipped_files: int = 0
    skipped_folders: int = 0


def status(path: str | Path) -> os.stat_result | None:
    """What the path leads to; None if to nothing. DataError where that cannot be found out, as for a name that is too
    long."""
    try:
        return os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        why = error.strerror if isinstance(error, OSError) else error
        raise DataError(f"`data` {str(path)[:80]} cannot be opened ({why}): give `data` another path") from None


def file(path: str | Path) -> File:
    """A file that is there."""
    found = status(path)
    if found is None:
        raise DataError(f"the file {path} is gone: leave `data` alone until the run ends")
    return File(str(path), found.st_size, found.st_mtime_ns)


def find(root: Path, outputs: Iterable[str | Path] = (), others: Collection[str] = ()) -> Found:
    """The regular files below a folder, sorted by the parts of their paths, so by names and not by the file system.

    Passed over: what is hidden (begins with a dot) or generated (`GENERATED`, `COMPILED`), symbolic links to folders,
    what is no regular file, folders with a run's log below `root`, folders of checkpoints, `outputs`, what this run
    itself writes, and folders with one of the names `others`.
    """
    own, paths, files, folders = {os.path.realpath(path) for path in outputs}, list[Path](), 0, 0
    for folder, below, names in os.walk(root, onerror=_refuse):
        here = Path(folder)
        if CHECKPOINTS in names or RUN in names and here != root:
            below.clear()
            folders += 1
            continue
        kept = [name for name in below if name not in others and _wanted_folder(here / name, own)]
        folders += len(below) - len(kept)
        below[:] = kept
        chosen = [here / name for name in names
                  if not (RUN in names and name in LOG) and _wanted_file(here / name, own)]
        files += len(names) - len(chosen)
        paths += chosen
    return Found([file(path) for path in sorted(paths, key=lambda path: path.parts)], files, folders)


def _wanted_folder(path: Path, own: set[str]) -> bool:
    return not (path.name.startswith(".") or path.name in GENERATED or path.is_symlink()
                or own and os.path.realpath(path) in own)


def _wanted_file(path: Path, own: set[str]) -> bool:
    found = status(path)
    return not (path.name.startswith(".") or path.suffix in COMPILED or found is None
                or not stat.S_ISREG(found.st_mode) or own and os.path.realpath(path) in own)


def _refuse(error: OSError) -> None:
    raise _unreadable("folder", error.filename, error) from None


def _unreadable(what: str, path: str, error: OSError) -> DataError:
    return DataError(f"the {what} {path} cannot be read ({error.strerror}): {GRANT}")
