"""GELU in the tanh form of GPT-2 (arXiv:1606.08415, sec. 2)."""

from __future__ import annotations

import math

import numpy as np

from mpizero.layout import sizes
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
)

SCALE = math.sqrt(2 / math.pi)
CUBIC = 0.044715


def gelu(x: Array, mem: Allocator) -> Array:
    """y = x/2 * (1 + tanh(u)), u = SCALE * (x + CUBIC * x^3). x (...) -> y (...)."""
    y = mem.empty(x.shape, x.dtype, ACTIVATION)
    flat_x, flat_y = x.reshape(-1), y.reshape(-1)
    buffers = [staging(flat_x, sizes.BLOCK, mem) for _ in range(2)]
    for span in spans(flat_x.size, sizes.BLOCK):
        block, out = read(flat_x[span], buffers[0], mem), target(flat_y[span], buffers[1])
        _half_one_plus_tanh(block, out, out)
        out *= block
        commit(out, flat_y[span], mem)
    return y


def gelu_backward(x: Array, dy: Array, mem: Allocator) -> tuple[Array, Array]:
    """Inverts y = x * s, s = (1 + tanh(u)) / 2. x, dy (...) -> dx (...), and y (...) again, the same bits as forward's.

    dx = dy * (s + x s (1 - s) * 2 du/dx), since 1 - tanh^2 = 4 s (1 - s). With q = u / x = SCALE * (1 + CUBIC x^2),
    2 du/dx = 6 q - 4 SCALE.
    Consumes its operands: dx takes the place of dy, y that of x.
    """
    flat_x, flat_dy = x.reshape(-1), dy.reshape(-1)
    buffers = [staging(flat_x, sizes.BLOCK, mem) for _ in range(2)]
    work = mem.empty((3, min(sizes.BLOCK, x.size)), compute_dtype(x.dtype), WORKSPACE)
    for span in spans(flat_x.size, sizes.BLOCK):
        block, upstream = read(flat_x[span], buffers[0], mem), read(flat_dy[span], buffers[1], mem)
        s, slope, rest = work[:, : block.size]
        _half_one_plus_tanh(block, s, slope)
        slope *= 6
        slope -= 4 * SCALE  # 2 du/dx
        block *= s  # y = x * s
        slope *= block
        np.subtract(1, s, out=rest)
        slope *= rest
        slope += s  # s + x s (1 - s) * 2 du/dx
        upstream *= slope
        commit(block, flat_x[span], mem)
        commit(upstream, flat_dy[span], mem)
    return flat_dy.reshape(dy.shape), flat_x.reshape(x.shape)


def _half_one_plus_tanh(x: Array, out: Array, q: Array) -> None:
    """out = (1 + tanh(u)) / 2, u = x * q, and q = SCALE * (1 + CUBIC * x^2)."""
    np.multiply(x, x, out=q)
    q *= SCALE * CUBIC
    q += SCALE
    np.multiply(q, x, out=out)
    np.tanh(out, out=out)
    out *= 0.5
    out += 0.5
