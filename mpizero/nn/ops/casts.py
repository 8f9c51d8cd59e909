"""Casts between the dtype that is stored and the dtype that is computed with.

float16 goes by the vectorised passes of `mpizero.half`, block by block; arrays too small for them, and other pairs of
dtypes, by NumPy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from mpizero import half
from mpizero.layout import sizes
from mpizero.memory.kinds import WORKSPACE
from mpizero.memory.ledger import Allocator

Array = npt.NDArray[Any]
Scratch = tuple[Array, Array] | None  # two flat arrays
Step = Callable[[Array, Array, Scratch], None]  # casts one block


def cast(source: Array, out: Array, mem: Allocator, scratch: Scratch = None) -> None:
    """out = source, of any floating dtypes and equal shapes.

    Narrowing rounds to nearest even; beyond the range of `out` is inf. scratch: from `cast_scratch`, of this size or a
    larger one; made here unless given.
    """
    if source.dtype == np.float16 and out.dtype == np.float32 and source.size > sizes.SMALL_WIDEN:
        _by_blocks(_widen, source, out, None)
    elif _rounds(source.size, source.dtype, out.dtype):
        _by_blocks(_round, source, out, scratch or cast_scratch(source.size, source.dtype, out.dtype, mem))
    else:
        _plain_cast(source, out)


def cast_scratch(size: int, source: np.dtype, out: np.dtype, mem: Allocator) -> Scratch:
    """What a cast of at most `size` elements works in; None if in nothing."""
    if not _rounds(size, source, out):
        return None
    count = min(size, sizes.CAST_BLOCK)
    return mem.empty(count, np.float32, WORKSPACE), mem.empty(count, np.float32, WORKSPACE)


def _rounds(size: int, source: np.dtype, out: np.dtype) -> bool:
    """Whether a cast goes by `half.narrow`."""
    return source == np.float32 and out == np.float16 and size > sizes.SMALL_ROUND


def _plain_cast(source: Array, out: Array) -> None:
    if out.dtype.itemsize < source.dtype.itemsize:
        with np.errstate(over="ignore"):  # the loss scaler wants inf, not a warning
            np.copyto(out, source, casting="unsafe")
    else:
        np.copyto(out, source, casting="unsafe")


def _by_blocks(step: Step, source: Array, out: Array, scratch: Scratch) -> None:
    """Apply `step` to blocks of at most CAST_BLOCK elements."""
    if source.ndim > 1 and source.strides[0] < source.strides[-1]:
        source, out = source.T, out.T
    if source.flags.c_contiguous and out.flags.c_contiguous:
        source, out = source.reshape(-1), out.reshape(-1)
    if source[:1].size > sizes.CAST_BLOCK:
        for part, part_out in zip(source, out, strict=True):
            _by_blocks(step, part, part_out, scratch)
        return
    rows = max(1, sizes.CAST_BLOCK // max(source[:1].size, 1))
    for start in range(0, len(source), rows):
        step(source[start : start + rows], out[start : start + rows], scratch)


def _widen(source: Array, out: Array, scratch: Scratch) -> None:
    """float16 -> float32, one block."""
    half.widen(source, out)


def _round(source: Array, out: Array, scratch: Scratch) -> None:
    """float32 -> float16, one block."""
    assert scratch is not None
    first, second = (part[: source.size].reshape(source.shape) for part in scratch)
    half.narrow(source, out, first, second)
