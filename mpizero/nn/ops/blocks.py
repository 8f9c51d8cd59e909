"""Blocks that stay in cache, in the dtype that is stored or in the one that is computed with.

[Note: stored and computed]
Parameters and activations are stored in `param_dtype`. An operator computes in `compute_dtype`: float32 for the 16-bit
types, otherwise the stored type itself. It works on blocks of rows: `read` hands out the stored block itself, or a cast
of it in a buffer; results go to `target`, and `commit` rounds them, once, into the output. So float32 and float64 never
pay for a copy, and the 16-bit types never hold a whole array in float32.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from mpizero.memory.kinds import WORKSPACE
from mpizero.memory.ledger import Allocator
from mpizero.nn.ops.casts import Array, Scratch, cast

Context = tuple[Array, ...]  # what forward saves for backward


def compute_dtype(dtype: np.dtype) -> np.dtype:
    """The dtype an operator computes in, for operands stored as `dtype`."""
    return dtype if dtype.itemsize >= 4 else np.dtype(np.float32)


def spans(count: int, step: int) -> Iterator[slice]:
    """Consecutive slices of at most `step` that cover range(count)."""
    for start in range(0, count, step):
        yield slice(start, min(start + step, count))


def staging(stored: Array, rows: int, mem: Allocator) -> Array | None:
    """A buffer for `rows` rows of `stored` in the compute dtype; None where `stored` already has it."""
    dtype = compute_dtype(stored.dtype)
    if dtype == stored.dtype:
        return None
    return mem.empty((min(rows, len(stored)), *stored.shape[1:]), dtype, WORKSPACE)


def read(block: Array, buffer: Array | None, mem: Allocator) -> Array:
    """The values of `block` in the compute dtype: itself, or cast into `buffer`."""
    if buffer is None:
        return block
    out = buffer[: len(block)]
    cast(block, out, mem)
    return out


def target(block: Array, buffer: Array | None) -> Array:
    """Where to compute the new values of `block`: itself, or `buffer`."""
    return block if buffer is None else buffer[: len(block)]


def commit(values: Array, block: Array, mem: Allocator, scratch: Scratch = None) -> None:
    """Round `values`, computed in what `target` gave, into `block`. scratch: as `cast` takes it."""
    if values.dtype != block.dtype:
        cast(values, block, mem, scratch)


def vector(param: Array) -> Array:
    """A parameter vector in the compute dtype. Tiny: a row of the operator."""
    return param.astype(compute_dtype(param.dtype), copy=False)
