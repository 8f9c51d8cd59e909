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


def cross_entropy_part(logits: Array, targets: Array, first: int, classes: int, out: Array, mem: Allocator) -> None:
    """What the classes from `first` on, of so many, tell of each row: the largest logit, the sum of exp(logit -
    largest), and the target's logit, or 0 where that is another's.

    logits (..., V), targets (...) int64 -> out (3,n) in the compute dtype.
    """
    flat, goal = logits.reshape(targets.size, logits.shape[-1]), targets.reshape(-1)
    check_range("target", goal, None, classes)
    step = row_step(flat.shape[1])
    buffer = staging(flat, step, mem)
    scratch = mem.empty((min(step, len(flat)), flat.shape[1]), out.dtype, WORKSPACE)
    for rows in spans(len(flat), step):
        block, (top, total, found) = read(flat[rows], buffer, mem), out[:, rows]
        shifted, here = scratch[: len(block)], goal[rows] - first
        own = np.flatnonzero((here >= 0) & (here < flat.shape[1]))
        found.fill(0)
        found[own] = block[own, here[own]]
        np.max(block, axis=1, out=top)
        np.subtract(block, top[:, None], out=shifted)
        np.exp(shifted, out=shifted)
        np.sum(shifted, axis=1, out=total)


def cross_entropy_of_parts(logits: Array, targets: Array, parts: Array, mem: Allocator) -> tuple[float, int, Context]:
    """`cross_entropy` where parts (T,3,n) has what `cross_entropy_part` gave for the classes of each of T ranks; with
    the logits (..., V) of one."""
    goal, (tops, totals, found) = targets.reshape(-1), parts.transpose(1, 0, 2)
    stats = mem.empty((2, goal.size), parts.dtype, ACTIVATION)
    top, log_sum = stats
    np.max(tops, axis=0, out=top)
    log_sum.fill(0)
    target = np.zeros(goal.size)  # tiny: a number a row, as the others here
    for each, total, own in zip(tops, totals, found, strict=True):
        log_sum += total * np.exp(each - top)
        target += own
    np.log(log_sum, out=log_sum)
    valid = goal >= 0
    loss = (log_sum.astype(np.float64) + top - target)[valid].sum()
    return float(loss), int(np.count_nonzero(valid)), (logits, stats, targets)


def cross_entropy_backward(context: Context, scale: float, mem: Allocator, first: int = 0) -> Array:
    """Inverts -log p[target] = log_sum - (logits[target] - top).

    dlogits (..., V) = scale * (softmax - onehot), 0 where ignored. first: the class of the first logit.
    Consumes the context: dlogits takes the place of the logits.
    """
    logits, stats, targets = context
    flat, goal = logits.reshape(targets.size, logits.shape[-1]), targets.reshape(-1)
    step = row_step(flat.shape[1])
    buffer = staging(flat, step, mem)
    for rows in spans(len(flat), step):
        block, (top, log_sum) = read(flat[rows], buffer, mem), stats[:, rows]
        valid, here = goal[rows] >= 0, goal[rows] - first  # (r,)
        own = (here >= 0) & (here < block.shape[1])
        block -= top[:, None]
        block -= log_sum[:, None]
        np.exp(block, out=block)  # softmax
        block[own, here[own]] -= 1
        block *= block.dtype.type(scale)
        block[~valid] = 0
        commit(block, flat[rows], mem)
    return logits
