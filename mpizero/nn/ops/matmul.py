"""Matrix products of stored arrays: float32 and float64 by BLAS directly, 16-bit types tile by tile in float32."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from mpizero.layout import sizes
from mpizero.memory.kinds import WORKSPACE
from mpizero.memory.ledger import Allocator
from mpizero.nn.ops.blocks import Array, compute_dtype, spans
from mpizero.nn.ops.casts import cast


def matmul(a: Array, b: Array, out: Array, mem: Allocator) -> None:
    """out = a @ b, rounded once. a (p,q), b (q,r), out (p,r): any floating dtypes, views and transposes welcome.

    float32 and float64 go to BLAS as they are; 16-bit operands are cast tile by tile and multiplied in float32 (tensor
    cores' way), never by NumPy's own float16 loops.
    """
    if a.dtype == b.dtype == out.dtype and compute_dtype(a.dtype) == a.dtype:
        np.matmul(a, b, out=out)
        return
    for rows, columns, tile in tiles(a, b, mem):
        cast(tile, out[rows, columns], mem)


def tiles(a: Array, b: Array, mem: Allocator) -> Iterator[tuple[slice, slice, Array]]:
    """Yield (rows, columns, tile): the tiles of a @ b in the compute dtype. A tile is valid until the next one."""
    (p, q), r = a.shape, b.shape[1]
    work = np.result_type(compute_dtype(a.dtype), compute_dtype(b.dtype))
    total = mem.empty((min(p, sizes.TILE), min(r, sizes.WIDE)), work, WORKSPACE)
    part = mem.empty(total.shape, work, WORKSPACE) if q > sizes.TILE else total
    left, right = tile_buffer(a, sizes.TILE, work, mem), tile_buffer(b, sizes.WIDE, work, mem)
    for rows in spans(p, sizes.TILE):
        for columns in spans(r, sizes.WIDE):
            tile = total[: rows.stop - rows.start, : columns.stop - columns.start]
            if q == 0:
                tile.fill(0)
            for depth in spans(q, sizes.TILE):
                if q > sizes.TILE or columns.start == 0:  # else it is there from the columns before
                    a_tile = read_tile(a[rows, depth], left, mem)
                product = tile if depth.start == 0 else part[: tile.shape[0], : tile.shape[1]]
                np.matmul(a_tile, read_tile(b[depth, columns], right, mem), out=product)
                if depth.start > 0:
                    tile += product
            yield rows, columns, tile


def tile_buffer(matrix: Array, columns: int, work: np.dtype, mem: Allocator) -> Array | None:
    """Room for a tile of `matrix`, TILE rows at most, in its own memory order; None where no cast is needed."""
    if matrix.dtype == work:
        return None
    shape = min(matrix.shape[0], sizes.TILE), min(matrix.shape[1], columns)
    if matrix.strides[0] < matrix.strides[1]:  # a transpose: cast along its contiguous axis
        return mem.empty(shape[::-1], work, WORKSPACE).T
    return mem.empty(shape, work, WORKSPACE)


def read_tile(block: Array, buffer: Array | None, mem: Allocator) -> Array:
    if buffer is None:
        return block
    out = buffer[: block.shape[0], : block.shape[1]]
    cast(block, out, mem)
    return out
