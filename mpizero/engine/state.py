"""What training changes, and a checkpoint holds."""

from __future__ import annotations

from dataclasses import dataclass

from mpizero.engine.unit import Unit
from mpizero.optim import LossScaler


@dataclass
class TrainingState:
    """Parameters and optimizer states (in the units), the loss scale, and how far training has come."""

    units: list[Unit]
    scaler: LossScaler
    step: int = 0  # steps that were run, skipped ones included
    updates: int = 0  # steps of the optimizer: skipped ones do not count, nor move the learning rate
    position: int = 0  # number of the next step's first sample
