"""What a checkpoint's files hold, as text and as values that were checked. Pure. See [Note: files]."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from sys import float_info
from typing import Any

from mpizero.dtypes import ITEMSIZE
from mpizero.errors import CheckpointError
from mpizero.layout.strided import Strided

CHECKPOINT, PART = "mpizero checkpoint", "part of an mpizero checkpoint"
VERSION = 2  # 1: a range of elements an entry, never columns
BLOCK = 2**20  # bytes under one checksum
STEP_NAME = re.compile(r"step-(\d{8,18})", re.ASCII)
PART_NAME = re.compile(r"part-\d{4,9}", re.ASCII)
ABOUT, LATEST = "checkpoint.json", "latest"
SAMPLES = ("batch_size", "accumulation", "global_batch")  # settings that a run which goes on computes with


def step_name(step: int) -> str:
    """Of a checkpoint's folder."""
    return f"step-{step:08d}"


def part_name(rank: int) -> str:
    """Of a rank's files, without what tells the two apart."""
    return f"part-{rank:04d}"


@dataclass(frozen=True)
class Entry:
    """Elements of a state of a parameter, which lie in their order `offset` bytes from the begin of the part."""

    state: str
    param: str
    where: Strided
    dtype: str
    offset: int

    @property
    def nbytes(self) -> int:
        return self.where.numel * ITEMSIZE[self.dtype]


@dataclass(frozen=True)
class Part:
    """What one rank wrote. checksums: CRC-32 of each `BLOCK` bytes."""

    name: str
    size: int
    entries: tuple[Entry, ...]
    checksums: tuple[int, ...]


@dataclass(frozen=True)
class Param:
    """states: name -> dtype; a frozen parameter has no moments."""

    name: str
    shape: tuple[int, ...]
    states: Mapping[str, str]

    @property
    def numel(self) -> int:
        return math.prod(self.shape)


# -- text -------------------------------------------------------------------------------------------------------------


def encode(what: str, data: Mapping[str, Any]) -> bytes:
    """`data` as JSON whose first line says what it is and holds a checksum of the others."""
    rest = (json.dumps(data, indent=1, allow_nan=False)[2:] + "\n").encode()
    return _first_line(what, rest) + b"\n" + rest


def decode(what: str, text: bytes, path: Path) -> dict[str, Any]:
    """The data in a text of `encode`. CheckpointError for anything else, a flipped bit included."""
    first, _, rest = text.partition(b"\n")
    match = re.match(rb'\{"format": "%b", "version": (\d{1,9}), ' % what.encode(), first)
    if match is None:
        raise CheckpointError(f"{path} is no {what}, or it is damaged: its first line is another")
    if int(match[1]) > VERSION:
        raise CheckpointError(f"{path} has version {int(match[1])} of the format, and this mpizero knows {VERSION}: a "
                              "newer one wrote it, or it is damaged")
    if not int(match[1]) or first != _first_line(what, rest, int(match[1])):
        raise CheckpointError(f"{path} is damaged: its checksum is another")
    try:
        return json.loads(b"{" + rest)
    except (ValueError, RecursionError):
        raise CheckpointError(f"{path} is no {what}: it is not JSON") from None


def _first_line(what: str, rest: bytes, version: int = VERSION) -> bytes:
    digest = hashlib.sha256(rest).hexdigest()
    return f'{{"format": "{what}", "version": {version}, "sha256": "{digest}",'.encode()


# -- values -----------------------------------------------------------------------------------------------------------


def part_data(part: Part) -> dict[str, Any]:
    """As `parse_part` reads it."""
    return {"bytes": part.size, "entries": [_entry_data(entry) for entry in part.entries],
            "checksums": list(part.checksums)}


def _entry_data(entry: Entry) -> dict[str, Any]:
    """Of several runs also the length of one, and from one to the next."""
    where = entry.where
    runs = {"run": where.length, "stride": where.stride} if where.count > 1 else {}
    return {"state": entry.state, "param": entry.param, "begin": where.begin, "end": where.end, **runs,
            "dtype": entry.dtype, "offset": entry.offset}


