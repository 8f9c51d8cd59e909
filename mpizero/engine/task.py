"""A task: what is learnt, from what, measured how. The built-in ones, or a user's own."""

from __future__ import annotations

from dataclasses import dataclass, field

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


def built_in_task(settings: Settings) -> Task:
    """The task that the settings name. `DataError` where its data cannot be used."""
    sizes, data, seed = settings.sizes, settings.data, settings.seed
    if isinstance(sizes, GPTConfig):
        return Task(gpt(sizes), load("gpt", data, seed=seed, context=sizes.context), target="token")
    return Task(mlp(hidden=sizes.hidden), load("mlp", data, seed=seed))
