"""Normal random numbers by place: number i of a stream is a function of the stream's name, the seed and i alone.

[Note: equal on every processor]
Philox's integers are exact. Normal numbers are made of them with +, -, *, / and the square root of float64 alone, one
operation of NumPy each: IEEE 754 prescribes every bit of these. Logarithm and sine are series here, for those of a
library differ between processors and versions. Hence the same seed gives the same weights everywhere.
"""

from __future__ import annotations

import hashlib
import math

import numpy as np

from mpizero.memory.kinds import WORKSPACE
from mpizero.memory.ledger import Allocator
from mpizero.nn.ops.blocks import Array

_LN2 = 0.6931471805599453
_ROOT_HALF = math.sqrt(0.5)
# Taylor series in x^2 of atanh(x) / x for |x| <= 0.172 and of sin(x) / x for |x| <= pi / 4, to float64's precision
_ATANH = [1 / (2 * k + 1) for k in range(10)]
_SINE = [(-1) ** k / math.factorial(2 * k + 1) for k in range(9)]


def words(seed: int, name: str, begin: int, count: int) -> Array:
    """uint64 (count,): those from `begin` on of the stream of one parameter, Philox4x64-10 (Salmon et al.: Parallel
    Random Numbers: As Easy as 1, 2, 3, SC 2011) under a 128-bit hash of seed and name. Counter c gives the words
    4 (c - 1) to 4 (c - 1) + 3."""
    key = hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=16).digest()
    skipped = begin % 4
    return np.random.Philox(key=int.from_bytes(key, "little"), counter=begin // 4).random_raw(skipped + count)[skipped:]


def fill_normal(seed: int, name: str, begin: int, out: Array, std: float, mem: Allocator) -> None:
    """Normal numbers of standard deviation `std`, those from `begin` on, into `out` (n,) float32: each is rounded once.
    Takes 20 bytes of workspace a number: see `normal_bytes`.

    Word j gives numbers 2 j and 2 j + 1 (Box and Muller, 1958): its upper half a radius, its lower half, signed, an
    angle. None lies beyond sqrt(2 ln 2^33) = 6.77 deviations.
    """
    first, last = begin // 2, -(-(begin + out.size) // 2)
    pairs = mem.adopt(words(seed, name, first, last - first), WORKSPACE)
    a, b, c, radius = mem.empty((4, pairs.size), np.float64, WORKSPACE)
    _radius(pairs, a, b, c, radius)
    radius *= std
    np.left_shift(pairs, np.uint64(32), out=pairs)  # the lower half, times 2^32
    cosine, sine = _waves(pairs.view(np.int64), a, b, c)
    for half, wave in enumerate((cosine, sine)):
        into = out[(half - begin) % 2 :: 2]
        skipped = 1 if half < begin % 2 else 0  # begins with the second of a pair
        part = slice(skipped, skipped + into.size)
        np.multiply(radius[part], wave[part], out=into, casting="same_kind")


def normal_bytes(begin: int, count: int) -> int:
    """Workspace of `fill_normal` for `count` numbers from `begin` on: a word and four float64 a pair, and the words of
    its counter that come before the first."""
    first, last = begin // 2, -(-(begin + count) // 2)
    return 8 * (first % 4 + last - first) + 4 * 8 * (last - first)


def _radius(pairs: Array, a: Array, b: Array, c: Array, out: Array) -> None:
    """sqrt(-2 ln u) of u = (upper half + 1/2) / 2^32, all float64 (n,); destroys a, b, c.

    Of 2^32 u = m 2^e the logarithm is ln(m / sqrt(1/2)) + (e - 1/2) ln 2, the first being 2 atanh(s) of
    s = (m - sqrt(1/2)) / (m + sqrt(1/2)), where |s| <= 0.172.
    """
    exponent = c.view(np.int32)[: c.size]
    np.right_shift(pairs, np.uint64(32), out=b.view(np.uint64))
    np.add(b.view(np.int64), 0.5, out=a)
    np.frexp(a, out=(a, exponent))
    np.add(a, _ROOT_HALF, out=b)
    a -= _ROOT_HALF
    a /= b  # s
    np.multiply(a, a, out=b)
    _series(_ATANH, b, out)
    out *= a
    out *= -4.0
    np.multiply(exponent, -2 * _LN2, out=b)
    b += 65 * _LN2  # -2 (e - 1/2 - 32) ln 2
    out += b
    np.sqrt(out, out=out)


def _waves(angles: Array, a: Array, b: Array, c: Array) -> tuple[Array, Array]:
    """Cosine and sine of 2 pi times `angles`, int64 (n,), over 2^64. Uses a, b, c, float64 (n,), two of which it gives.

    Of a quarter of the angle first, which lies within pi / 4; then the angle is doubled twice.
    """
    np.multiply(angles, math.pi / 2**65, out=a)
    np.multiply(a, a, out=b)
    _series(_SINE, b, c)
    c *= a
    np.multiply(c, c, out=a)
    np.subtract(1.0, a, out=b)
    np.sqrt(b, out=b)  # the cosine, which is positive there
    for _ in range(2):
        np.multiply(c, c, out=a)
        c *= b
        c *= 2.0  # sin 2x = 2 sin x cos x
        np.multiply(a, -2.0, out=b)
        b += 1.0  # cos 2x = 1 - 2 sin^2 x
    return b, c


def _series(coefficients: list[float], x: Array, out: Array) -> None:
    """Their polynomial in x, lowest power first, by Horner's rule."""
    out.fill(coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        out *= x
        out += coefficient
