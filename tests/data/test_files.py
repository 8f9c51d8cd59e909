from __future__ import annotations

import os
import stat
from pathlib import Path

import numpy as np
import pytest

from mpizero.data import ArrayData, find_text, load
from mpizero.data.files import File, file, find
from mpizero.errors import DataError


def write(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(name.encode())


def names(root: Path, found) -> list[str]:
    return [Path(file.path).relative_to(root).as_posix() for file in found.files]


def test_files_in_the_order_of_their_paths(tmp_path):
    write(tmp_path, "b/x.bin", "b.txt", "a.txt", "b/a/a")
    assert names(tmp_path, find(tmp_path)) == ["a.txt", "b/a/a", "b/x.bin", "b.txt"]
    assert [file.path for file in find_text(tmp_path / "a.txt").files] == [str(tmp_path / "a.txt")]
    assert load("gpt", str(tmp_path), seed=0, context=1).files[0] == str(tmp_path / "a.txt")


def test_what_is_passed_over(tmp_path):
    write(tmp_path, "a.txt", ".git/config", ".hidden", "sub/.DS_Store", "sub/b.txt", "sub/__pycache__/b.pyc", "old.pyc",
          "node_modules/x/index.js", "runs/1/steps.jsonl", "runs/1/summary.json", "runs/1/report.html", "runs/notes",
          "own.json", "out/new.txt")
    os.mkfifo(tmp_path / "pipe")  # reading it would hang
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "broken").symlink_to(tmp_path / "nowhere")
    (tmp_path / "link.txt").symlink_to(tmp_path / "a.txt")
    found = find(tmp_path, outputs=[tmp_path / "own.json", tmp_path / "sub" / ".." / "out"])
    assert names(tmp_path, found) == ["a.txt", "link.txt", "runs/notes", "sub/b.txt"]
    assert (found.skipped_files, found.skipped_folders) == (6, 6)
    assert "(skipped 6 folders, 6 files)" in load("gpt", tmp_path, seed=0, context=1,
                                                  outputs=[tmp_path / "own.json", tmp_path / "out"]).describe()


def test_a_log_that_is_written_beside_the_text(tmp_path):
    write(tmp_path, "a.txt", "steps.jsonl", "summary.json", "trace.json", "run.json", "b.json")
    assert names(tmp_path, find(tmp_path)) == ["a.txt", "b.json"]
    (tmp_path / "steps.jsonl").unlink()
    assert names(tmp_path, find(tmp_path)) == ["a.txt", "b.json", "run.json", "summary.json", "trace.json"]


def test_a_hidden_folder_that_is_asked_for(tmp_path):
    write(tmp_path, ".texts/a.txt")
    assert names(tmp_path, find(tmp_path / ".texts")) == [".texts/a.txt"]


@pytest.mark.parametrize(("make", "says"), [
    (lambda path: None, "does not exist"),
    (lambda path: path.write_bytes(b""), "is empty"),
    (lambda path: path.mkdir(), "is empty"),
    (lambda path: os.mkfifo(path), "is neither a file nor a folder"),
    (lambda path: write(path, ".a"), "is empty but for what is skipped: hidden,"),
])  # fmt: skip
def test_unusable_paths(tmp_path, make, says):
    make(tmp_path / "data")
    with pytest.raises(DataError, match=f"data {says}.*give `data`") as caught:
        find_text(tmp_path / "data")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("model", ["mlp", "gpt"])
@pytest.mark.parametrize(("path", "why"), [("a" * 300, "too long"), ("a" * 300 + ".npz", "too long"), ("a\0b", "null"),
                                           ("a\0b.npz", "null")])
def test_names_that_no_file_can_have(model, path, why):
    with pytest.raises(DataError, match=rf"`data` a.* cannot be opened \(.*{why}.*\): give `data` another path"):
        load(model, path, seed=0)


def test_unreadable_folder_names_itself(tmp_path, monkeypatch):
    write(tmp_path, "locked/b.txt", "a.txt")
    scandir = os.scandir

    def denied(path):  # as for a user who is not root
        if str(path).endswith("locked"):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", denied)
    with pytest.raises(DataError, match=r"folder .*locked cannot be read \(Permission denied\): grant"):
        find(tmp_path)


def test_unreadable_file_names_itself(tmp_path, monkeypatch):
    write(tmp_path, "secret.txt")
    (tmp_path / "secret.txt").chmod(0)

    def denied(path):
        raise PermissionError(13, "Permission denied")

    if os.geteuid() == 0:  # root reads everything
        monkeypatch.setattr("io.FileIO", denied)
    with pytest.raises(DataError, match=r"secret\.txt cannot be read \(Permission denied\)"):
        load("gpt", tmp_path, seed=0, context=1)
    (tmp_path / "secret.txt").chmod(stat.S_IRUSR)


def test_a_file_that_is_not_what_it_was(tmp_path):
    write(tmp_path, "abcdef")
    was = file(tmp_path / "abcdef")
    assert was.read([2, 0], 3) == b"cdeabc" and list(was.blocks()) == [b"abcdef"]
    for other in (File(was.path, 7, was.modified_ns), File(was.path, 6, was.modified_ns + 1)):
        for use in (other.check, lambda other=other: other.read([0], 1), lambda other=other: list(other.blocks())):
            with pytest.raises(DataError, match="abcdef changed while the run read it"):
                use()
    with pytest.raises(DataError, match="changed"):  # shorter than it says, as after a cut at the same instant
        was.read([3], 4)
    (tmp_path / "abcdef").unlink()
    with pytest.raises(DataError, match="changed"):
        was.check()


def test_arrays_that_change_while_they_are_read(tmp_path):
    path = tmp_path / "data.npz"
    np.savez(path, x=np.arange(80.0).reshape(20, 4), y=np.arange(20) % 3)
    data = ArrayData(path)
    assert data.files == [str(path)] and data.train_batch(np.arange(3)).inputs.shape == (3, 4)
    np.savez(path, x=np.arange(40.0).reshape(10, 4), y=np.arange(10) % 3)
    with pytest.raises(DataError, match=r"data\.npz changed while the run read it"):
        data.train_batch(np.arange(3))
