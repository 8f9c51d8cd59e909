"""A checkpoint's JSON files, read and checked: all that is known of it without its numbers. Loads no NumPy."""

from __future__ import annotations

import hashlib
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mpizero.checkpoint.files import find, opened, read_into, read_text
from mpizero.checkpoint.format import (
    ABOUT,
    BLOCK,
    CHECKPOINT,
    PART,
    Param,
    Part,
    check_about,
    decode,
    parse_params,
    parse_part,
    parse_parts,
)
from mpizero.checkpoint.places import Index, index
from mpizero.errors import CheckpointError


@dataclass(frozen=True)
class Contents:
    """about: checkpoint.json. places: where each state of each parameter lies. digest: of everything, numbers
    included: of the SHA-256 of each table, in which their checksums stand."""

    folder: Path
    about: dict[str, Any]
    params: tuple[Param, ...]
    parts: tuple[Part, ...]
    places: Index
    digest: str

    def file_of(self, part: Part) -> Path:
        """Its numbers."""
        return self.folder / f"{part.name}.bin"


def read_about(folder: Path) -> dict[str, Any]:
    """checkpoint.json of a folder. CheckpointError if it is not what we write."""
    path = folder / ABOUT
    about = decode(CHECKPOINT, read_text(path), path)
    check_about(about, path)
    return about


def read_contents(path: str | Path) -> Contents:
    """All JSON files, and the sizes of the others. CheckpointError names the file that is missing, foreign, newer,
    damaged or truncated."""
    folder = find(path)
    about = read_about(folder)
    params, parts = parse_params(about, folder / ABOUT), []
    tables = parse_parts(about, folder / ABOUT)
    for name, digest in tables:
        table = folder / f"{name}.json"
        text = read_text(table)
        if hashlib.sha256(text).hexdigest() != digest:
            raise CheckpointError(f"{table} is damaged, or of another checkpoint: its checksum is not that in {ABOUT}")
        part = parse_part(name, decode(PART, text, table), table)
        check_size(folder / f"{name}.bin", part)
        parts.append(part)
    return Contents(folder, about, params, tuple(parts), index(params, parts, folder / ABOUT),
                    hashlib.sha256("".join(digest for _, digest in tables).encode()).hexdigest())


def check_size(path: Path, part: Part) -> None:
    """CheckpointError unless the file has the size that its table says."""
    with opened(path) as file:
        size = os.fstat(file).st_size
    if size != part.size:
        what = "truncated" if size < part.size else "too long"
        raise CheckpointError(f"{path} is {what}: it has {size:,} bytes of {part.size:,}")


def check_numbers(path: Path, part: Part) -> None:
    """Read everything. CheckpointError where a checksum is another."""
    with opened(path) as file:
        for number, (data, expected) in enumerate(zip(_blocks(file, part.size, path), part.checksums, strict=True)):
            if zlib.crc32(data) != expected:
                raise damaged(path, number, part.size)


def _blocks(file: int, size: int, path: Path) -> Iterator[bytearray]:
    for offset in range(0, size, BLOCK):
        block = bytearray(min(BLOCK, size - offset))
        read_into(file, offset, memoryview(block), path)
        yield block


def damaged(path: Path, block: int, size: int) -> CheckpointError:
    """The sentence for a block whose checksum is another."""
    return CheckpointError(f"{path} is damaged: the checksum of its bytes {block * BLOCK:,} to "
                           f"{min((block + 1) * BLOCK, size) - 1:,} is another")
