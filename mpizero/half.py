"""float16 <-> float32 in a handful of vectorised passes, bit for bit what NumPy's own casts give.

NumPy converts element by element. Measured on an AMD EPYC with NumPy 2.4 it takes 2.5 ns per element to narrow, 64 ns
where the results are subnormal (each raises a processor flag), and 1.7 to 8 ns to widen. The passes below take about
1.6 and 0.5 ns whatever the values are. inf, NaN and overflow are left to NumPy: they come rarely, and only with a step
that is skipped.
"""

from __future__ import annotations

import numpy as np

# float16: sign 1, exponent 5 (bias 15), fraction 10 bits. float32: sign 1, exponent 8 (bias 127), fraction 23 bits.
_SHIFT = np.array(13, np.int32)  # 23 - 10
_UNDER_SIGN = np.array(0x8FFFE000, np.uint32).view(np.int32)  # sign, 5 exponent bits, 10 fraction bits, after the shift
_REBIAS = np.array(2.0**112, np.float32)  # 127 - 15
_SIGN = np.array(-(2**31), np.int32)
_TO_UPPER_HALF = np.array(16, np.int32)
_EXPONENT = np.array(0xFF << 23, np.int32)
_LOWEST = (127 - 14) << 23  # bits of 2^-14, the smallest normal float16
_UP_13 = np.array(13 << 23, np.int32)  # adds 13 to a float32's exponent
# what `narrow` has too much: exponents 113 and 13, modulo 2^16
_OFFSET = np.array(126 << 10, np.int64).astype(np.int16)


def widen(half: np.ndarray, out: np.ndarray) -> None:
    """out = half, exactly. half float16, out float32, of one shape."""
    # +inf, +NaN; -inf, -NaN
    if half.size and (half.view(np.int16).max() >= 0x7C00 or half.view(np.uint16).max() >= 0xFC00):
        np.copyto(out, half)
        return
    bits = out.view(np.int32)
    np.copyto(bits, half.view(np.int16))
    np.left_shift(bits, _SHIFT, out=bits)
    np.bitwise_and(bits, _UNDER_SIGN, out=bits)  # the value times 2^-112, subnormals included
    np.multiply(out, _REBIAS, out=out)


def narrow(values: np.ndarray, out: np.ndarray, scratch: np.ndarray, more: np.ndarray) -> None:
    """out = values, rounded to nearest even; from 65,520 on becomes inf.

    values: float32; out: float16 of the same shape; scratch, more: float32 of that shape, destroyed.
    Adding c = 2^13 times the power of two at or below |x| (at least
    2^-14) makes the processor round |x| at its 10th fraction bit, or where float16's subnormals end, and leaves the
    float16 significand, implicit bit included, in the low bits of the sum.
    """
    np.absolute(values, out=scratch)
    if not scratch.max(initial=0.0) < 65520:  # would round to inf; or NaN
        with np.errstate(over="ignore"):
            np.copyto(out, values, casting="same_kind")
        return
    bits, sums, powers = values.view(np.int32), scratch.view(np.int32), more.view(np.int32)
    np.bitwise_and(bits, _EXPONENT, out=powers)
    np.maximum(powers, _LOWEST, out=powers)
    np.add(powers, _UP_13, out=powers)  # c
    np.add(scratch, more, out=scratch)  # |x| + c
    np.right_shift(powers, _SHIFT, out=powers)  # exponent of c, where float16 keeps its own
    # low 16 bits: exponent, significand (one rounded up to 2^11 carries into the exponent), _OFFSET
    np.add(sums, powers, out=sums)
    np.bitwise_and(bits, _SIGN, out=powers)
    np.right_shift(powers, _TO_UPPER_HALF, out=powers)
    np.add(sums, powers, out=sums)
    result = out.view(np.int16)
    np.copyto(result, sums, casting="unsafe")  # keeps the low 16 bits
    np.subtract(result, _OFFSET, out=result)
