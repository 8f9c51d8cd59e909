"""TensorBoard's event files, read record by record."""

from __future__ import annotations

import errno
import struct
import sys

import pytest

from mpizero.engine.trainer import StepRecord
from mpizero.errors import ConfigError
from mpizero.tensorboard import EventFile

STEP = StepRecord(4, 2.5, 1.25, 0.01, 65536.0, False, 0.5, 9.0, 1, 2, 3, {"compute": 0.25}, None)


def events(folder):
    """(tag, step, value) of each scalar. A record: uint64 length, uint32 checksum, data, uint32 checksum."""
    event_pb2 = pytest.importorskip("tensorboardX.proto.event_pb2")
    (path,) = folder.iterdir()
    data, found = path.read_bytes(), []
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        event = event_pb2.Event.FromString(data[12 : 12 + length])
        found += [(value.tag, event.step, value.simple_value) for value in event.summary.value]
        data = data[16 + length :]
    return found


def test_scalars(tmp_path):
    pytest.importorskip("tensorboardX")
    file = EventFile(tmp_path / "events")
    file.append(STEP)
    file.end()
    found = {tag: (step, value) for tag, step, value in events(tmp_path / "events")}
    assert found["loss/train"] == (5, 2.5) and found["seconds/compute"] == (5, 0.25)
    assert found["traffic/sent_bytes"] == (5, 3.0) and found["speed/targets_per_second"] == (5, 9.0)
    assert "loss/held_out" not in found


def test_folder_that_cannot_be_made(tmp_path):
    pytest.importorskip("tensorboardX")
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="`tensorboard` .*/file cannot be written"):
        EventFile(tmp_path / "file")


def test_a_full_disk_is_told_at_the_step_that_meets_it(tmp_path, monkeypatch):
    pytest.importorskip("tensorboardX")
    file = EventFile(tmp_path / "events")

    def full(*event):
        raise OSError(errno.ENOSPC, "No space left on device")
    monkeypatch.setattr(file._writer, "write_event", full)
    with pytest.raises(ConfigError, match="`tensorboard` .*events cannot be written: No space left on device: make"):
        file.append(STEP)


def test_library_that_is_missing(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "tensorboardX.event_file_writer", None)
    with pytest.raises(ConfigError, match=r"pip install 'mpizero\[tensorboard\]'"):
        EventFile(tmp_path)
