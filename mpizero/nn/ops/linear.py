"""The linear layer and ReLU.

Legend: n rows (samples, or batch x tokens), K features in, M features out.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from mpizero.layout import sizes
from mpizero.layout.sizes import row_step
from mpizero.memory.kinds import ACTIVATION, WORKSPACE
from mpizero.memory.ledger import Allocator
from mpizero.nn.ops.blocks import (
    Array,
    cast,
    compute_dtype,
    read,
    spans,
    staging,
    vector,
)
from mpizero.nn.ops.gradients import Gradients
from mpizero.nn.ops.matmul import matmul, read_tile, tile_buffer, tiles


def linear(x: Array, weight: Array, bias: Array | None, mem: Allocator, residual: Array | None = None,
           out: Array | None = None) -> Array:
    """y = x @ weight (+ bias) (+ residual), in `out` if given.

    x (n,K), weight (K,M), bias (M,), residual (n,M) -> y (n,M).
    """
    y = mem.empty((len(x), weight.shape[1]), x.dtype, ACTIVATION) if out is None else out
    b = None if bias is None else vector(bias)
    if compute_dtype(x.dtype) == x.dtype:
        matmul(x, weight, y, mem)  # x (n,K) @ weight (K,M) -> y (n,M)
        for rows in spans(len(y), row_step(y.shape[1])):
            block = y[rows]
            if b is not None:
                block += b
            if residual is not None:
                block += residual[rows]
        return y
    buffer = None if residual is None else tile_buffer(residual, sizes.WIDE, compute_dtype(x.dtype), mem)
    for rows, columns, tile in tiles(x, weight, mem):
        if b is not None:
            tile += b[columns]
        if residual is not None:
            tile += read_tile(residual[rows, columns], buffer, mem)
        cast(tile, y[rows, columns], mem)
    return y


def linear_backward(x: Array, dy: Array, params: Mapping[str, Array], name: str, grads: Gradients,
                    mem: Allocator, bias: bool = True) -> Array:
    """Inverts y = x @ weight (+ bias). x (n,K), dy (n,M) -> dx (n,K). Adds dweight (K,M) and dbias (M,) into `grads`.

    name: what stands before ".weight" and ".bias" in the names of the two parameters.
    """
    linear_backward_params(x, dy, name, grads, mem, bias)
    dx = mem.empty(x.shape, x.dtype, ACTIVATION)
    matmul(dy, params[name + ".weight"].T, dx, mem)  # dx (n,K) = dy (n,M) @ weight.T (M,K)
    return dx


def linear_backward_params(x: Array, dy: Array, name: str, grads: Gradients, mem: Allocator,
                           bias: bool = True) -> None:
    """The part of `linear_backward` that is left where x is data."""
    grads.add_matmul(name + ".weight", x.T, dy, mem)  # dweight (K,M) = x.T (K,n) @ dy (n,M)
    if bias and grads.wants(name + ".bias"):
        grads.add(name + ".bias", column_sums(dy, mem))  # dbias (M,) = sum over rows of dy (n,M)


def column_sums(x: Array, mem: Allocator) -> Array:
    """Sum over rows, in the compute dtype. x (n,M) -> (M,). Tiny: a row of the operator."""
    buffer = staging(x, sizes.TILE, mem)
    ones = np.ones(min(sizes.TILE, len(x)), compute_dtype(x.dtype))  # tiny: a column
    total = np.zeros(x.shape[1], ones.dtype)
    for rows in spans(len(x), sizes.TILE):
        block = read(x[rows], buffer, mem)
        total += ones[: len(block)] @ block  # BLAS adds faster than np.sum
    return total


def relu(x: Array) -> Array:
    """max(x, 0), in place: exact in any dtype. NaN stays NaN."""
    return np.maximum(x, x.dtype.type(0), out=x)


def relu_backward(y: Array, dy: Array, mem: Allocator) -> Array:
    """Inverts y = max(x, 0). y, dy (n,M) -> dx (n,M)."""
    dx = mem.empty(dy.shape, dy.dtype, ACTIVATION)
    off = mem.empty(y.shape, np.bool_, WORKSPACE)
    np.less_equal(y, y.dtype.type(0), out=off)
    np.copyto(dx, dy)
    np.copyto(dx, dy.dtype.type(0), where=off)
    return dx
