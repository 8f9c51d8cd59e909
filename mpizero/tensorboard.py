"""TensorBoard's event files of a run, by the library tensorboardX (extra `tensorboard`)."""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, final

from mpizero.engine.trainer import StepRecord
from mpizero.errors import ConfigError

SCALARS = {  # tag -> field of StepRecord
    "loss/train": "loss", "loss/held_out": "eval_loss", "optimizer/gradient_norm": "grad_norm", "optimizer/lr": "lr",
    "optimizer/loss_scale": "loss_scale", "speed/targets_per_second": "per_second", "speed/seconds_per_step": "seconds",
    "memory/live_bytes": "live_bytes", "memory/peak_bytes": "peak_bytes", "traffic/sent_bytes": "sent_bytes",
}


@final
class EventFile:
    """The run's file in a folder. ConfigError where the library is not installed, or the folder cannot be written."""

    def __init__(self, folder: str | Path):
        try:
            from tensorboardX.event_file_writer import EventsWriter
            from tensorboardX.proto.event_pb2 import Event
            from tensorboardX.summary import scalar
        except ImportError:
            raise ConfigError("`tensorboard` needs tensorboardX: pip install 'mpizero[tensorboard]', or leave it "
                              "out") from None
        self._folder, self._event, self._scalar = folder, Event, scalar
        with self._told():
            os.makedirs(folder, exist_ok=True)
            # not SummaryWriter: that writes in a thread, whose errors nobody hears
            self._writer: Any = EventsWriter(os.path.join(folder, "events"))

    def append(self, record: StepRecord) -> None:
        """A step; it counts from 1, as on the terminal. What a step has not, such as a held-out loss, is left out.
        ConfigError where it cannot be written."""
        values = {tag: getattr(record, field) for tag, field in SCALARS.items()}
        values |= {f"seconds/{part}": seconds for part, seconds in record.seconds_by.items()}
        with self._told():
            for tag, value in values.items():
                if value is not None:
                    self._writer.write_event(self._event(wall_time=time.time(), step=record.step + 1,
                                                         summary=self._scalar(tag, value)))
            self._writer.flush()

    def end(self) -> None:
        """Close the file."""
        with self._told():
            self._writer.close()

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            cure = ": make room, or leave it out" if error.errno == errno.ENOSPC else ""
            raise ConfigError(f"`tensorboard` {self._folder} cannot be written: {error.strerror}{cure}") from None
