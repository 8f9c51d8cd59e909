"""Numbers of a checkpoint, any range of any state, checked as they are read."""

from __future__ import annotations

import sys
import zlib
from pathlib import Path
from typing import final

import numpy as np

from mpizero.checkpoint.contents import Contents, damaged, read_contents
from mpizero.checkpoint.files import opened, read_into
from mpizero.checkpoint.format import ABOUT, BLOCK, Part
from mpizero.checkpoint.places import within
from mpizero.dtypes import ITEMSIZE, numpy_dtype
from mpizero.errors import CheckpointError
from mpizero.layout import READ_BLOCK, Strided


@final
class Checkpoint:
    """about: checkpoint.json. params: name -> shape. kept: name -> state -> dtype.

    Each rank has its own, and shares no memory.
    """

    def __init__(self, contents: Contents):
        self.contents, self.folder, self.about = contents, contents.folder, contents.about
        self.params: dict[str, tuple[int, ...]] = {param.name: param.shape for param in contents.params}
        self.kept = {param.name: dict(param.states) for param in contents.params}
        self._checked: set[tuple[int, int]] = set()  # (part, block)

    def read(self, state: str, param: str, begin: int = 0, end: int | None = None) -> np.ndarray:
        """Elements begin .. end - 1 (None: all) of a state of a parameter, as it is stored: 1-d.

        CheckpointError for what is not there, and for a block whose checksum is another.
        """
        if state not in self.kept.get(param, {}):
            raise CheckpointError(f"{self.folder / ABOUT} knows no {state} of {param}")
        end = int(np.prod(self.params[param])) if end is None else end
        out = np.empty(end - begin, numpy_dtype(self.kept[param][state]))
        self.fill(state, param, Strided(begin, out.size), out, np.empty(READ_BLOCK, np.uint8))
        return out

    def fill(self, state: str, param: str, where: Strided, out: np.ndarray, scratch: np.ndarray) -> None:
        """Elements `where` into `out` (n,), contiguous, of the stored dtype. scratch: bytes, at least one;
        destroyed."""
        dtype = self.kept[param][state]
        assert out.dtype == numpy_dtype(dtype) and out.size == where.numel and scratch.size, (state, param, out.dtype)
        target, itemsize = out.view(np.uint8).data, ITEMSIZE[dtype]
        for place in within(self.contents.places[state, param], where):
            part = self.contents.parts[place.part]
            path = self.contents.file_of(part)
            with opened(path) as file:
                for stored, wanted, count in place.where.common(where):
                    piece = target[wanted * itemsize : (wanted + count) * itemsize]
                    self._read(file, path, place.part, place.offset + stored * itemsize, piece, scratch.data)
        if sys.byteorder == "big":
            out.byteswap(inplace=True)

    def _read(self, file: int, path: Path, number: int, offset: int, target: memoryview, scratch: memoryview) -> None:
        """Bytes of a part from `offset` on, block by block."""
        part, end = self.contents.parts[number], offset + len(target)
        for block in range(offset // BLOCK, -(-end // BLOCK)):
            low, high = max(offset, block * BLOCK), min(end, (block + 1) * BLOCK)
            piece = target[low - offset : high - offset]
            if (number, block) in self._checked:
                read_into(file, low, piece, path)
                continue
            if _checksum(file, part, block, low, piece, scratch, path) != part.checksums[block]:
                raise damaged(path, block, part.size)
            self._checked.add((number, block))


def _checksum(file: int, part: Part, block: int, low: int, piece: memoryview, scratch: memoryview, path: Path) -> int:
    """Of a whole block, of which the bytes from `low` on go into `piece` as they come by."""
    begin, end = block * BLOCK, min((block + 1) * BLOCK, part.size)
    crc = _pass(file, begin, low, 0, scratch, path)
    read_into(file, low, piece, path)
    return _pass(file, low + len(piece), end, zlib.crc32(piece, crc), scratch, path)


def _pass(file: int, begin: int, end: int, crc: int, scratch: memoryview, path: Path) -> int:
    """The checksum that goes on over bytes begin .. end - 1, of which nothing is kept."""
    for offset in range(begin, end, len(scratch)):
        piece = scratch[: min(len(scratch), end - offset)]
        read_into(file, offset, piece, path)
        crc = zlib.crc32(piece, crc)
    return crc


def open_checkpoint(path: str | Path) -> Checkpoint:
    """The one that `path` means: D/latest, D (the same), or its own folder D/step-00000020. CheckpointError names the
    file and what is wrong with it."""
    return Checkpoint(read_contents(path))
