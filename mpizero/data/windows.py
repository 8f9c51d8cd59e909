"""Runs of bytes in files, and the windows inside them."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from mpizero.data.chunks import COARSE, KEY, chunks
from mpizero.data.files import File

CHUNK = 4096  # bytes of a chunk, about, where neither the text nor the context asks for another size


class Runs(NamedTuple):
    """Bytes start .. stop - 1 of the file of that number; ordered. Each int64 (n,)."""

    file: np.ndarray
    start: np.ndarray
    stop: np.ndarray

    @property
    def size(self) -> np.ndarray:
        return self.stop - self.start

    def only(self, chosen: np.ndarray) -> Runs:
        """chosen: bool (n,)."""
        return Runs(self.file[chosen], self.start[chosen], self.stop[chosen])

    def merged(self) -> Runs:
        """Runs of one file that touch become one."""
        if not self.file.size:
            return self
        apart = (self.file[1:] != self.file[:-1]) | (self.start[1:] != self.stop[:-1])
        return Runs(self.file[np.r_[True, apart]], self.start[np.r_[True, apart]], self.stop[np.r_[apart, True]])


class Windows:
    """All windows of context + 1 bytes inside runs that begin at a multiple of `stride` from the run's beginning,
    numbered through."""

    def __init__(self, runs: Runs, context: int, stride: int = 1):
        self.runs, self._stride = runs, stride
        last = runs.size - context - 1  # where a run's last window can begin
        counts = np.where(last < 0, 0, last // stride + 1)
        self.shifts = np.where(last < 0, 1, last % stride + 1)  # by how many bytes all windows of a run can be moved
        self._after = np.cumsum(counts)  # number of windows up to and including each run
        self._before = self._after - counts
        self.count = int(counts.sum())

    def places(self, window: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Window numbers int64 (n,) -> their runs, and where in the file they begin."""
        run = np.searchsorted(self._after, window, side="right")
        return run, self.runs.start[run] + (window - self._before[run]) * self._stride


def cut(files: Sequence[File], context: int) -> tuple[Runs, np.ndarray, int]:
    """All bytes as chunks, their keys uint32 (n,), and a hash of everything, below 2^53. Reads each file once.

    A chunk has about 4 KiB: more where windows are long, less where the text is short. All but the first and last of a
    file hold a window.
    """
    size, window = sum(file.size for file in files), context + 1
    mean, quiet = min(max(CHUNK, 8 * window), max(COARSE, 2 * window, size // 64)), max(KEY, window)
    crc, stops, keys = _Checksum(), [np.empty(0, np.int64)], [np.empty(0, np.uint32)]
    for file in files:
        crc.add(b"%d " % file.size)
        stop, key = chunks(crc.through(file.blocks()), mean, quiet)
        stops.append(stop)
        keys.append(key)
    number = np.repeat(np.arange(len(files)), [stop.size for stop in stops[1:]])
    stop = np.concatenate(stops)
    start = np.where(np.diff(number, prepend=-1) > 0, 0, np.r_[0, stop[:-1]]) if stop.size else stop
    return Runs(number, start, stop), np.concatenate(keys), crc.value << 21 | size % (1 << 21)


class _Checksum:
    """CRC-32 of bytes that pass by."""

    value = 0

    def add(self, data: bytes) -> None:
        self.value = zlib.crc32(data, self.value)

    def through(self, blocks: Iterator[bytes]) -> Iterator[bytes]:
        for block in blocks:
            self.add(block)
            yield block
