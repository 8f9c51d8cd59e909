"""The folder of `save`: one run at a time, old checkpoints that go and what stays, half-done saves."""

from __future__ import annotations

import errno
import os
import shutil
from dataclasses import replace

import pytest

from mpizero.checkpoint import folder as folders
from mpizero.checkpoint.files import find
from mpizero.checkpoint.folder import LOCK, complete, lock
from mpizero.checkpoint.resume import resume
from mpizero.checkpoint.run import begin_checkpoints
from mpizero.checkpoint.verify import verify
from mpizero.data import files as data_files
from mpizero.engine.job import prepare
from mpizero.engine.trainer import run_steps
from mpizero.errors import CheckpointError
from tests.engine.runs import MLP


def run(group, folder, name, steps, **options):
    """Train up to that step, and save as `options` say; the names that stand there then."""
    config = replace(MLP, steps=steps, save=str(folder), **options)
    checkpoints = begin_checkpoints(prepare(config, group), name)
    try:
        run_steps(checkpoints.job, lambda record: checkpoints.after_step())
        checkpoints.save()
    finally:
        if checkpoints.lock:
            checkpoints.lock.close()
    return names(folder), checkpoints


def names(folder):
    return sorted(name for name in os.listdir(folder) if name != LOCK)


def test_only_the_last_ones_stay(group, shared_path):
    """Of this run and of the one that it goes on with. Other folders, and files in them, are nobody's to remove."""
    path = shared_path / f"n{group.size}"
    if group.rank == 0:
        for name in ("step-00000001", "step-00000003x", "notes", "step-9"):
            (path / name).mkdir(parents=True)
        (path / "step-00000002").symlink_to("notes")
    there = ["latest", "notes", "older", "step-00000001", "step-00000003x", "step-9"]
    found, _ = run(group, path, "one", 4, save_every=2)
    assert found == sorted([*there, "step-00000002", "step-00000004"])
    if group.rank == 0:
        assert os.readlink(path / "older" / "step-00000002") == "notes"  # its name was taken
        (path / "step-00000004" / "mine.txt").write_text("x")
    found, on = run(group, path, "two", 9, save_every=2, keep=2, resume=str(path))
    assert found == sorted([*there, "step-00000004", "step-00000008", "step-00000009"])  # somebody's file in 4
    assert verify(path)["whole"] and find(path).name == "step-00000009" and on.runs == ("one", "two")


def test_other_runs_checkpoints_stay(group, shared_path):
    path = shared_path / f"n{group.size}"
    run(group, path, "one", 2, save_every=1)
    found, checkpoints = run(group, path, "two", 3, save_every=2, keep=1, seed=1)
    assert found == ["latest", "older", "step-00000001", "step-00000003"]
    assert names(path / "older") == ["step-00000002"] and verify(path / "older" / "step-00000002")["whole"]
    if group.rank == 0:
        assert "holds step-00000002, step-00000001 of another run" in checkpoints.said[0]
    found, _ = run(group, path, "three", 3, resume=str(path / "step-00000001"))
    assert names(path / "older") == ["step-00000002", "step-00000003"] and find(path).name == "step-00000003"


def test_a_second_run_is_refused(group, shared_path):
    path = shared_path / f"n{group.size}"
    first = begin_checkpoints(prepare(replace(MLP, save=str(path)), group), "first")
    with pytest.raises(CheckpointError, match=rf"another run \(first\) saves into {path}: wait until it has ended, or"):
        begin_checkpoints(prepare(replace(MLP, save=str(path)), group), "second")
    if first.lock:
        first.lock.close()
    run(group, path, "second", 1)


def test_what_a_killed_run_left(tmp_path):
    """Is removed by the next that has the lock, unless something else is in it."""
    left = tmp_path / ".step-00000004.tmp-20260101-000000-abcdef"
    other = tmp_path / ".step-00000005.tmp-x"
    for path in (left, other):
        path.mkdir()
        (path / "part-0000.bin").write_bytes(b"x")
    (other / "mine.txt").write_text("x")
    (tmp_path / ".latest.tmp-x").write_text("x")
    (tmp_path / ".step-00000004.tmp").mkdir()
    held = lock(tmp_path, "run")
    assert names(tmp_path) == [".step-00000004.tmp", ".step-00000005.tmp-x"]
    left.mkdir()
    with pytest.raises(CheckpointError, match="another run"):
        lock(tmp_path, "other")
    assert left.exists()  # it may be the other's
    held.close()


