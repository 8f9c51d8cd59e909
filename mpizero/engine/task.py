"""A task: what is learnt, from what, measured how. The built-in ones, or a user's own."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from mpizero.data import Dataset, load
from mpizero.engine.config import Settings
from mpizero.layout.models import GPTConfig
from mpizero.nn.gpt import gpt
from mpizero.nn.losses import CrossEntropy
from mpizero.nn.mlp import mlp
from mpizero.nn.model import Loss, Model


@dataclass(frozen=True)
class Task:
    """target: what a target is called; a loss is the mean over them."""

    model: Model
    data: Dataset
    loss: Loss = field(default_factory=CrossEntropy)
    target: str = "sample"


def built_in_task(settings: Settings, *, epochs: bool = False, outputs: Iterable[str | Path] = ()) -> Task:
    """The task that the settings name. `DataError` where its data cannot be used. epochs, outputs: see `data.load`."""
    sizes, data, seed = settings.sizes, settings.data, settings.seed
    if isinstance(sizes, GPTConfig):
        text = load("gpt", data, seed=seed, context=sizes.context, epochs=epochs, outputs=outputs)
        return Task(gpt(sizes, settings.tiles), text, target="token")
    return Task(mlp(sizes.hidden, sizes.layers, tiles=settings.tiles), load("mlp", data, seed=seed))
