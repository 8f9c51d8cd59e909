"""TensorBoard's event files of a run, by the library tensorboardX (extra `tensorboard`)."""

from __future__ import annotations

import os
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
            from tensorboardX import SummaryWriter
        except ImportError:
            raise ConfigError("`tensorboard` needs tensorboardX: pip install 'mpizero[tensorboard]', or leave it "
                              "out") from None
        try:
            os.makedirs(folder, exist_ok=True)
            self._writer: Any = SummaryWriter(str(folder), write_to_disk=True)
        except OSError as error:
            raise ConfigError(f"`tensorboard` {folder} cannot be written: {error.strerror}") from None

    def append(self, record: StepRecord) -> None:
        """A step; it counts from 1, as on the terminal. What a step has not, such as a held-out loss, is left out."""
        for tag, field in SCALARS.items():
            value = getattr(record, field)
            if value is not None:
                self._writer.add_scalar(tag, value, record.step + 1)
        for part, seconds in record.seconds_by.items():
            self._writer.add_scalar(f"seconds/{part}", seconds, record.step + 1)

    def end(self) -> None:
        """Write what is not yet written."""
        self._writer.close()
