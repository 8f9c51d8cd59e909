"""The additions and casts of a reduction: NumPy's, but for float16 in vectorised passes, bit for bit the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import groupby, pairwise
from typing import final

import numpy as np

from mpizero.comm.channel import Array
from mpizero.half import narrow, widen
from mpizero.layout import rings
from mpizero.memory.kinds import WORKSPACE
from mpizero.memory.ledger import Allocator

Cast = Callable[[Array, Array], object]  # (source, out): out = source, rounded once to nearest even
Add = Callable[[Array, Array, Array], object]  # (a, b, out): out = a + b, rounded once; out may be a or b

HALF, SINGLE = np.dtype(np.float16).char, np.dtype(np.float32).char


def adder(dtype: np.dtype, width: int, mem: Allocator) -> Add:
    """The addition for arrays of `dtype` of at most `width` elements.

    That of float16 takes 4 float32 blocks of workspace while it lives (`rings.adder_bytes`). NumPy adds float16 element
    by element, in 5.6 ns; this takes 2.8. The sum of two float16 in float32, rounded to float16, is their correctly
    rounded sum, since 24 >= 2 * 11 + 2 bits (Figueroa, "When is double rounding innocuous?", 1995).
    """
    if dtype.itemsize != 2:
        return np.add
    block = rings.adder_block(dtype.name, width)
    if not block:
        return _quiet(np.add)
    x, y, z, more = (mem.empty(block, np.float32, WORKSPACE) for _ in range(4))

    def add(a: Array, b: Array, out: Array) -> None:
        for start in range(0, a.size, block):
            part = slice(start, start + block)
            size = a[part].size
            widen(a[part], x[:size])
            widen(b[part], y[:size])
            np.add(x[:size], y[:size], out=x[:size])
            narrow(x[:size], out[part], z[:size], more[:size])

    return _quiet(add)


@final
class Rounding:
    """Values of dtype `source` as a sum of dtype `sums` takes them: rounded to what is sent, `wire`.

    Arrays have at most `width` elements and are cast block by block, in workspace that lives as long as this: as much
    as `rings.rounding_bytes` says.
    """

    def __init__(self, source: np.dtype, wire: np.dtype, sums: np.dtype, width: int, mem: Allocator, *, adds: bool):
        """adds: whether `add` is called, and not only `put`."""
        dtypes = [dtype for dtype, _ in groupby((source, wire, sums))]
        width = self._block = min(rings.BLOCK, width)
        self._casts = [_caster(*pair, width, mem) for pair in pairwise(dtypes)]
        self._middle = mem.empty(width if len(dtypes) == 3 else 0, wire, WORKSPACE)
        self._addend = mem.empty(width if adds and self._casts else 0, sums, WORKSPACE)
        self._add = adder(sums, width, mem) if adds else None

    def put(self, values: Array, total: Array) -> Array:
        """total = values."""
        with np.errstate(over="ignore", invalid="ignore"):
            for part in self._blocks(values.size):
                self._cast(values[part], total[part])
        return total

    def add(self, values: Array, total: Array) -> Array:
        """total = total + values."""
        assert self._add is not None
        with np.errstate(over="ignore", invalid="ignore"):
            for part in self._blocks(values.size):
                block, sums = values[part], total[part]
                self._add(sums, self._cast(block, self._addend[:block.size]) if self._casts else block, sums)
        return total

    def _blocks(self, numel: int) -> Iterator[slice]:
        return (slice(start, start + self._block) for start in range(0, numel, max(self._block, 1)))

    def _cast(self, block: Array, out: Array) -> Array:
        if len(self._casts) == 2:
            middle = self._middle[:block.size]
            self._casts[0](block, middle)
            self._casts[1](middle, out)
        elif self._casts:
            self._casts[0](block, out)
        else:
            np.copyto(out, block)
        return out


def _caster(source: np.dtype, target: np.dtype, width: int, mem: Allocator) -> Cast:
    """The cast of blocks of at most `width` elements. That of float32 to float16 takes 2 blocks of workspace."""
    if (source.char, target.char) == (HALF, SINGLE):
        return widen
    if (source.char, target.char) == (SINGLE, HALF):
        x, y = (mem.empty(width, np.float32, WORKSPACE) for _ in range(2))
        return lambda block, out: narrow(block, out, x[:block.size], y[:block.size])
    return lambda block, out: np.copyto(out, block, casting="unsafe")  # same_kind does not know bfloat16


def _quiet(add: Add) -> Add:
    """Without warnings: in 16 bits overflow is routine, and comes through as inf or NaN for whoever reads the sums."""

    def quiet(a: Array, b: Array, out: Array) -> None:
        with np.errstate(over="ignore", invalid="ignore"):
            add(a, b, out)

    return quiet
