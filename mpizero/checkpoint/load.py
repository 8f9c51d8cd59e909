"""A GPT that only writes: its weights on all ranks, sharded, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

import numpy as np

from mpizero.checkpoint.init import init_weights, open_alike
from mpizero.checkpoint.models import model_of
from mpizero.checkpoint.together import together
from mpizero.checkpoint.weights import is_tied, own_params
from mpizero.comm import Group
from mpizero.data import Batch, Dataset
from mpizero.engine.config import TrainConfig
from mpizero.engine.job import Job, prepare
from mpizero.engine.task import Task
from mpizero.errors import CheckpointError
from mpizero.layout.models import GPTConfig
from mpizero.nn.gpt import gpt
from mpizero.nn.init import Constant


@dataclass(frozen=True)
class Loaded:
    """job: for `engine.generate`. path: of the weights. guessed: whether the number of heads is GPT-2's rule."""

    job: Job
    sizes: GPTConfig
    path: Path
    guessed: bool


def load_gpt(path: str | Path, world: Group, *, heads: int | None = None, dtype: str | None = None) -> Loaded:
    """The GPT of a checkpoint or a safetensors file, in stage 3's shards: 1/N of its parameters on each rank, and while
    it computes one unit. Collective.

    heads: where nothing says how many; None: as GPT-2 has them. dtype: to compute in; None: that in which it was
    trained, float32 of a file. CheckpointError for what is damaged, foreign or no GPT.
    """
    weights = open_alike(world, path)
    tied = together(world, lambda: is_tied(weights), only=0)[0]
    heads = weights.heads if heads is None else heads
    sizes = model_of(own_params(weights, tied), heads, weights.path)
    if not isinstance(sizes, GPTConfig):
        raise CheckpointError(f"{weights.path} holds an MLP, which writes no text: name a checkpoint of a GPT")
    dtype = dtype or weights.dtype
    # sgd without momentum and master weights: parameters are all that rests
    config = TrainConfig(stage="3", model="gpt", layers=sizes.layers, d_model=sizes.d_model, heads=sizes.heads,
                         context=sizes.context, dtype=dtype, batch_size=1, optimizer="sgd", momentum=0.0,
                         no_master_weights=dtype in ("float16", "bfloat16"))
    model = replace(gpt(sizes), draw=lambda param: Constant(0))
    job = prepare(config, world, task=Task(model, _Nothing(sizes.context), target="token"))
    init_weights(job, weights.path)
    return Loaded(job, sizes, weights.path, heads is None)


@final
class _Nothing(Dataset):
    """What a job wants to know of its data before it trains, which this one never does."""

    eval_size, fingerprint = 1, 0

    def __init__(self, context: int):
        self.context = context

    def describe(self) -> str:
        return "none"

    def train(self, samples: np.ndarray) -> Batch:
        return Batch(*np.zeros((2, samples.size, self.context), np.int64))

    def held_out(self, samples: np.ndarray) -> Batch:
        return self.train(samples)
