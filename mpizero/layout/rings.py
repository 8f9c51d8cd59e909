"""How rings cut arrays, and the workspace that they take: closed forms, after which `comm` takes it and plans count it.

A ring takes its workspace when it begins, and holds it to its end: [Note: Storage] in `comm.collective`. The forms hold
for chunks of one size, as units have. Of others they tell what the rank with the longest takes. Pure.
"""

from __future__ import annotations

from itertools import groupby, pairwise
from typing import NamedTuple

from mpizero.dtypes import ITEMSIZE

SEGMENT_BYTES = 2**21  # of a chunk that is added or handed down a chain
GATHER_SEGMENT_BYTES = 2**22  # of a chunk that is only copied
DEPTH = 2  # segments received ahead from another host: one arrives while another is added
# within a host, where the core that adds also copies: more would only take more room in the cache. Room for `DEPTH` is
# taken there too, so that no plan depends on which ranks share a host; pages that nobody touches cost nothing
NEAR_DEPTH = 1

BLOCK = 16384  # elements that are cast or added at once: four scratch blocks of float32 fit a core's own cache
SMALL = 8192  # elements of float16 below which NumPy's one addition is faster than two dozen


class Dtypes(NamedTuple):
    """Of a reduction: what it reads, what it sends, what it sums in."""

    source: str
    wire: str
    sums: str


# -- cuts -------------------------------------------------------------------------------------------------------------


def chunk(numel: int, index: int, size: int) -> slice:
    """The range of chunk `index` when `numel` elements are cut for `size` ranks.

    Each has ceil(numel / size) of them, but the last ones are short or empty.
    """
    width = longest(numel, size)
    return slice(min(index * width, numel), min((index + 1) * width, numel))


def longest(numel: int, size: int) -> int:
    """Elements of the longest chunk."""
    return -(-numel // size)


def segment(nbytes: int, itemsize: int) -> int:
    """Elements of a segment of `nbytes`."""
    return max(1, nbytes // itemsize)


def segments(numel: int, itemsize: int) -> tuple[int, int]:
    """Into how many segments a chunk of `numel` elements is cut to be added, an empty one into one, and the elements of
    the largest."""
    width = segment(SEGMENT_BYTES, itemsize)
    return max(1, -(-numel // width)), min(numel, width)


# -- what additions and casts take ------------------------------------------------------------------------------------


def adder_block(dtype: str, width: int) -> int:
    """Elements of each of the four float32 blocks through which arrays of at most `width` elements are added."""
    return 0 if dtype != "float16" or width < SMALL else min(BLOCK, width)


def adder_bytes(dtype: str, width: int) -> int:
    return 4 * 4 * adder_block(dtype, width)


def rounding_bytes(dtypes: Dtypes, width: int, adds: bool) -> int:
    """Of `comm.addition.Rounding`: two float32 blocks for a cast to float16, one of the wire's dtype between two casts,
    one of a sum's where something is added after a cast, and what the addition takes."""
    steps, width = [dtype for dtype, _ in groupby(dtypes)], min(BLOCK, width)
    casts = 2 * 4 * width * sum(pair == ("float32", "float16") for pair in pairwise(steps))
    middle = ITEMSIZE[dtypes.wire] * width if len(steps) == 3 else 0
    addend = ITEMSIZE[dtypes.sums] * width if adds and len(steps) > 1 else 0
    return casts + middle + addend + (adder_bytes(dtypes.sums, width) if adds else 0)


# -- what rings take --------------------------------------------------------------------------------------------------


def landing(numel: int, size: int, itemsize: int, overwrite: bool) -> tuple[int, int]:
    """How many segments of sums come into workspace at once, and the elements of each. overwrite: those of this rank's
    own chunk come into the result."""
    each, width = segments(longest(numel, size), itemsize)
    through = each * (size - 2 if overwrite else size - 1)
    return (min(DEPTH, through), width) if through else (0, 0)


def in_a_ring(size: int, accumulate: bool) -> int:
    """Chunks of partial sums, where these do not fit into what is read."""
    return 2 if size > 2 or accumulate else 1


def straight(numel: int, size: int, itemsize: int) -> tuple[int, int]:
    """The same as `landing` where each chunk goes straight to its owner."""
    each, width = segments(longest(numel, size), itemsize)
    return min(DEPTH, each * (size - 1)), width


def reduce_scatter_bytes(numel: int, size: int, dtypes: Dtypes, accumulate: bool, in_place: bool = False) -> int:
    """Workspace of `comm.mixed.reduce_scatter` of `numel` elements among `size` ranks. in_place: the sum takes the
    place of this rank's own chunk."""
    source, wire, sums = dtypes
    width = longest(numel, size)
    if source == wire == sums:
        if size == 1:
            return adder_bytes(sums, width) if accumulate else 0
        depth, each = landing(numel, size, ITEMSIZE[sums], overwrite=not (accumulate or in_place))
        return adder_bytes(sums, width) + depth * each * ITEMSIZE[sums]
    if size == 1:
        return rounding_bytes(dtypes, numel, accumulate)
    if wire == sums:
        return (rounding_bytes(dtypes, width, True) + rounding_bytes(Dtypes(wire, wire, wire), width, accumulate)
                + in_a_ring(size, accumulate) * width * ITEMSIZE[wire])
    depth, each = straight(numel, size, ITEMSIZE[wire])
    slots = depth * each * ITEMSIZE[wire] * (1 if source == wire else 2)  # that come in, and that go out cast
    total = each * ITEMSIZE[sums] if accumulate or in_place else 0
    return (slots + total + rounding_bytes(Dtypes(source, wire, wire), each, False)
            + rounding_bytes(dtypes, each, True) + rounding_bytes(Dtypes(wire, wire, sums), each, size > 2)
            + rounding_bytes(Dtypes(sums, sums, sums), each, accumulate))


def all_reduce_bytes(numel: int, size: int, dtypes: Dtypes, accumulate: bool, in_place: bool) -> int:
    """Of `comm.mixed.all_reduce`. in_place: the sum takes the place of what is read."""
    if in_place and dtypes.source == dtypes.wire and size == 1:
        return 0
    return reduce_scatter_bytes(numel, size, dtypes, accumulate, in_place)


def reduce_bytes(numel: int, size: int, dtypes: Dtypes, accumulate: bool, root: bool) -> int:
    """Of `comm.mixed.reduce`. root: on the rank that gets the sum."""
    source, _, sums = dtypes
    width = longest(numel, size)
    if not root:
        in_place = source == sums
        own = 0 if in_place else width * ITEMSIZE[sums]
        return own + reduce_scatter_bytes(numel, size, dtypes, False, in_place)
    collected = 0
    if accumulate and size > 1:
        _, each = segments(width, ITEMSIZE[sums])
        collected = DEPTH * each * ITEMSIZE[sums] + adder_bytes(sums, each)
    return reduce_scatter_bytes(numel, size, dtypes, accumulate) + collected
