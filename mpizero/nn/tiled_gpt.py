"""GPT-2's block, a tile of one weight at a time. Legend as in `nn.gpt`; K rows of a tile.

It computes what `gpt.BlockSegment` does and saves the same, but each product goes through all rows of x before the next
one begins, since its tiles come one after the other, and are gone then.
"""

from __future__ import annotations

import math
from typing import final

from mpizero.memory.kinds import ACTIVATION
from mpizero.memory.ledger import Allocator
from mpizero.nn import functional as fn
from mpizero.nn.ops.blocks import Array, Context
from mpizero.nn.ops.tiled import columns, linear_tile, linear_tile_backward, tiles_of
from mpizero.nn.parts import Hand, InParts, Parts


@final
class TiledBlock(InParts):
    """x + attention(ln_1(x)), then + mlp(ln_2(.)), in a part for each tile and one for the attention."""

    def __init__(self, name: str, width: int, heads: int, tiles: int):
        self.name, self.heads = name, heads
        self.c_attn, self.c_proj, self.c_fc, self.mlp_c_proj = (
            tiles_of(f"{name}.{linear}", rows, tiles) for linear, rows in
            (("attn.c_attn", width), ("attn.c_proj", width), ("mlp.c_fc", width), ("mlp.c_proj", 4 * width)))

    def _norm(self, hand: Hand, norm: str) -> tuple[Array, Array]:
        """Its weight and bias."""
        return hand.params[f"{self.name}.{norm}.weight"], hand.params[f"{self.name}.{norm}.bias"]

    def forward(self, hand: Hand, x: Array, mem: Allocator) -> Parts[tuple[Array, Context]]:
        shape, dtype = x.shape, x.dtype
        n, c = math.prod(shape[:2]), shape[2]
        x = x.reshape(n, c)
        stats_1 = fn.new_stats(n, dtype, mem)  # (2,n)
        h = fn.layer_norm(x, *self._norm(hand, "ln_1"), stats_1, mem)  # (n,C)
        qkv = mem.empty((n, 3 * c), dtype, ACTIVATION)
        for tile in self.c_attn:
            yield
            linear_tile(h[:, tile.rows], tile, hand.params, mem, qkv)
        del h
        yield
        a, lse = fn.attention(qkv.reshape(*shape[:2], 3 * c), self.heads, mem)  # (B,T,C), (B,H,T)
        a, x_2 = a.reshape(n, c), mem.empty((n, c), dtype, ACTIVATION)
        for tile in self.c_proj:
            yield
            linear_tile(a[:, tile.rows], tile, hand.params, mem, x_2, residual=x)
        stats_2 = fn.new_stats(n, dtype, mem)  # (2,n)
        h = fn.layer_norm(x_2, *self._norm(hand, "ln_2"), stats_2, mem)  # (n,C)
        u = mem.empty((n, 4 * c), dtype, ACTIVATION)
        for tile in self.c_fc:
            yield
            linear_tile(h[:, tile.rows], tile, hand.params, mem, u)
        del h
        y = mem.empty((n, c), dtype, ACTIVATION)
        for tile in self.mlp_c_proj:
            yield
            g = fn.gelu(columns(u, tile.rows, mem), mem)  # (n,K)
            linear_tile(g, tile, hand.params, mem, y, residual=x_2)
            del g
        return y.reshape(shape), (x, stats_1, qkv, a, lse, x_2, stats_2, u)

    def backward(self, hand: Hand, context: Context, dy: Array, mem: Allocator) -> Parts[Array | None]:
        x, stats_1, qkv, a, lse, x_2, stats_2, du = context  # u becomes du, tile by tile
        del context
        shape, dy = dy.shape, dy.reshape(x.shape)  # (B,T,C), (n,C)
        for tile in reversed(self.mlp_c_proj):
            yield
            u = columns(du, tile.rows, mem)  # (n,K)
            dg = mem.empty(u.shape, u.dtype, ACTIVATION)
            fn.matmul(dy, hand.params[tile.weight].T, dg, mem)  # y = linear(gelu(u), c_proj) + x_2
            dg, u = fn.gelu_backward(u, dg, mem)  # in place: du of the tile, gelu(u)
            du[:, tile.rows] = dg
            linear_tile_backward(u, dy, tile, hand.params, hand.grads, mem, None)
            del u, dg
        # u = linear(layer_norm(x_2), c_fc)
        dx_2 = yield from self._norm_backward(hand, "ln_2", self.c_fc, x_2, stats_2, du, dy, mem)
        del x_2, stats_2, du, dy
        da = mem.empty(a.shape, a.dtype, ACTIVATION)
        for tile in reversed(self.c_proj):
            yield
            linear_tile_backward(a[:, tile.rows], dx_2, tile, hand.params, hand.grads, mem, da[:, tile.rows])
        yield
        dqkv = fn.attention_backward(qkv.reshape(*shape[:2], qkv.shape[1]), a.reshape(shape), lse, da.reshape(shape),
                                     self.heads, mem)
        dqkv = dqkv.reshape(qkv.shape)  # a, lse = attention(qkv)
        del qkv, a, lse, da
        # qkv = linear(layer_norm(x), c_attn)
        dx = yield from self._norm_backward(hand, "ln_1", self.c_attn, x, stats_1, dqkv, dx_2, mem)
        return dx.reshape(shape)

    def _norm_backward(self, hand: Hand, norm: str, after: list, x: Array, stats: Array, dy: Array,
                       residual: Array, mem: Allocator) -> Parts[Array]:
        """Inverts y = linear(layer_norm(x), after). x, residual (n,C), dy (n,M) -> dx + residual (n,C)."""
        h = fn.layer_norm_again(x, stats, *self._norm(hand, norm), mem)  # (n,C)
        dh = mem.empty(h.shape, h.dtype, ACTIVATION)
        for tile in reversed(after):
            yield
            linear_tile_backward(h[:, tile.rows], dy, tile, hand.params, hand.grads, mem, dh[:, tile.rows])
        del h
        names = f"{self.name}.{norm}.weight", f"{self.name}.{norm}.bias"
        return fn.layer_norm_backward(x, stats, dh, hand.params[names[0]], names, hand.grads, mem, residual=residual)
