"""Files of a checkpoint, which may be anybody's: opened with care, and written so that they last."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mpizero.checkpoint.format import ABOUT, LATEST, STEP_NAME
from mpizero.errors import CheckpointError

LARGEST_TEXT = 2**30  # bytes of a JSON file


@contextmanager
def opened(path: Path, links: bool = False) -> Iterator[int]:
    """The descriptor of a regular file that is read; a link could lead outside its folder, a pipe would make us wait.
    CheckpointError where it cannot be. links: follow them all the same: the user has named this very file."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW * (not links) | os.O_NONBLOCK)
    except FileNotFoundError:
        raise CheckpointError(f"{path} is missing") from None
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno == errno.ELOOP:
            raise CheckpointError(f"{path} is a symbolic link, which is refused: put the file there") from None
        raise CheckpointError(f"{path} cannot be read: {_why(error)}") from None
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise CheckpointError(f"{path} is no regular file")
        yield file
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {_why(error)}") from None
    finally:
        os.close(file)


def read_text(path: Path) -> bytes:
    """A small file, whole."""
    with opened(path) as file:
        if os.fstat(file).st_size > LARGEST_TEXT:
            raise CheckpointError(f"{path} is too large to be one of a checkpoint")
        with os.fdopen(os.dup(file), "rb") as stream:
            return stream.read()


def read_into(file: int, offset: int, target: memoryview, path: Path) -> None:
    """Fill `target` with the bytes from `offset` on: a system may read less at a time. path: for the message."""
    while target:
        got = os.preadv(file, [target], offset)
        if not got:
            raise CheckpointError(f"{path} is truncated: it ends before byte {offset + len(target):,}")
        target, offset = target[got:], offset + got


def find(path: str | Path) -> Path:
    """The folder of the checkpoint that `path` means: itself, or the newest in it; D/latest is D."""
    given = Path(path)
    folder = given.parent if given.name == LATEST and not given.is_dir() else given
    try:
        if (folder / ABOUT).exists():
            return folder
        if not folder.exists():
            raise CheckpointError(f"{path} does not exist")
        if not (folder / LATEST).exists():
            what = "no complete checkpoint: its checkpoint.json is missing" if STEP_NAME.fullmatch(folder.name) else (
                "no checkpoint: there is neither a file `latest` nor checkpoint.json in it")
            raise CheckpointError(f"{folder} is {what}")
    except (OSError, ValueError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"{str(path)[:200]} cannot be opened: {_why(error)}") from None
    name = read_text(folder / LATEST).decode("ascii", "replace").removesuffix("\n")
    if not STEP_NAME.fullmatch(name):
        raise CheckpointError(f"{folder / LATEST} is damaged, or none of ours: it holds {name[:40]!r}, not the name of "
                              "a checkpoint's folder")
    if not (folder / name / ABOUT).exists():
        raise CheckpointError(f"{folder / LATEST} names {name}, but {folder / name / ABOUT} is missing")
    return folder / name


def parent_of(path: str | Path) -> Path:
    """The folder whose checkpoints `path` belongs to, whether they are there or not."""
    given = Path(path)
    return given.parent if given.name == LATEST or STEP_NAME.fullmatch(given.name) else given


def write_all(file: int, data: bytes | memoryview) -> None:
    """All of it: a system may write less at a time."""
    left = memoryview(data).cast("B")
    while left:
        left = left[os.write(file, left):]


def write_durably(path: Path, data: bytes) -> None:
    """A new file that is on the disk when this returns. CheckpointError if it cannot be."""
    with created(path) as file:
        write_all(file, data)


@contextmanager
def created(path: Path) -> Iterator[int]:
    """The descriptor of a new file that is written, and on the disk afterwards. CheckpointError if it cannot be."""
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        try:
            yield file
            os.fsync(file)
        finally:
            os.close(file)
    except OSError as error:
        raise unwritable(path, error) from None


def sync_folder(path: Path) -> None:
    """The names in it are on the disk when this returns. Some file systems cannot be asked."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise unwritable(path, error) from None
    finally:
        os.close(file)


def unwritable(path: str | Path, error: OSError) -> CheckpointError:
    """The sentence for it."""
    cure = {errno.ENOSPC: ": make room", errno.EDQUOT: ": make room",
            errno.ENOENT: f": make {Path(path).parent}, where all ranks see it"}
    return CheckpointError(f"{path} cannot be written: {_why(error)}{cure.get(error.errno or 0, '')}")


def _why(error: OSError | ValueError) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)
