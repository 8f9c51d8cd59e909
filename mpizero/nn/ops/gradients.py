"""Where operators leave the gradients of parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import final

import numpy as np

from mpizero.errors import ConfigError
from mpizero.layout.sizes import row_step
from mpizero.memory.kinds import WORKSPACE
from mpizero.memory.ledger import Allocator, Uncounted
from mpizero.nn.ops.blocks import Array, compute_dtype, spans
from mpizero.nn.ops.casts import cast
from mpizero.nn.ops.matmul import matmul, tiles

UNCOUNTED = Uncounted()
NONE: Mapping[str, tuple[int, ...]] = {}


@final
class Gradients:
    """A sink over views into a unit's flat gradient.

    views: parameter name -> view, with the parameter's shape, in any floating dtype.
    written: the names whose view holds something already. The first contribution of the others is stored, not added, so
    that a gradient needs no zero fill. Kept by the unit, which clears it when the gradient has been reduced.
    frozen: parameter name -> shape of those that get no gradient; what is added for them goes nowhere.
    Each contribution is added in the compute dtype and rounded once into the view.
    """

    def __init__(self, views: Mapping[str, Array], written: set[str], frozen: Mapping[str, tuple[int, ...]] = NONE):
        self.views, self.written, self.frozen = views, written, frozen

    def wants(self, *names: str) -> bool:
        """Whether one of these parameters gets a gradient: else a backward need not compute it."""
        return not all(name in self.frozen for name in names)

    def add(self, name: str, value: Array, mem: Allocator = UNCOUNTED) -> None:
        """view = round(view + value). value: the parameter's shape.

        Without `mem`, temporaries, blocks at most, are not counted.
        """
        shape = self.frozen[name] if name in self.frozen else self.views[name].shape
        if value.shape != shape:  # NumPy would repeat it
            raise ConfigError(f"a gradient of shape {value.shape} was added for parameter {name}, whose shape is "
                              f"{shape}: a backward must give one of that shape")
        if name in self.frozen:
            return
        view = self.views[name]
        if name not in self.written:
            cast(value, view, mem)
        else:
            add_rows(view, value, mem)
        self.written.add(name)

    def add_matmul(self, name: str, a: Array, b: Array, mem: Allocator) -> None:
        """view = round(view + a @ b). a (p,q), b (q,r), view (p,r).

        One product, no temporary where the view is written first; none for a frozen parameter.
        """
        if name in self.frozen:
            return
        view = self.views[name]
        if name not in self.written:
            matmul(a, b, view, mem)
        else:
            for rows, columns, tile in tiles(a, b, mem):
                add_rows(view[rows, columns], tile, mem)
        self.written.add(name)

    def zeroed(self, name: str) -> Array:
        """The view itself, for adding into some of its rows: filled with zeros if nothing was there. Of a frozen
        parameter an array that nobody reads: ask `wants` first."""
        if name in self.frozen:
            return np.zeros(self.frozen[name], np.float32)
        view = self.views[name]
        if name not in self.written:
            view.fill(0)
            self.written.add(name)
        return view


def add_rows(out: Array, values: Array, mem: Allocator) -> None:
    """out = round(out + values), block by block.

    out, values (n,...) or () of any floating dtypes; computed in the wider compute dtype.
    """
    if out.ndim == 0:
        out, values = out.reshape(1), values.reshape(1)
    work = np.result_type(compute_dtype(out.dtype), compute_dtype(values.dtype))
    if out.dtype == values.dtype == work:
        out += values
        return
    step = row_step(out[:1].size)
    held, added = (mem.empty((min(step, len(out)), *out.shape[1:]), work, WORKSPACE) for _ in range(2))
    for rows in spans(len(out), step):
        total, value = held[: rows.stop - rows.start], added[: rows.stop - rows.start]
        cast(out[rows], total, mem)
        cast(values[rows], value, mem)
        total += value
        cast(total, out[rows], mem)
