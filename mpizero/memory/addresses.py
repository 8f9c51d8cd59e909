"""Where in a device's memory buffers lie. Pure: no array.

[Note: Fragments] What is gone leaves a hole between buffers that stay, and what is larger than every hole finds no
place, though enough bytes are free (ZeRO, arXiv:1910.02054, sec. 3.2). Where what lasts lies side by side, at another
end than what comes and goes, the holes become one again (M_D, sec. 6.3).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection
from typing import final

FIRST_FIT, ARENA = "first-fit", "arena"
ALLOCATORS = (FIRST_FIT, ARENA)
ALIGNMENT = 64  # bytes, a line of the cache: addresses are multiples of it


@final
class FirstFit:
    """Puts each block into the first hole that is large enough: seen from address 0, or from the other end. Holes that
    touch become one. below, above: the farthest that blocks have come from either end."""

    def __init__(self, capacity: int):
        self.capacity, self.below, self.above = capacity, 0, 0
        self.blocks: list[tuple[int, int]] = []  # (offset, size), in order

    def allocate(self, size: int, from_the_end: bool = False) -> int | None:
        """The offset of a new block of a size above 0; None if no hole is large enough."""
        if from_the_end:
            found = next((start + length - size for start, length in reversed(self.holes()) if length >= size), None)
        else:
            found = next((start for start, length in self.holes() if length >= size), None)
        if found is None:
            return None
        insort(self.blocks, (found, size))
        if from_the_end:
            self.above = max(self.above, self.capacity - found)
        else:
            self.below = max(self.below, found + size)
        return found

    def free(self, offset: int) -> None:
        place = bisect_left(self.blocks, (offset, 0))
        assert self.blocks[place : place + 1] and self.blocks[place][0] == offset, f"no block begins at {offset}"
        del self.blocks[place]

    def holes(self) -> list[tuple[int, int]]:
        """(offset, length), in order."""
        found, end = [], 0
        for offset, size in self.blocks:
            if offset > end:
                found.append((end, offset - end))
            end = offset + size
        return [*found, (end, self.capacity - end)] if end < self.capacity else found

    @property
    def free_size(self) -> int:
        return self.capacity - sum(size for _, size in self.blocks)

    @property
    def largest_hole(self) -> int:
        return max((length for _, length in self.holes()), default=0)


@final
class Addresses:
    """Those of a device of `capacity` bytes. Buffers of the kinds `lasting` lie at the device's end, the others at its
    beginning; each takes a multiple of `ALIGNMENT`."""

    def __init__(self, capacity: int, lasting: Collection[str] = ()):
        self.blocks, self.lasting = FirstFit(capacity // ALIGNMENT * ALIGNMENT), frozenset(lasting)

    def take(self, nbytes: int, kind: str) -> int | None:
        """The address of a new buffer; None where no hole is large enough. Nothing takes no place, and lies at 0."""
        return self.blocks.allocate(aligned(nbytes), kind in self.lasting) if nbytes else 0

    def give(self, address: int, nbytes: int) -> None:
        """What was taken, back."""
        if nbytes:
            self.blocks.free(address)

    @property
    def extent(self) -> int:
        """Bytes of a device on which every buffer so far would have found its place too: with nothing at its end, of
        the smallest such."""
        return self.blocks.below + self.blocks.above


def aligned(nbytes: int) -> int:
    """What a buffer takes."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT
