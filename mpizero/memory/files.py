"""The file in which a rank keeps what it offloads: room from the start, and large requests that are checked.

[Note: No name] The file has none: it is made without one (O_TMPFILE), or loses it at once where a file system cannot do
that. So it is gone when its last process is, however that died: a crash leaves nothing behind, and no other run can
open, mix up or damage it. Nothing in it is worth keeping: what lasts is a checkpoint.

[Note: Past the page cache] Requests go straight to the disk (O_DIRECT) where the file system can, since copies in the
kernel's cache would be the very memory that files are to save. Elsewhere it is told to drop what it has copied, after
every `FLUSHED` bytes.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import tempfile
import threading
import weakref
from pathlib import Path
from typing import final

from mpizero.errors import StorageError
from mpizero.layout.files import PAGE

FLUSHED = 32 << 20  # bytes that are written through the page cache before it is told to drop them
ZEROS = 4 << 20  # bytes that are written at a time where room cannot be reserved
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# of systems that cannot make a file without a name: no such flag, no such operation
NAMED_ONLY = (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT)


@final
class StateFile:
    """Of one rank, in `folder`. direct: whether its requests go past the page cache. StorageError where it cannot be
    made."""

    def __init__(self, folder: str | Path, whose: str = "a rank"):
        self.name = f"the file of {whose} in {folder}"
        self.nbytes = 0
        self.fd = _open(Path(folder))
        self._close = weakref.finalize(self, os.close, self.fd)
        self.direct = _past_the_cache(self.fd)
        self._cached, self._lock = 0, threading.Lock()

    def close(self) -> None:
        """Give its room back."""
        self._close()

    def reserve(self, nbytes: int) -> None:
        """So large from now on, all zeros, with its room on the disk. StorageError without that."""
        try:
            _allocate(self.fd, nbytes)
        except OSError as error:
            raise self._failed("cannot get", nbytes, 0, "", error) from None
        self.nbytes = nbytes

    def read(self, offset: int, target: memoryview, what: str) -> None:
        """Fill `target`, whole pages, from there on. what: for the message."""
        begin, size = offset, len(target)
        try:
            while target:
                got = os.preadv(self.fd, [target], offset)
                if not got:
                    raise StorageError(f"{self.name} is too short: {what} ends at byte {offset:,}, not at "
                                       f"{begin + size:,}; nothing may write to it but its own run")
                target, offset = target[got:], offset + got
        except OSError as error:
            raise self._failed("cannot give", size, begin, what, error) from None
        if not self.direct:
            _drop(self.fd, begin, size)

    def write(self, offset: int, source: memoryview, what: str) -> None:
        """All of `source`, whole pages, from there on."""
        begin, size = offset, len(source)
        try:
            while source:
                put = os.pwritev(self.fd, [source], offset)
                if not put:
                    raise StorageError(f"{self.name} takes no more of {what} at byte {offset:,}: the disk is full or "
                                       "failing")
                source, offset = source[put:], offset + put
            if not self.direct:
                self._flush(size)
        except OSError as error:
            raise self._failed("cannot take", size, begin, what, error) from None

    def _flush(self, nbytes: int) -> None:
        """Only what is on the disk can be dropped."""
        with self._lock:
            self._cached += nbytes
            full = self._cached >= FLUSHED
            self._cached %= FLUSHED
        if full:
            os.fdatasync(self.fd)
            _drop(self.fd, 0, 0)

    def _failed(self, verb: str, nbytes: int, offset: int, what: str, error: OSError) -> StorageError:
        about = f" of {what}" if what else ""
        cure = "make room, or name another folder" if error.errno in NO_ROOM else "look at the disk"
        return StorageError(f"{self.name} {verb} {nbytes:,} bytes{about} at byte {offset:,}: {error.strerror}; {cure}")


def free_bytes(folder: str | Path) -> int:
    """What a user may still write into the folder's file system."""
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize


def _open(folder: Path) -> int:
    """StorageError for a folder that is none, is missing, or may not be written to."""
    try:
        flags = getattr(os, "O_TMPFILE", 0)
        if not folder.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR)) if folder.exists() else (
                FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT)))
        try:
            if flags:
                return os.open(folder, flags | os.O_RDWR | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except OSError as error:
            if error.errno not in NAMED_ONLY:
                raise
        fd, name = tempfile.mkstemp(prefix=".mpizero-", dir=folder)
        os.unlink(name)
        return fd
    except OSError as error:
        cure = {errno.ENOENT: "make it first, on every host", errno.ENOTDIR: "name a folder",
                errno.EACCES: "take one that you may write to", errno.EPERM: "take one that you may write to",
                errno.EROFS: "take one that you may write to"}
        raise StorageError(f"`nvme` {str(folder)[:200]} cannot hold files: {error.strerror}; "
                           f"{cure.get(error.errno or 0, 'name another folder')}") from None


def _past_the_cache(fd: int) -> bool:
    """Set O_DIRECT, and try it: some file systems take the flag and refuse the requests."""
    wanted, before = getattr(os, "O_DIRECT", 0), fcntl.fcntl(fd, fcntl.F_GETFL)
    if not wanted:
        return False
    page = mmap.mmap(-1, PAGE)
    try:
        fcntl.fcntl(fd, fcntl.F_SETFL, before | wanted)
        return os.pwritev(fd, [page], 0) == os.preadv(fd, [page], 0) == PAGE
    except OSError:
        fcntl.fcntl(fd, fcntl.F_SETFL, before)
        return False


def _allocate(fd: int, nbytes: int) -> None:
    """Room on the disk, all zeros. Where a system cannot reserve any, zeros are written; a full disk shows all the
    same."""
    if not nbytes:
        return
    try:
        os.posix_fallocate(fd, 0, nbytes)
        return
    except (AttributeError, OSError) as error:
        if isinstance(error, OSError) and error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
            raise
    zeros = mmap.mmap(-1, ZEROS)
    for offset in range(0, nbytes, ZEROS):
        part = memoryview(zeros)[: min(ZEROS, nbytes - offset)]
        while part:
            done = os.pwritev(fd, [part], offset)
            part, offset = part[done:], offset + done


def _drop(fd: int, offset: int, nbytes: int) -> None:
    """What the page cache has of it. nbytes 0: to the end. An advice that a system may not know."""
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(fd, offset, nbytes, os.POSIX_FADV_DONTNEED)
