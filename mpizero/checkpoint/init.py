"""Start from weights that are there: each rank reads its own ranges, straight into its buffers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from mpizero.checkpoint.models import check_shapes, sizes_of
from mpizero.checkpoint.resume import params_from_master
from mpizero.checkpoint.together import together
from mpizero.checkpoint.weights import Weights, fill_as, is_tied, open_weights, own_params
from mpizero.comm import Group
from mpizero.engine.job import Job
from mpizero.errors import CheckpointError
from mpizero.layout import MASTER
from mpizero.layout.models import GPTConfig
from mpizero.memory.kinds import WORKSPACE
from mpizero.planner.need import scratch_bytes


def init_weights(job: Job, path: str | Path) -> str:
    """Fill a fresh job's weights from a safetensors file or a checkpoint; a line for the user. Optimizer states stay 0,
    the step too. Takes what `planner.need.loading_bytes` says beside what rests. Collective.

    CheckpointError on every rank for a file that is damaged, foreign, or not the same on all hosts, and for parameters
    that are not those of the job's model.
    """
    job.ledger.at("load")
    weights = open_alike(job.world, path)
    tied = together(job.world, lambda: is_tied(weights), only=0)[0]
    together(job.world, lambda: _check_model(job, weights, tied))
    together(job.world, lambda: _fill(job, weights))
    params_from_master(job)
    return f"started from the weights of {weights.path}"


def open_alike(world: Group, path: str | Path) -> Weights:
    """The same weights on all ranks, though `latest` may move meanwhile. Collective."""
    where = together(world, lambda: str(open_weights(path).path), only=0)[0]
    opened: list[Weights] = []

    def open_mine() -> str:
        opened.append(open_weights(where))
        return opened[0].digest

    if len(set(together(world, open_mine))) > 1:
        raise CheckpointError(f"{where} does not hold the same weights on all ranks: give all hosts the same file")
    return opened[0]


def _check_model(job: Job, weights: Weights, tied: bool) -> None:
    """CheckpointError unless the parameters are those of the job's model."""
    shapes, model = own_params(weights, tied), job.task.model
    check_shapes(model.spec, shapes, weights.path, _cure(job, sizes_of(shapes)))
    sizes = job.settings.sizes
    if model.name == "gpt" and isinstance(sizes, GPTConfig) and weights.heads not in (None, sizes.heads):
        raise CheckpointError(f"`heads` is {sizes.heads}, but {weights.path} was trained with {weights.heads}: use "
                              f"`heads` {weights.heads}")


def _cure(job: Job, found: tuple[str, dict[str, Any]] | None) -> str:
    """What would make the model that of the file."""
    if found is None or job.task.model.name not in ("gpt", "mlp"):
        return ": take weights of this very model"
    model, theirs = found
    if model != job.settings.model:
        return f": use `model` {model}"
    ours = {name: getattr(job.settings.sizes, name) for name in theirs}
    wrong = [name for name, size in theirs.items() if size != ours[name]]
    if "vocab" in wrong:
        return (f": its vocabulary has {theirs['vocab']:,} tokens, but training is on bytes, {ours['vocab']}, since "
                "there is no tokenizer")
    flags = [f"`{name}` {theirs[name]}" for name in wrong if name in ("hidden", "layers", "d_model", "context")]
    return f": use {', '.join(flags)}" if flags and len(flags) == len(wrong) else ": take weights of this very model"


def _fill(job: Job, weights: Weights) -> None:
    """This rank's range of the master weights."""
    scratch = job.ledger.empty(scratch_bytes(job.geometry), np.uint8, WORKSPACE)
    for unit in job.state.units:
        for span, values in unit.blocks(MASTER.name, unit.range_of(unit.placement.optim), writes=True):
            for param, where, piece in unit.layout.pieces(span):
                for before, begin, length in where.runs():
                    low = piece.start - span.start + before
                    fill_as(weights, param.name, begin, values[low : low + length], scratch)
