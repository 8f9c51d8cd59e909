"""A file without a name, its room, and what a user is told where it fails."""

from __future__ import annotations

import errno
import mmap
import os
import subprocess
import sys

import pytest

from mpizero.errors import StorageError
from mpizero.layout.files import PAGE
from mpizero.memory import files
from mpizero.memory.files import StateFile, free_bytes


def pages(count=2, fill=7):
    found = mmap.mmap(-1, count * PAGE)
    found[:] = bytes([fill]) * len(found)
    return memoryview(found)


@pytest.fixture(params=["as it is", "through the cache", "named at first", "no room reserved"])
def kind(request, monkeypatch):
    """What other systems and file systems lack."""
    if request.param == "through the cache":
        monkeypatch.setattr(os, "O_DIRECT", 0, raising=False)
        monkeypatch.setattr(files, "FLUSHED", PAGE)
    elif request.param == "named at first":
        monkeypatch.setattr(os, "O_TMPFILE", 0, raising=False)
    elif request.param == "no room reserved":
        monkeypatch.setattr(os, "posix_fallocate", failing(errno.EOPNOTSUPP))
        monkeypatch.setattr(files, "ZEROS", PAGE)
    return request.param


def failing(number):
    def fail(*_):
        raise OSError(number, os.strerror(number))
    return fail


def test_what_is_written_is_read_and_nothing_is_left(tmp_path, kind):
    file = StateFile(tmp_path)
    file.reserve(3 * PAGE)
    assert os.listdir(tmp_path) == [] and file.nbytes == os.fstat(file.fd).st_size == 3 * PAGE
    assert os.fstat(file.fd).st_blocks * 512 >= 3 * PAGE  # on the disk, not only in name
    target = pages(3)
    file.read(0, target, "")
    assert not any(bytes(target))
    file.write(PAGE, pages(), "")
    file.read(0, target, "")
    same = bytes(target) == bytes(PAGE) + b"\7" * 2 * PAGE
    assert same
    if kind == "through the cache":
        assert not file.direct
    file.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(file.fd)


def test_the_cache_is_told_to_drop_what_is_on_the_disk(tmp_path, monkeypatch):
    told = []
    monkeypatch.setattr(os, "O_DIRECT", 0, raising=False)
    monkeypatch.setattr(files, "FLUSHED", 2 * PAGE)
    monkeypatch.setattr(files, "_drop", lambda fd, offset, nbytes: told.append((offset, nbytes)))
    monkeypatch.setattr(os, "fdatasync", lambda fd: told.append("on the disk"))
    file = StateFile(tmp_path)
    file.reserve(4 * PAGE)
    file.write(0, pages(1), "")
    assert told == []
    file.write(PAGE, pages(1), "")
    assert told == ["on the disk", (0, 0)]
    file.read(PAGE, pages(1), "")
    assert told[2:] == [(PAGE, PAGE)]


def test_a_process_that_is_killed_leaves_nothing(tmp_path):
    code = ("import os, signal, sys; from mpizero.memory.files import StateFile; file = StateFile(sys.argv[1]);"
            "file.reserve(1 << 20); os.kill(os.getpid(), signal.SIGKILL)")
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False).returncode == -9
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("name, words", [
    ("missing", r"missing cannot hold files: No such file or directory; make it first, on every host"),
    ("file", r"file cannot hold files: Not a directory; name a folder"),
])
def test_a_folder_that_is_none(tmp_path, name, words):
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match=words):
        StateFile(f"{tmp_path}/{name}")


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS])
def test_a_folder_that_may_not_be_written_to(tmp_path, monkeypatch, number):
    monkeypatch.setattr(os, "open", failing(number))
    with pytest.raises(StorageError, match="take one that you may write to"):
        StateFile(tmp_path)


def test_no_permission(tmp_path):
    if os.geteuid() == 0:
        pytest.skip("root may write everywhere")
    tmp_path.chmod(0o500)
    with pytest.raises(StorageError, match="Permission denied; take one that you may write to"):
        StateFile(tmp_path)


@pytest.mark.parametrize("call, number, act, words", [
    ("posix_fallocate", errno.ENOSPC, lambda file: file.reserve(1 << 20),
     "the file of rank 3 in .* cannot get 1,048,576 bytes at byte 0: No space left on device; make room"),
    ("pwritev", errno.ENOSPC, lambda file: file.write(PAGE, pages(), "exp_avg of unit h.1"),
     "cannot take 8,192 bytes of exp_avg of unit h.1 at byte 4,096: No space left on device; make room"),
    ("pwritev", errno.EIO, lambda file: file.write(0, pages(), "x"), "Input/output error; look at the disk"),
    ("preadv", errno.EIO, lambda file: file.read(PAGE, pages(1), "param of unit h.1"),
     "cannot give 4,096 bytes of param of unit h.1 at byte 4,096: Input/output error; look at the disk"),
])
def test_a_disk_that_fails(tmp_path, monkeypatch, call, number, act, words):
    file = StateFile(tmp_path, "rank 3")
    file.reserve(4 * PAGE)
    monkeypatch.setattr(os, call, failing(number))
    with pytest.raises(StorageError, match=words):
        act(file)


def test_a_file_that_was_cut(tmp_path):
    file = StateFile(tmp_path)
    file.reserve(4 * PAGE)
    os.ftruncate(file.fd, 2 * PAGE)
    with pytest.raises(StorageError, match="is too short: master of unit h.0 ends at byte 8,192, not at 12,288"):
        file.read(PAGE, pages(), "master of unit h.0")


def test_a_system_that_does_part_of_a_request(tmp_path, monkeypatch):
    file = StateFile(tmp_path)
    file.reserve(4 * PAGE)
    for name in ("preadv", "pwritev"):
        whole = getattr(os, name)
        monkeypatch.setattr(os, name, lambda fd, parts, offset, whole=whole: whole(fd, [parts[0][:PAGE]], offset))
    file.write(0, pages(3), "")
    target = pages(3, fill=0)
    file.read(0, target, "")
    same = bytes(target) == b"\7" * 3 * PAGE
    assert same
    monkeypatch.setattr(os, "pwritev", lambda *_: 0)
    with pytest.raises(StorageError, match="takes no more of master of unit h.0 at byte 4,096"):
        file.write(PAGE, pages(), "master of unit h.0")


def test_room_that_is_left(tmp_path):
    found = os.statvfs(tmp_path)
    assert 0 < free_bytes(tmp_path) <= found.f_bfree * found.f_frsize
