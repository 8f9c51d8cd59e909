"""Where operators cut their arrays into blocks: what they hold at a time follows from it. Pure.

`nn` computes with these sizes, `layout.tapes` says with them what each operator takes.
"""

from __future__ import annotations

# elements of a block: 256 KiB of float32, so that the few arrays of an operator about fit a 1 MiB L2 cache
BLOCK = 65536

CAST_BLOCK = 32768  # elements of a cast: two blocks of float32 lie in L2 beside the operator's own
SMALL_WIDEN, SMALL_ROUND = 4096, 2048  # elements below which NumPy's one call is faster than our dozen

# Of a 16-bit product: rows and depth, and columns, of what is cast to float32 at once: 2 * TILE operations per cast
# element hide the cast. Wide, since a tile of the left operand is cast again for other columns: with 512 columns
# products of bfloat16 took 14 % more time than those of float32, with 2048 take 6 % (d 512). 13 MiB of workspace at
# most.
TILE, WIDE = 512, 2048

ROWS = 512  # rows of a GPT block's forward that stay in cache from one operator to the next

SCORES = 65536  # elements of attention's scores that exist at a time, 256 KiB of float32
QUERIES = 64  # rows of queries, or of keys, that are handled together; the causal mask skips the other blocks


def row_step(width: int) -> int:
    """How many rows of `width` elements make a block."""
    return max(1, BLOCK // max(width, 1))


def attention_group(batch: int, heads: int, tokens: int) -> int:
    """How many samples attention handles together."""
    return max(1, min(batch, SCORES // (heads * tokens * min(tokens, QUERIES))))
