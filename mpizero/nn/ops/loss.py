"""Cross-entropy over the last axis of the logits.

Legend: n rows (samples, or batch x tokens), V classes. A target below 0 is ignored: it adds nothing to loss, count and
gradient.
"""

from __future__ import annotations

import numpy as np

from mpizero.layout.sizes import row_step
from mpizero.memory.kinds import ACTIVATION, WORKSPACE
from mpizero.memory.ledger import Allocator
from mpizero.nn.ops.blocks import (
    Array,
    Context,
    commit,
    compute_dtype,
    read,
    spans,
    staging,
)
from mpizero.nn.ops.embedding import check_range


def cross_entropy(logits: Array, targets: Array, mem: Allocator) -> tuple[float, int, Context]:
    """logits (..., V), targets (...) int64 -> the sum of -log p[target] over valid targets, their number, context.

    The sum is taken in float64. A mean over all ranks and microbatches is the caller's: it knows the global count of
    valid targets.
    Raises DataError for a target beyond V - 1.
    """
    logits = np.ascontiguousarray(logits)  # as they are
    flat, goal = logits.reshape(targets.size, logits.shape[-1]), targets.reshape(-1)
    check_range("target", goal, None, flat.shape[1])
    # of each row: its largest logit, log sum exp(logit - largest)
    stats = mem.empty((2, len(flat)), compute_dtype(flat.dtype), ACTIVATION)
    step = row_step(flat.shape[1])
    buffer = staging(flat, step, mem)
    scratch = mem.empty((min(step, len(flat)), flat.shape[1]), stats.dtype, WORKSPACE)
    total = 0.0
    for rows in spans(len(flat), step):
        block, (top, log_sum) = read(flat[rows], buffer, mem), stats[:, rows]
        shifted, valid = scratch[: len(block)], np.flatnonzero(goal[rows] >= 0)
        np.max(block, axis=1, out=top)
        np.subtract(block, top[:, None], out=shifted)
        total -= float(shifted[valid, goal[rows][valid]].sum(dtype=np.float64))
        np.exp(shifted, out=shifted)
        np.log(shifted.sum(axis=1), out=log_sum)
        total += float(log_sum[valid].sum(dtype=np.float64))  # -log p = log_sum - shifted[target]
    return total, int(np.count_nonzero(goal >= 0)), (logits, stats, targets)


def cross_entropy_backward(context: Context, scale: float, mem: Allocator) -> Array:
    """Inverts -log p[target] = log_sum - (logits[target] - top).

    dlogits (..., V) = scale * (softmax - onehot), 0 where ignored.
    Consumes the context: dlogits takes the place of the logits.
    """
    logits, stats, targets = context
    flat, goal = logits.reshape(targets.size, logits.shape[-1]), targets.reshape(-1)
    step = row_step(flat.shape[1])
    buffer = staging(flat, step, mem)
    for rows in spans(len(flat), step):
        block, (top, log_sum) = read(flat[rows], buffer, mem), stats[:, rows]
        valid = goal[rows] >= 0  # (r,)
        block -= top[:, None]
        block -= log_sum[:, None]
        np.exp(block, out=block)  # softmax
        block[valid, goal[rows][valid]] -= 1
        block *= block.dtype.type(scale)
        block[~valid] = 0
        commit(block, flat[rows], mem)
    return logits
