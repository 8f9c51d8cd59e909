"""Layer normalisation (arXiv:1607.06450).

Legend: n rows (batch x tokens), C features. stats (2,n): mean and reciprocal standard deviation of each row, in the
compute dtype.
"""

from __future__ import annotations

import numpy as np

from mpizero.layout.sizes import row_step
from mpizero.memory.kinds import ACTIVATION, WORKSPACE
from mpizero.memory.ledger import Allocator
from mpizero.nn.ops.blocks import (
    Array,
    commit,
    compute_dtype,
    read,
    spans,
    staging,
    target,
    vector,
)
from mpizero.nn.ops.gradients import Gradients

EPSILON = 1e-5  # GPT-2's


def new_stats(rows: int, dtype: np.dtype, mem: Allocator) -> Array:
    """Room for the statistics of `rows` rows stored as `dtype`: (2,n)."""
    return mem.empty((2, rows), compute_dtype(dtype), ACTIVATION)


def layer_norm(x: Array, weight: Array, bias: Array, stats: Array, mem: Allocator) -> Array:
    """y = (x - mean) / sqrt(variance + EPSILON) * weight + bias. Fills stats (2,n).

    x (n,C), weight, bias (C,) -> y (n,C).
    """
    y = mem.empty(x.shape, x.dtype, ACTIVATION)
    rows, width = row_step(x.shape[1]), x.shape[1]
    buffer = staging(x, rows, mem)
    w, b, average = vector(weight), vector(bias), np.full(width, 1 / width, stats.dtype)
    for span in spans(len(x), rows):
        block, out, mean, rstd = read(x[span], buffer, mem), target(y[span], buffer), stats[0, span], stats[1, span]
        np.matmul(block, average, out=mean)
        np.subtract(block, mean[:, None], out=out)
        np.einsum("ij,ij->i", out, out, out=rstd)
        rstd /= width
        rstd += EPSILON
        np.sqrt(rstd, out=rstd)
        np.reciprocal(rstd, out=rstd)
        out *= rstd[:, None]
        out *= w
        out += b
        commit(out, y[span], mem)
    return y


def layer_norm_again(x: Array, stats: Array, weight: Array, bias: Array, mem: Allocator) -> Array:
    """y of `layer_norm`, the same bits, from the saved stats: cheaper than keeping y between forward and backward."""
    y = mem.empty(x.shape, x.dtype, ACTIVATION)
    rows = row_step(x.shape[1])
    buffer = staging(x, rows, mem)
    w, b = vector(weight), vector(bias)
    for span in spans(len(x), rows):
        out = target(y[span], buffer)
        _normalise(read(x[span], buffer, mem), stats[:, span], out)
        out *= w
        out += b
        commit(out, y[span], mem)
    return y


def layer_norm_backward(x: Array, stats: Array, dy: Array, weight: Array, names: tuple[str, str], grads: Gradients,
                        mem: Allocator, residual: Array | None = None) -> Array:
    """Inverts y = xhat * weight + bias, xhat = (x - mean) * rstd.

    x, dy (n,C) -> dx (n,C), plus `residual` (n,C), in one rounding.
    dx = rstd * (g - mean(g) - xhat * mean(g * xhat)), g = dy * weight; means over C. names: of weight and bias, whose
    gradients are added into `grads`: dweight (C,) = sum of dy * xhat, dbias (C,) = sum of dy.
    """
    dx = mem.empty(x.shape, x.dtype, ACTIVATION)
    rows, work = row_step(x.shape[1]), compute_dtype(x.dtype)
    w = vector(weight)
    buffers = [staging(x, rows, mem) for _ in range(3)]
    scratch = mem.empty((2, min(rows, len(x)), x.shape[1]), work, WORKSPACE)
    sums = np.zeros((2, x.shape[1]), work)  # dweight, dbias. Tiny
    for span in spans(len(x), rows):
        g_in, out = read(dy[span], buffers[0], mem), target(dx[span], buffers[1])
        xhat, product = scratch[:, : len(g_in)]
        _normalise(read(x[span], buffers[1], mem), stats[:, span], xhat)
        ones = np.ones(len(g_in), work)
        np.multiply(g_in, xhat, out=product)
        sums[0] += ones @ product
        sums[1] += ones @ g_in
        mean_gx = (product @ w) / x.shape[1]  # mean over C of g * xhat (n,). Tiny
        mean_g = (g_in @ w) / x.shape[1]  # mean over C of g (n,). Tiny
        np.multiply(g_in, w, out=out)
        out -= mean_g[:, None]
        xhat *= mean_gx[:, None]
        out -= xhat
        out *= stats[1, span, None]
        if residual is not None:
            out += read(residual[span], buffers[2], mem)
        commit(out, dx[span], mem)
    grads.add(names[0], sums[0])
    grads.add(names[1], sums[1])
    return dx


def _normalise(block: Array, stats: Array, out: Array) -> None:
    """out = (block - mean) * rstd. block, out (r,C), stats (2,r); `out` may be `block`."""
    np.subtract(block, stats[0, :, None], out=out)
    out *= stats[1, :, None]
