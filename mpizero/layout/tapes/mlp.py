"""The MLP: `nn.mlp`. n samples, K features in, M features out."""

from __future__ import annotations

from mpizero.dtypes import ITEMSIZE
from mpizero.layout.tape import Give, Take, Tape, Work
from mpizero.layout.tapes.casts import cast
from mpizero.layout.tapes.linear import linear, linear_backward, linear_backward_params, relu_backward

DATA = "float32"  # of features


def linear_segment(n: int, k: int, m: int, dtype: str, first: bool) -> Tape:
    begun = stored(n * k, dtype) if first else ()
    return *begun, Take(n * m * ITEMSIZE[dtype]), *linear(n, k, m, dtype)


def linear_segment_backward(n: int, k: int, m: int, dtype: str, name: str, first: bool, last: bool) -> Tape:
    y = dy = Give(n * m * ITEMSIZE[dtype])
    relu = () if last else (*relu_backward(n, m, dtype), dy, y)
    if not first:
        return *relu, *linear_backward(n, k, m, dtype, name)
    return *relu, *linear_backward_params(n, k, m, dtype, name)


def divided_backward(n: int, k: int, m: int, dtype: str, name: str, *, first: bool, relu: bool, masks: bool,
                     adds: bool) -> Tape:
    """Of a tensor parallel Linear. relu: y is the output of one; masks: x is, and dx is as well."""
    y = dy = Give(n * m * ITEMSIZE[dtype])
    after = (*relu_backward(n, m, dtype), dy, y) if relu else ()
    if first:
        return *after, *linear_backward_params(n, k, m, dtype, name, adds)
    before = (*relu_backward(n, k, dtype), Give(n * k * ITEMSIZE[dtype])) if masks else ()  # dx before it
    return *after, *linear_backward(n, k, m, dtype, name, adds), *before


def stored(numel: int, dtype: str) -> Tape:
    """Data of another dtype than the parameters' are cast, and die: nobody else holds them."""
    if dtype == DATA:
        return ()
    return Take(numel * ITEMSIZE[dtype]), Work(cast(numel, dtype)), Give(numel * ITEMSIZE[DATA])
