"""A linear layer whose weight is there one tile of rows at a time.

Legend: as in `ops.linear`; K rows of the tile, and as many columns of x.

[Note: The cut] y = sum over tiles of x[:, rows] @ weight[rows]. Rows of an (in, out) weight are one range of its
elements, so what is drawn, saved and read by name and place knows nothing of tiles. The gradients of weights and of x
are those of the whole product; y is a sum of partial ones, added tile after tile. In float32 both orders of additions
are off the true sum by at most (K + 2) u (|x| @ |weight| + |bias| + |residual|) to first order, u = 2^-24 and K all
rows, so off each other by twice that. 16-bit types round after each tile, once more for each further one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from mpizero.layout.spec import tile_rows
from mpizero.memory.kinds import ACTIVATION
from mpizero.memory.ledger import Allocator
from mpizero.nn.ops.blocks import Array
from mpizero.nn.ops.gradients import Gradients, add_product
from mpizero.nn.ops.linear import column_sums, linear
from mpizero.nn.ops.matmul import matmul


class Tile(NamedTuple):
    """Of the linear layer `name`, the rows of its weight."""

    name: str
    place: int
    rows: slice

    @property
    def weight(self) -> str:
        return f"{self.name}.weight[{self.place}]"

    @property
    def bias(self) -> str:
        return f"{self.name}.bias"


def tiles_of(name: str, rows: int, tiles: int) -> list[Tile]:
    """Those of a weight of so many rows, as `ParamSpec.cut` names them."""
    return [Tile(name, index, part) for index, part in enumerate(tile_rows(rows, tiles))]


def linear_tile(x: Array, tile: Tile, params: Mapping[str, Array], mem: Allocator, out: Array,
                residual: Array | None = None) -> None:
    """Adds x @ weight to `out` (n,M); the first tile stores it, with bias (+ residual). x (n,K), residual (n,M)."""
    if tile.place == 0:
        linear(x, params[tile.weight], params[tile.bias], mem, residual, out)
    else:
        add_product(out, x, params[tile.weight], mem)


def linear_tile_backward(x: Array, dy: Array, tile: Tile, params: Mapping[str, Array], grads: Gradients,
                         mem: Allocator, dx: Array | None) -> None:
    """Inverts y = x @ weight + bias of a tile. x (n,K), dy (n,M) -> dx (n,K), unless x is data. The bias's gradient is
    the first tile's to add."""
    if dx is not None:
        matmul(dy, params[tile.weight].T, dx, mem)  # dx (n,K) = dy (n,M) @ weight.T (M,K)
    grads.add_matmul(tile.weight, x.T, dy, mem)  # dweight (K,M) = x.T (K,n) @ dy (n,M)
    if tile.place == 0 and grads.wants(tile.bias):
        grads.add(tile.bias, column_sums(dy, mem))


def columns(x: Array, wanted: slice, mem: Allocator) -> Array:
    """A copy of some columns, for operators that go along all elements. x (n,M) -> (n,K)."""
    out = mem.empty((len(x), wanted.stop - wanted.start), x.dtype, ACTIVATION)
    out[...] = x[:, wanted]
    return out
