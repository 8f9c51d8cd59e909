"""GELU in the tanh form of GPT-2 (arXiv:1606.08415, sec. 2)."""

from __future__ import annotations

import math

import numpy as np

from mpizero.memory import ACTIVATION, WORKSPACE, Allocator
from mpizero.nn.blocks import (
    BLOCK,
    Array,
    commit,
    compute_dtype,
    read,
    spans,
    staging,
    target,
)

SCALE = math.sqrt(2 / math.pi)
CUBIC = 0.044715


def gelu(x: Array, mem: Allocator) -> Array:
    """y = x/2 * (1 + tanh(u)), u = SCALE * (x + CUBIC * x^3). x (...) -> y (...)."""
    y = mem.empty(x.shape, x.dtype, ACTIVATION)
    flat_x, flat_y = x.reshape(-1), y.reshape(-1)
    buffers = [staging(flat_x, BLOCK, mem) for _ in range(2)]
    for span in spans(flat_x.size, BLOCK):
        block, out = read(flat_x[span], buffers[0], mem), target(flat_y[span], buffers[1])
        _half_one_plus_tanh(block, out)
        out *= block
        commit(out, flat_y[span], mem)
    return y


def gelu_backward(x: Array, dy: Array, mem: Allocator) -> tuple[Array, Array]:
    """Inverts y = x * s, s = (1 + tanh(u)) / 2. x, dy (...) -> dx (...), and y (...) again, the same bits as forward's.

    dx = dy * (s + x * 2 s (1 - s) * du/dx), du/dx = SCALE * (1 + 3 CUBIC x^2), since 1 - tanh^2 = 4 s (1 - s).
    """
    dx, y = mem.empty(x.shape, x.dtype, ACTIVATION), mem.empty(x.shape, x.dtype, ACTIVATION)
    flat_x, flat_dy, flat_dx, flat_y = x.reshape(-1), dy.reshape(-1), dx.reshape(-1), y.reshape(-1)
    buffers = [staging(flat_x, BLOCK, mem) for _ in range(4)]
    work = mem.empty((2, min(BLOCK, x.size)), compute_dtype(x.dtype), WORKSPACE)
    for span in spans(flat_x.size, BLOCK):
        block, upstream = read(flat_x[span], buffers[0], mem), read(flat_dy[span], buffers[1], mem)
        out, y_out = target(flat_dx[span], buffers[2]), target(flat_y[span], buffers[3])
        s, rest = work[:, : block.size]
        _half_one_plus_tanh(block, s)
        np.multiply(s, block, out=y_out)
        np.multiply(block, block, out=out)
        out *= 6 * CUBIC * SCALE
        out += 2 * SCALE  # 2 du/dx
        out *= y_out  # 2 du/dx * x * s
        np.subtract(1, s, out=rest)
        out *= rest  # 2 du/dx * x * s * (1 - s)
        out += s
        out *= upstream
        commit(y_out, flat_y[span], mem)
        commit(out, flat_dx[span], mem)
    return dx, y


def _half_one_plus_tanh(x: Array, out: Array) -> None:
    """out = (1 + tanh(u)) / 2, u = SCALE * (x + CUBIC * x^3)."""
    np.multiply(x, x, out=out)
    out *= SCALE * CUBIC
    out += SCALE
    out *= x
    np.tanh(out, out=out)
    out *= 0.5
    out += 0.5
