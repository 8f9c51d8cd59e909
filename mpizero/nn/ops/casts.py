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
from mpizero.memory.kinds import WORKSPACE
from mpizero.memory.ledger import Allocator

Array = npt.NDArray[Any]
Scratch = tuple[Array, Array] | None
Step = Callable[[Array, Array, Scratch], None]  # casts one block

CAST_BLOCK = 32768  # elements: two blocks of float32 lie in L2 beside the operator's own
SMALL_WIDEN, SMALL_ROUND = 4096, 2048  # elements below which NumPy's one call is faster than our dozen


def cast(source: Array, out: Array, mem: Allocator) -> None:
    """out = source, of any floating dtypes and equal shapes.

    Narrowing rounds to nearest even; beyond the range of `out` is inf.
    """
    if source.dtype == np.float16 and out.dtype == np.float32 and source.size > SMALL_WIDEN:
        _by_blocks(_widen, source, out, mem)
    elif source.dtype == np.float32 and out.dtype == np.float16 and source.size > SMALL_ROUND:
        _by_blocks(_round, source, out, mem)
    else:
        _plain_cast(source, out)


def _plain_cast(source: Array, out: Array) -> None:
    if out.dtype.itemsize < source.dtype.itemsize:
        with np.errstate(over="ignore"):  # the loss scaler wants inf, not a warning
            np.copyto(out, source, casting="unsafe")
    else:
        np.copyto(out, source, casting="unsafe")


def _by_blocks(step: Step, source: Array, out: Array, mem: Allocator) -> None:
    """Apply `step` to blocks of at most CAST_BLOCK elements."""
    if source.ndim > 1 and source.strides[0] < source.strides[-1]:
        source, out = source.T, out.T
    if source.flags.c_contiguous and out.flags.c_contiguous:
        source, out = source.reshape(-1), out.reshape(-1)
    if source[:1].size > CAST_BLOCK:
        for part, part_out in zip(source, out, strict=True):
            _by_blocks(step, part, part_out, mem)
        return
    rows = max(1, CAST_BLOCK // max(source[:1].size, 1))
    shape = (min(rows, len(source)), *source.shape[1:])
    scratch = None if step is _widen else (mem.empty(shape, np.float32, WORKSPACE),
                                           mem.empty(shape, np.float32, WORKSPACE))
    for start in range(0, len(source), rows):
        step(source[start : start + rows], out[start : start + rows], scratch)


def _widen(source: Array, out: Array, scratch: Scratch) -> None:
    """float16 -> float32, one block."""
    half.widen(source, out)


def _round(source: Array, out: Array, scratch: Scratch) -> None:
    """float32 -> float16, one block."""
    assert scratch is not None
    half.narrow(source, out, scratch[0][: len(source)], scratch[1][: len(source)])
