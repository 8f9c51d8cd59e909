"""A task: what is learnt, from what, measured how. The built-in ones, or a user's own."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from mpizero.data import Dataset, load
from mpizero.engine.config import Settings
from mpizero.layout.models import GPTConfig
from mpizero.layout.tensor import TensorPlace
from mpizero.nn.gpt import gpt
from mpizero.nn.losses import CrossEntropy, DividedCrossEntropy
from mpizero.nn.mlp import mlp
from mpizero.nn.model import DividedLoss, Loss, Model


@dataclass(frozen=True)
class Task:
    """target: what a target is called; a loss is the mean over them. divided: the loss where tensor parallel ranks have
    a part each of the model's outputs."""

    model: Model
    data: Dataset
    loss: Loss = field(default_factory=CrossEntropy)
    target: str = "sample"
    divided: DividedLoss | None = None


def built_in_task(settings: Settings, rank: int = 0, *, epochs: bool = False,
                  outputs: Iterable[str | Path] = ()) -> Task:
    """The task that the settings name, as `rank` has its part. `DataError` where its data cannot be used. epochs,
    outputs: see `data.load`."""
    sizes, data, seed = settings.sizes, settings.data, settings.seed
    place = TensorPlace(rank % settings.step.tensor_size, settings.step.tensor_size)
    divided = DividedCrossEntropy(place)
    if isinstance(sizes, GPTConfig):
        text = load("gpt", data, seed=seed, context=sizes.context, epochs=epochs, outputs=outputs)
        return Task(gpt(sizes, settings.tiles, place), text, target="token", divided=divided)
    model = mlp(sizes.hidden, sizes.layers, tiles=settings.tiles, place=place)
    return Task(model, load("mlp", data, seed=seed), divided=divided)