def parse_part(name: str, data: Mapping[str, Any], path: Path) -> Part:
    """CheckpointError where a value is none that we write: files may be anybody's."""
    size = _number(data, "bytes", path)
    entries = tuple(_entry(row, size, path) for row in _list(data, "entries", path))
    checksums = _list(data, "checksums", path)
    if len(checksums) != -(-size // BLOCK) or not all(type(value) is int and 0 <= value < 2**32 for value in checksums):
        raise CheckpointError(f"{path} needs one checksum for each MiB of its {size:,} bytes")
    return Part(name, size, entries, tuple(checksums))


def _entry(row: Any, size: int, path: Path) -> Entry:
    if not isinstance(row, dict) or not all(isinstance(row.get(key), str) for key in ("state", "param", "dtype")):
        raise CheckpointError(f"{path} holds an entry that is none: {str(row)[:100]}")
    if row["dtype"] not in ITEMSIZE:
        raise CheckpointError(f"{path} holds numbers of an unknown dtype, {row['dtype'][:100]!r}")
    entry = Entry(row["state"], row["param"], _where(row, path), row["dtype"], _number(row, "offset", path))
    if entry.offset + entry.nbytes > size:
        raise CheckpointError(f"{path}: {entry.state} of {entry.param} does not lie in the part's {size:,} bytes")
    return entry


def _where(row: Mapping[str, Any], path: Path) -> Strided:
    begin, end = (_number(row, key, path) for key in ("begin", "end"))
    if not {"run", "stride"} & set(row):
        where = Strided(begin, end - begin)
    else:
        run, stride = (_number(row, key, path) for key in ("run", "stride"))
        where = Strided(begin, run, (end - begin - run) // max(stride, 1) + 1, stride)
        if where.count < 2 or begin % max(stride, 1) + run > stride:
            raise CheckpointError(f"{path} holds columns that are none: {str(row)[:200]}")
    if where.length < 1 or where.end != end:
        raise CheckpointError(f"{path} holds elements that cannot be: {str(row)[:200]}")
    return where


def params_data(params: Sequence[Param]) -> list[dict[str, Any]]:
    return [{"name": param.name, "shape": list(param.shape), "states": dict(param.states)} for param in params]


def parse_params(data: Mapping[str, Any], path: Path) -> tuple[Param, ...]:
    """CheckpointError where a value is none that we write."""
    found = []
    for row in _list(data, "params", path):
        if (not isinstance(row, dict) or not isinstance(row.get("name"), str) or not isinstance(row.get("states"), dict)
                or not all(value in ITEMSIZE for value in map(str, row["states"].values()))):
            raise CheckpointError(f"{path} holds a parameter that is none: {str(row)[:100]}")
        shape = _list(row, "shape", path)
        if not all(type(size) is int and 0 <= size < 2**50 for size in shape) or len(shape) > 8:
            raise CheckpointError(f"{path} gives parameter {row['name'][:100]} an impossible shape")
        found.append(Param(row["name"], tuple(shape), row["states"]))
    if len({param.name for param in found}) != len(found):
        raise CheckpointError(f"{path} names a parameter twice")
    return tuple(found)


def parse_parts(data: Mapping[str, Any], path: Path) -> list[tuple[str, str]]:
    """(name, SHA-256 of its table) of each part. CheckpointError for a name that could lead elsewhere."""
    found = []
    for row in _list(data, "parts", path):
        name, digest = (row.get("name"), row.get("table_sha256")) if isinstance(row, dict) else (None, None)
        if not isinstance(name, str) or not PART_NAME.fullmatch(name):
            raise CheckpointError(f"{path} names a part {str(name)[:100]!r}, which is refused: parts are part-0000 and "
                                  "so on, beside it")
        if not isinstance(digest, str):
            raise CheckpointError(f"{path} holds no checksum of the table of {name}")
        found.append((name, digest))
    if len(dict(found)) != len(found):
        raise CheckpointError(f"{path} names a part twice")
    return found


def check_about(data: Mapping[str, Any], path: Path) -> None:
    """CheckpointError unless the rest of checkpoint.json is what going on needs."""
    for key in ("step", "updates", "position", "world_size"):
        _number(data, key, path)
    for key in ("scaler", "settings", "data"):
        if not isinstance(data.get(key), dict):
            raise CheckpointError(f"{path} holds no {key}")
    for key in SAMPLES:
        if data["settings"].get(key) is not None:
            _number(data["settings"], key, path)
    if not all(type(value) in (int, float) and abs(value) <= float_info.max for value in data["scaler"].values()):
        raise CheckpointError(f"{path} holds a scaler that is none")
    if not all(isinstance(run, str) for run in _list(data, "runs", path)) or not isinstance(data.get("saved"), str):
        raise CheckpointError(f"{path} does not say which run wrote it, and when")


def _number(data: Mapping[str, Any], key: str, path: Path) -> int:
    value = data.get(key)
    if type(value) is not int or not 0 <= value < 2**60:
        raise CheckpointError(f"{path}: {key} is {str(value)[:40]}, which is no number from 0 on")
    return value


def _list(data: Mapping[str, Any], key: str, path: Path) -> list[Any]:
    value = data.get(key)
    if not isinstance(value, list):
        raise CheckpointError(f"{path} holds no list of {key}")
    return value
