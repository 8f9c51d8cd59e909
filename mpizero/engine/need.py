"""What a run needs of a rank's device, known before anything is made: the largest of all that it does."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from mpizero.data import Batch
from mpizero.engine.config import Settings
from mpizero.engine.fill import drawing_bytes
from mpizero.engine.task import Task
from mpizero.layout import OWNED, REPLICATED, ActivationBytes, Geometry
from mpizero.nn.losses import CrossEntropy
from mpizero.planner.need import Peak, actions_peak, digest_peak, highest, loading_bytes, rest
from mpizero.schedule import Schedule


class Tables(NamedTuple):
    """What a microbatch takes, and the largest held-out batch of a rank; None where the model does not tell, or data
    or loss are others than it assumes."""

    train: ActivationBytes | None
    held_out: ActivationBytes | None


def tables(task: Task, settings: Settings, ranks: int) -> Tables:
    """Asks for one sample of each kind."""
    data, held_out = task.data, min(settings.batch_size, -(-task.data.eval_size // ranks))
    return Tables(_table(task, data.train_batch, settings.batch_size, settings.dtype),
                  _table(task, data.eval_batch, held_out, settings.dtype))


def _table(task: Task, batch: Callable[[np.ndarray], Batch], samples: int, dtype: str) -> ActivationBytes | None:
    plan = task.model.spec.activations
    if plan is None or not isinstance(task.loss, CrossEntropy):
        return None
    inputs, targets = batch(np.zeros(1, np.int64))
    if targets.dtype != np.int64:
        return None
    one = plan(targets.shape, dtype)
    if (_owned_bytes(inputs), _owned_bytes(targets)) != (one.inputs, one.targets):
        return None
    return plan((samples, *targets.shape[1:]), dtype)


def _owned_bytes(array: np.ndarray) -> int:
    """Of the array whose memory it is a view of: what the ledger counts."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array.nbytes


def run_need(lists: Schedule, geometry: Geometry, task: Task, settings: Settings, sizes: Tables) -> Peak | None:
    """The most that a rank needs, of all ranks the one that needs most. None where a plan does not know all that
    computations take."""
    places = map(geometry.at, geometry.representatives)
    return highest([*(_rank_need(lists, place, settings, sizes) for place in places), _drawing(geometry, task)])


def _rank_need(lists: Schedule, geometry: Geometry, settings: Settings, sizes: Tables) -> Peak | None:
    reads, begun = settings.checkpoints.resume or settings.checkpoints.init, rest(geometry)
    return highest([
        Peak(begun.nbytes + (loading_bytes(geometry) if reads else 0), "load"),
        actions_peak(lists.step() if settings.steps else [], geometry, sizes.train),
        actions_peak(lists.evaluate, geometry, sizes.held_out),
        digest_peak(geometry)])


def _drawing(geometry: Geometry, task: Task) -> Peak:
    """Of the initial values, which any rank may draw in pieces of its own."""
    most = 0
    for shard_rank in range(geometry.shards if geometry.placement.params is not REPLICATED else 1):
        place = geometry.at(shard_rank)
        begun = rest(place).nbytes
        for index, layout in enumerate(geometry.wrapping.units):
            if geometry.placement.params is REPLICATED:
                kept = slice(0, layout.padded_numel)
            elif geometry.placement.params is OWNED:
                kept = slice(0, place.kept(index, OWNED))
            else:
                kept = layout.shard(shard_rank, geometry.shards)
            most = max(most, begun + drawing_bytes(layout, kept, task.model))
    return Peak(most, "init")
