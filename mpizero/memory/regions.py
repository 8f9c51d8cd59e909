"""States and kept inputs in a file, as streams of blocks that pass through a few buffers of the host.

[Note: Streams] Whoever works on a state asks for its blocks, one after the other. While a block is worked on, the next
ones are read and the last one is written, by the threads of the two links between host and file. A stream has a lane,
buffers of its own, so that nobody waits for anybody who waits for him.

[Note: Checksums] Of each block the rank remembers a checksum, taken before the block is written, and compares it when
the block has been read. So a bit that flips on a disk or on the way, a page that is missing or in another's place, is
an error, not a wrong number to train on. It is the CRC-32 of the sums of pages, as 64-bit words: a CRC of all bytes
takes five times as long, about as long as a fast disk.
"""

from __future__ import annotations

import mmap
import time
import zlib
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass
from functools import lru_cache
from typing import final

import numpy as np

from mpizero.dtypes import numpy_dtype
from mpizero.errors import StorageError
from mpizero.layout.files import BUFFERS, FILE_BLOCK, KEPT, PAGE, Space, paged
from mpizero.memory.files import StateFile
from mpizero.memory.kinds import WORKSPACE
from mpizero.memory.ledger import Ledger
from mpizero.memory.links import Link, awaited

Array = np.ndarray
Block = tuple[slice, Array]  # which elements, and their values


@final
class Lane:
    """Page-aligned buffers (each uint8) for one stream at a time."""

    def __init__(self, buffers: list[Array]):
        self.buffers, self.taken = buffers, False


