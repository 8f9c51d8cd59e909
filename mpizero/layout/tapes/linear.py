"""The linear layer and ReLU: `nn.ops.linear`. n rows, K features in, M features out."""

from __future__ import annotations

from mpizero.dtypes import ITEMSIZE
from mpizero.layout import sizes
from mpizero.layout.tape import Add, Take, Tape, Work
from mpizero.layout.tapes.blocks import staging
from mpizero.layout.tapes.gradients import add_matmul
from mpizero.layout.tapes.matmul import matmul, product, tile


def linear(n: int, k: int, m: int, dtype: str, residual: bool = False) -> Tape:
    """Without its output, which may be given."""
    return (Work(product(n, k, m, dtype) + (staging(tile(n, m), dtype) if residual else 0)),)


def linear_backward(n: int, k: int, m: int, dtype: str, name: str, bias: bool = True) -> Tape:
    return (*linear_backward_params(n, k, m, dtype, name, bias), Take(n * k * ITEMSIZE[dtype]), *matmul(n, m, k, dtype))


def linear_backward_params(n: int, k: int, m: int, dtype: str, name: str, bias: bool = True) -> Tape:
    sums = column_sums(n, m, dtype)
    return (*add_matmul(name + ".weight", k, n, m, dtype), *([Add(name + ".bias", sums, sums)] if bias else []))


def column_sums(n: int, m: int, dtype: str) -> int:
    return staging(min(n, sizes.TILE) * m, dtype)


def relu_backward(n: int, m: int, dtype: str) -> Tape:
    """dx, and where y is 0."""
    return Take(n * m * ITEMSIZE[dtype]), Work(n * m)
