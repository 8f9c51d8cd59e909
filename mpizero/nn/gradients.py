"""Where operators leave the gradients of parameters."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from mpizero.memory import Allocator
from mpizero.nn.blocks import Array, cast, compute_dtype, row_step, spans
from mpizero.nn.matmul import matmul, tiles


class Gradients:
    """A sink over views into a unit's flat gradient. Final.

    views: parameter name -> view, with the parameter's shape, in any floating dtype.
    written: the names whose view holds something already. The first contribution of the others is stored, not added, so that a
    gradient needs no zero fill. Kept by the unit, which clears it when the gradient has been reduced.
    Each contribution is added in the compute dtype and rounded once into the view.
    """

    def __init__(self, views: Mapping[str, Array], written: set[str]):
        self.views, self.written = views, written

    def add(self, name: str, value: Array) -> None:
        """view = round(view + value). value: the parameter's shape; the caller's allocation, so keep it to blocks or tiny vectors."""
        view = self.views[name]
        if name not in self.written:
            cast(value, view)
        elif compute_dtype(view.dtype) == view.dtype:
            np.add(view, value, out=view, casting="same_kind")
        else:
            for rows in spans(len(view), row_step(view[:1].size)):
                cast(view[rows].astype(np.float32) + value[rows], view[rows])  # a block
        self.written.add(name)

    def add_matmul(self, name: str, a: Array, b: Array, mem: Allocator) -> None:
        """view = round(view + a @ b). a (p,q), b (q,r), view (p,r). One product, no temporary where the view is written first."""
        view = self.views[name]
        if name not in self.written:
            matmul(a, b, view, mem)
        else:
            for rows, columns, tile in tiles(a, b, mem):
                held = view[rows, columns]
                tile += held
                cast(tile, held)
        self.written.add(name)

    def zeroed(self, name: str) -> Array:
        """The view itself, for adding into some of its rows: filled with zeros if nothing was there."""
        view = self.views[name]
        if name not in self.written:
            view.fill(0)
            self.written.add(name)
        return view
