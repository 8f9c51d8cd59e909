"""Casts between the dtype that is stored and the dtype that is computed with.

[Note: casts of float16]
NumPy casts float16 element by element in software: 1.7 ns to widen, 2.5 ns to round, and 70 ns where the result is subnormal (below
6.1e-5, as most gradients are), since each such element raises a floating-point flag. Here a block is cast by a dozen vector operations
on bit patterns in float32's registers, 0.6 and 1.5 ns whatever the values, with the same bits as NumPy's in every case:

widen: the 15 bits of a float16 magnitude, shifted left by 13, are the float32 of value * 2^-112 (127 - 15 = 112), subnormals included.
round: adding and subtracting M = 1.5 * 2^13 * 2^e, e the exponent of the value but at least -14, lets float32 addition itself round to
       float16's 11 bits, ties to even: the spacing of float32 at M is 2^(e + 13 - 23) = 2^(e - 10), that of float16 at the value.

Blocks that hold a value beyond float16's range, inf or NaN go to NumPy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from mpizero.memory import WORKSPACE, Allocator

Array = npt.NDArray[Any]
Scratch = tuple[Array, Array] | None
Step = Callable[[Array, Array, Scratch], None]  # casts one block

CAST_BLOCK = 32768  # elements: two blocks of float32 lie in L2 beside the operator's own
SMALL_WIDEN, SMALL_ROUND = 4096, 2048  # elements below which NumPy's one call is faster than our dozen

_MAGNITUDE_AND_SIGN = np.int32(-0x70002000)  # 0x8fffe000: bits of a float16 after the shift
_EXPONENT = np.int32(0x7F800000)
_BIAS, _UNBIAS = np.float32(2.0**112), np.float32(2.0**-112)
_SMALLEST_NORMAL = np.float32(2.0**-14)
_TO_M = np.int32(13 << 23 | 1 << 22)  # adds 13 to the exponent of a power of two, and the half
_TOO_LARGE = np.float32(2.0**16)


def cast(source: Array, out: Array, mem: Allocator) -> None:
    """out = source, of any floating dtypes and equal shapes. Narrowing rounds to nearest even; beyond the range of `out` is inf."""
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
    scratch = None if step is _widen else (mem.empty(shape, np.float32, WORKSPACE), mem.empty(shape, np.float32, WORKSPACE))
    for start in range(0, len(source), rows):
        step(source[start : start + rows], out[start : start + rows], scratch)


def _widen(source: Array, out: Array, scratch: Scratch) -> None:
    """float16 -> float32, one block."""
    bits = out.view(np.int32)
    np.copyto(bits, source.view(np.int16))  # extends the sign
    bits <<= 13
    bits &= _MAGNITUDE_AND_SIGN
    out *= _BIAS
    if not _all_below(out, _TOO_LARGE):  # the bits of inf and NaN have become 2^16 and more
        np.copyto(out, source)


def _round(source: Array, out: Array, scratch: Scratch) -> None:
    """float32 -> float16, one block."""
    if not _all_below(source, _TOO_LARGE):
        _plain_cast(source, out)
        return
    assert scratch is not None
    m, value = scratch[0][: len(source)], scratch[1][: len(source)]
    m_bits, bits, source_bits = m.view(np.int32), value.view(np.int32), source.view(np.int32)
    np.bitwise_and(source_bits, _EXPONENT, out=m_bits)
    np.maximum(m, _SMALLEST_NORMAL, out=m)
    m_bits += _TO_M
    np.add(source, m, out=value)
    value -= m  # rounded
    value *= _UNBIAS
    bits >>= 13  # the float16's magnitude in the lower 15 bits
    np.right_shift(source_bits, 16, out=m_bits)
    m_bits &= 0x8000  # its sign
    bits |= m_bits
    np.copyto(out.view(np.int16), bits, casting="unsafe")


def _all_below(x: Array, limit: np.float32) -> bool:
    """Whether every |x| < limit, and none is NaN. The sum of squares, which BLAS gives at once, mostly settles it."""
    if x.flags.c_contiguous:
        flat = x.reshape(-1)
        with np.errstate(over="ignore", invalid="ignore"):
            if np.dot(flat, flat) < limit * limit:
                return True
    return bool(x.max() < limit and x.min() > -limit)