def make_lanes(sizes: Mapping[str, int], ledger: Ledger) -> dict[str, Lane]:
    """`BUFFERS` of each size (whole pages), counted in `ledger`, the host's, for as long as a lane lives."""
    total = BUFFERS * sum(sizes.values())
    flat = np.empty(0, np.uint8)
    if total:
        pages = mmap.mmap(-1, total, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        flat = ledger.adopt(np.frombuffer(pages, np.uint8), WORKSPACE)
    found, offset = {}, 0
    for name, size in sizes.items():
        found[name] = Lane([flat[offset + place * size : offset + (place + 1) * size] for place in range(BUFFERS)])
        offset += BUFFERS * size
    return found


@dataclass(frozen=True)
class Storage:
    """A rank's file with what leads to it. down, up: the links from the host, and to it. spaces: what lies where.
    ledger: of the file."""

    file: StateFile
    down: Link
    up: Link
    lanes: Mapping[str, Lane]
    spaces: Mapping[tuple[int, str], Space]
    ledger: Ledger

    def region(self, unit: int, name: str, kind: str, label: str) -> Region:
        """What the unit (`label` in messages) keeps as `name`, or a segment as `KEPT`, counted under `kind` until it
        dies. Its elements are zeros if nothing was written there before."""
        region = Region(self, self.spaces[unit, name], label)
        self.ledger.hold(region, region.nbytes, kind)
        return region


@final
class Region:
    """Elements (size,) of a dtype in a file: what a unit keeps as `name`."""

    def __init__(self, storage: Storage, space: Space, unit: str):
        self.storage, self.space, self.unit = storage, space, unit
        self.size, self.dtype, self.nbytes = space.numel, numpy_dtype(space.dtype), space.nbytes
        self.checksums = [_of_zeros(self._bytes(number)) for number in range(-(-self.size // FILE_BLOCK))]

    def blocks(self, part: slice, *, reads: bool = True, writes: bool = False, lane: str | None = None,
               ranks: bool = False) -> Iterator[Block]:
        """The elements `part`, block by block, each until the next one is asked for; then, if `writes`, what is in it
        is written. Ask until there are no more. StorageError for what cannot be read or written, or is not what was
        written.

        reads: False if all is overwritten. lane: by its name; None: that of this state. ranks: whether the rank itself
        asks, which looks at something else while it waits, and not a thread of a link.
        """
        taken = self.storage.lanes[lane or self.space.name]
        assert not taken.taken, f"two streams of {self.space.name}"
        taken.taken, stream = True, _Stream(self, taken.buffers, part, reads, writes, ranks)
        try:
            yield from stream.run()
            stream.log()
        finally:
            stream.settle()
            taken.taken = False

    # -- one block, in a thread of a link -----------------------------------------------------------------------------

    def read(self, number: int, buffer: Array) -> tuple[float, float]:
        """When it began and ended."""
        begin, nbytes, where = time.perf_counter(), self._bytes(number), self._offset(number)
        self.storage.file.read(where, buffer[: paged(nbytes)].data, self._about())
        if checksum(buffer[: paged(nbytes)]) != self.checksums[number]:
            raise StorageError(f"{self.storage.file.name} is damaged: the checksum of bytes {where:,} to "
                               f"{where + nbytes - 1:,} ({self._about()}) is not that of what was written; go on from "
                               "the last checkpoint, and look at the disk")
        self.storage.up.passed(nbytes, begin)
        return begin, time.perf_counter()

    def write(self, number: int, buffer: Array) -> tuple[float, float]:
        """When it began and ended."""
        begin, nbytes = time.perf_counter(), self._bytes(number)
        self.checksums[number] = checksum(buffer[: paged(nbytes)])
        self.storage.file.write(self._offset(number), buffer[: paged(nbytes)].data, self._about())
        self.storage.down.passed(nbytes, begin)
        return begin, time.perf_counter()

    def span(self, number: int) -> slice:
        """The elements of a block."""
        return slice(number * FILE_BLOCK, min((number + 1) * FILE_BLOCK, self.size))

    def _bytes(self, number: int) -> int:
        span = self.span(number)
        return (span.stop - span.start) * self.dtype.itemsize

    def _offset(self, number: int) -> int:
        return self.space.offset + number * FILE_BLOCK * self.dtype.itemsize

    def _about(self) -> str:
        return f"the input of {self.unit}" if self.space.name == KEPT else f"{self.space.name} of unit {self.unit}"


@final
class _Stream:
    """One pass over blocks. Block i is in buffer i modulo their number."""

    def __init__(self, region: Region, buffers: list[Array], part: slice, reads: bool, writes: bool, ranks: bool):
        self.region, self.buffers, self.part, self.reads, self.writes = region, buffers, part, reads, writes
        self.poll = region.storage.up.poll if ranks else None
        self.numbers = range(part.start // FILE_BLOCK, -(-part.stop // FILE_BLOCK) if part.stop > part.start else 0)
        self.reading: dict[int, Future] = {}
        self.writing: dict[int, Future] = {}
        self.up, self.down = _Tally(ranks), _Tally(ranks)

    def run(self) -> Iterator[Block]:
        """As `Region.blocks`."""
        ahead = len(self.buffers) - 1 - self.writes  # beside the one that is worked on, and the one that is written
        begun = self.numbers.start
        for number in self.numbers:
            while begun < min(number + ahead + 1, self.numbers.stop):
                self._begin(begun)
                begun += 1
            self._end(self.reading.pop(number, None), self.up, number)
            whole = self.region.span(number)
            span = slice(max(whole.start, self.part.start), min(whole.stop, self.part.stop))
            yield span, self._values(number)[span.start - whole.start : span.stop - whole.start]
            if self.writes:
                self.writing[number] = self.region.storage.down.submit(self.region.write, number, self._buffer(number))
        for number in list(self.writing):
            self._end(self.writing.pop(number), self.down, number)

    def _begin(self, number: int) -> None:
        """Read it, once its buffer is free; a block that is overwritten in part is read too."""
        before = number - len(self.buffers)
        self._end(self.writing.pop(before, None), self.down, before)
        span = self.region.span(number)
        if self.reads or span.start < self.part.start or span.stop > self.part.stop:
            self.reading[number] = self.region.storage.up.submit(self.region.read, number, self._buffer(number))

    def _end(self, future: Future | None, tally: _Tally, number: int) -> None:
        if future is not None:
            since = time.perf_counter()
            begin, end = awaited(future, self.poll)  # raises what went wrong
            tally.add(self._values(number).nbytes, begin, end, time.perf_counter() - since)

    def settle(self) -> None:
        """Nobody reads into or writes from a buffer any more, whatever went wrong."""
        wait([*self.reading.values(), *self.writing.values()])

    def log(self) -> None:
        """What has moved stands in the records of the links."""
        for tally, link in ((self.up, self.region.storage.up), (self.down, self.region.storage.down)):
            if tally.nbytes:
                link.note(self.region.space.name, self.region.unit, tally.nbytes, tally.first, tally.last,
                          tally.exposed)

    def _buffer(self, number: int) -> Array:
        return self.buffers[number % len(self.buffers)]

    def _values(self, number: int) -> Array:
        span = self.region.span(number)
        return self._buffer(number)[: (span.stop - span.start) * self.region.dtype.itemsize].view(self.region.dtype)


class _Tally:
    """What has moved one way. exposes: whether a rank waits for it."""

    def __init__(self, exposes: bool):
        self.exposes, self.nbytes, self.first, self.last, self.exposed = exposes, 0, float("inf"), 0.0, 0.0

    def add(self, nbytes: int, begin: float, end: float, waited: float) -> None:
        self.nbytes, self.first, self.last = self.nbytes + nbytes, min(self.first, begin), max(self.last, end)
        self.exposed += waited if self.exposes else 0.0


def checksum(pages: Array) -> int:
    """Of whole pages (uint8); see [Note: Checksums]."""
    return zlib.crc32(np.add.reduce(pages.view(np.uint64).reshape(-1, PAGE // 8), axis=1).data)


@lru_cache
def _of_zeros(nbytes: int) -> int:
    return checksum(np.zeros(paged(nbytes), np.uint8))
