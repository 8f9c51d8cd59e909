"""Cross-entropy over the last axis of the logits.

Legend: n rows (samples, or batch x tokens), V classes. A target below 0 is ignored: it adds nothing to loss, count and gradient.
"""

from __future__ import annotations

import numpy as np

from mpizero.memory import ACTIVATION, WORKSPACE, Allocator
from mpizero.nn.blocks import (
    Array,
    Context,
    commit,
    compute_dtype,
    compute_itemsize,
    read,
    row_step,
    spans,
    staging,
)
from mpizero.nn.embedding import check_range


def cross_entropy(logits: Array, targets: Array, mem: Allocator) -> tuple[float, int, Context]:
    """logits (..., V), targets (...) int64 -> the sum of -log p[target] over valid targets, their number, context.

    The sum is taken in float64. A mean over all ranks and microbatches is the caller's: it knows the global count of valid targets.
    Raises DataError for a target beyond V - 1.
    """
    check_range("target", np.maximum(targets, 0), 0, logits.shape[-1])
    flat, goal = logits.reshape(-1, logits.shape[-1]), targets.reshape(-1)
    lse = mem.empty(len(flat), compute_dtype(flat.dtype), ACTIVATION)  # log of the sum of exponentials (n,)
    step = row_step(flat.shape[1])
    buffer = staging(flat, step, mem)
    scratch = mem.empty((min(step, len(flat)), flat.shape[1]), lse.dtype, WORKSPACE)
    total = 0.0
    for rows in spans(len(flat), step):
        block = read(flat[rows], buffer, mem)
        exponentials, valid = scratch[: len(block)], np.flatnonzero(goal[rows] >= 0)
        top = block.max(axis=1)
        np.subtract(block, top[:, None], out=exponentials)
        np.exp(exponentials, out=exponentials)
        lse[rows] = np.log(exponentials.sum(axis=1)) + top
        total += float(np.sum((lse[rows][valid] - block[valid, goal[rows][valid]]).astype(np.float64)))
    return total, int(np.count_nonzero(goal >= 0)), (logits, lse, targets)


def cross_entropy_backward(context: Context, scale: float, mem: Allocator) -> Array:
    """Inverts loss = sum of lse - logits[target]: dlogits (..., V) = scale * (softmax - onehot), 0 where the target is ignored.

    Consumes the context: dlogits takes the place of the logits.
    """
    logits, lse, targets = context
    flat, goal = logits.reshape(-1, logits.shape[-1]), targets.reshape(-1)
    step = row_step(flat.shape[1])
    buffer = staging(flat, step, mem)
    for rows in spans(len(flat), step):
        block = read(flat[rows], buffer, mem)
        valid = goal[rows] >= 0  # (r,)
        block -= lse[rows, None]
        np.exp(block, out=block)  # softmax
        block[valid, goal[rows][valid]] -= 1
        block *= block.dtype.type(scale)
        block[~valid] = 0
        commit(block, flat[rows], mem)
    return logits


def cross_entropy_saved_bytes(rows: int, itemsize: int) -> int:
    """Bytes that live between forward and backward besides logits and targets, which are the caller's."""
    return rows * compute_itemsize(itemsize)