def test_where_there_are_no_locks_nothing_is_removed(tmp_path, monkeypatch):
    def flock(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(folders.fcntl, "flock", flock)
    (tmp_path / ".step-00000004.tmp-x").mkdir()
    lock(tmp_path, "run").close()
    assert names(tmp_path) == [".step-00000004.tmp-x"]


@pytest.mark.parametrize("when", ["number", "last", "table", "marker", "rename", "latest"])
def test_a_full_disk_loses_nothing(group, shared_path, monkeypatch, when):
    """At each moment of a save: an error on every rank that names the last good one, which still loads."""
    path = shared_path / f"n{group.size}"
    config = replace(MLP, steps=2, save=str(path), stage="3")
    checkpoints = begin_checkpoints(prepare(config, group), "run")
    run_steps(checkpoints.job, lambda record: checkpoints.save(), steps=1)
    run_steps(checkpoints.job, steps=1)
    target = {"number": "part-0000.bin", "last": f"part-{group.size - 1:04d}.bin", "table": "part-0000.json",
              "marker": "checkpoint.json", "latest": ".latest.tmp-run"}
    break_at(monkeypatch, target.get(when))
    said = {"rename": "step-00000002.tmp-run cannot be written: Input/output error"}.get(
        when, f"{target.get(when)} cannot be written: No space left on device: make room")
    with pytest.raises(CheckpointError, match=f"{said}; the last good checkpoint is `resume` {path}/step-00000001$"):
        checkpoints.save()
    monkeypatch.undo()
    if checkpoints.lock:
        checkpoints.lock.close()
    assert find(path).name == "step-00000001" and verify(path)["whole"]
    assert resume(prepare(MLP, group), path).job.state.step == 1
    if group.rank == 0 and when != "latest":
        assert names(path) == ["latest", "step-00000001"]


def break_at(monkeypatch, name):
    """Writing that file fails as on a full disk, after some bytes; None: the renaming fails."""
    write, opened, rename = os.write, os.open, os.rename
    wrong = set()

    def note(path, *args, **more):
        file = opened(path, *args, **more)
        wrong.discard(file)
        if os.path.basename(path) == name:
            wrong.add(file)
        return file

    def fail(file, data):
        if file in wrong:
            write(file, data[:3])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(file, data)

    def refuse(here, there):
        if name is None and "step" in os.path.basename(here):
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(here))
        rename(here, there)

    monkeypatch.setattr(os, "open", note)
    monkeypatch.setattr(os, "write", fail)
    monkeypatch.setattr(os, "rename", refuse)


def test_a_system_that_writes_and_reads_less_at_a_time(group, shared_path, monkeypatch):
    path, write, read = shared_path / f"n{group.size}", os.write, os.preadv
    monkeypatch.setattr(os, "write", lambda file, data: write(file, data[:100]))
    monkeypatch.setattr(os, "preadv", lambda file, targets, offset: read(file, [targets[0][:100]], offset))
    run(group, path, "run", 1)
    assert verify(path)["whole"] and resume(prepare(MLP, group), path).job.state.step == 1


def test_a_folder_that_cannot_be_written(group, shared_path):
    path = shared_path / "file"
    path.write_text("x")
    with pytest.raises(CheckpointError, match=f"{path}/D cannot be written: Not a directory"):
        begin_checkpoints(prepare(replace(MLP, save=str(path / "D")), group), "run")


def test_checkpoints_are_no_data(tmp_path):
    lock(tmp_path / "runs" / "a", "run").close()
    (tmp_path / "runs" / "a" / "latest").write_text("step-00000001\n")
    (tmp_path / "b.txt").write_text("text")
    assert [file.path for file in data_files.find(tmp_path).files] == [str(tmp_path / "b.txt")]
    assert data_files.CHECKPOINTS == LOCK


def test_complete_ones_in_the_order_of_saving(group, shared_path):
    path = shared_path / f"n{group.size}"
    run(group, path, "one", 3, save_every=1)
    if group.rank == 0:
        assert [found.name for found in complete(path)] == ["step-00000003", "step-00000002", "step-00000001"]
        shutil.copy(path / "latest", path / "step-00000002" / "checkpoint.json")
        assert [found.name for found in complete(path)] == ["step-00000003", "step-00000001"]
