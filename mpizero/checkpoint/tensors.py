"""safetensors files: a header of names, dtypes and places, then little-endian numbers.

The library proves that a file is one, and that what lies where in it fits together; it also has the last word on what
we write. The bytes go from and to the file directly, since the library holds whole tensors, and all of them to write.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, final

import numpy as np

from mpizero.checkpoint.files import created, opened, read_into, read_text, sync_folder, unwritable, write_all
from mpizero.checkpoint.models import Shape, heads_beside, plain_names
from mpizero.dtypes import ITEMSIZE, numpy_dtype
from mpizero.errors import CheckpointError

DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16", "F64": "float64"}
CODES = {name: code for code, name in DTYPES.items()}
PROBES, PROBE = 64, 4096  # places, and bytes at each, that tell two files apart


@final
class Tensors:
    """path. params: name -> shape, by our names. dtypes: name -> dtype. metadata: texts. heads: of a GPT-2; None if
    nothing says. digest: of the header and of numbers from everywhere, which two trainings do not share."""

    dtype = "float32"  # to compute in

    def __init__(self, path: Path):
        check(path)
        self.path = path
        with opened(path, links=True) as file:
            length = int.from_bytes(os.pread(file, 8, 0), "little")
            text = os.pread(file, length, 8)
            header: dict[str, Any] = json.loads(text)
            size = os.fstat(file).st_size
            probes = [os.pread(file, PROBE, 8 + length + (size - 8 - length) * i // PROBES) for i in range(PROBES)]
        self.digest = hashlib.sha256(b"".join([text, *probes])).hexdigest()
        self.metadata: dict[str, str] = header.pop("__metadata__", None) or {}
        names = plain_names(header)
        self.params: dict[str, Shape] = {name: tuple(header[of]["shape"]) for name, of in names.items()}
        self.dtypes = {name: _dtype(header[of]["dtype"], of, path) for name, of in names.items()}
        self._begin = {name: 8 + length + header[of]["data_offsets"][0] for name, of in names.items()}
        self.heads = _heads(self.metadata, path)

    def fill(self, name: str, begin: int, out: np.ndarray, scratch: np.ndarray | None = None) -> None:
        """Elements of a parameter from `begin` on into `out` (n,), contiguous, of the stored dtype."""
        offset = self._begin[name] + begin * ITEMSIZE[self.dtypes[name]]
        with opened(self.path, links=True) as file:
            read_into(file, offset, out.view(np.uint8).data, self.path)
        if sys.byteorder == "big":
            out.byteswap(inplace=True)


def check(path: Path) -> None:
    """CheckpointError unless the file is what the library takes for one."""
    library = _library()
    with opened(path, links=True):
        try:
            library.safe_open(path, framework="np").__exit__(None, None, None)
        except (library.SafetensorError, OSError, ValueError) as error:
            raise CheckpointError(f"{path} is no safetensors file, or it is damaged or truncated: {error}") from None


def _library() -> Any:
    try:
        import safetensors
    except ImportError:
        raise CheckpointError("files of weights need the package safetensors: pip install safetensors") from None
    return safetensors


def _dtype(code: str, name: str, path: Path) -> str:
    if code not in DTYPES:
        raise CheckpointError(f"{path} holds {name[:100]} as {code}, of which no parameter can be made: use a file of "
                              f"{', '.join(CODES)}")
    return DTYPES[code]


def _heads(metadata: Mapping[str, str], path: Path) -> int | None:
    """From what we write ourselves, or from the config.json that Hugging Face puts beside its files."""
    told, beside = metadata.get("heads", ""), path.parent / "config.json"
    if told.isascii() and told.isdigit() and int(told[:9]):
        return int(told[:9])
    config = None
    if beside.is_file():
        with suppress(ValueError, RecursionError, CheckpointError):
            config = json.loads(read_text(beside.resolve()))
    return heads_beside(config, beside)


def check_new(path: Path, force: bool) -> None:
    """CheckpointError if the file may not be written: something is there that may not, or shall not, be replaced."""
    if os.path.lexists(path) and (path.is_symlink() or not path.is_file()):
        raise CheckpointError(f"{path} is no regular file, so it is not replaced: name another one")
    if path.exists() and not force:
        raise CheckpointError(f"{path} exists: give `force` to replace it, or name another one")


def write_tensors(path: Path, params: Sequence[tuple[str, Shape]], dtype: str, metadata: Mapping[str, str],
                  values: Iterable[np.ndarray], *, force: bool = False) -> int:
    """A file of these parameters, all of `dtype`; its size. It appears as a whole or not at all.

    values: their elements, one parameter after the other, in pieces of any size.
    """
    check_new(path, force)
    header = _header(params, dtype, metadata)
    part = path.with_name(f".mpizero-{secrets.token_hex(6)}.part")
    try:
        with created(part) as file:
            write_all(file, header)
            for piece in values:
                little = piece.astype(piece.dtype.newbyteorder("<"), copy=False)  # no copy on little-endian machines
                write_all(file, little.view(np.uint8).data)
            size = os.fstat(file).st_size
        check(part)
        check_new(path, force)
        os.rename(part, path)
        sync_folder(path.parent)
    except OSError as error:
        raise unwritable(path, error) from None
    finally:
        with suppress(OSError):
            part.unlink()  # it is there no more if all went well
    return size


def _header(params: Sequence[tuple[str, Shape]], dtype: str, metadata: Mapping[str, str]) -> bytes:
    """Its length in 8 bytes, then JSON, with spaces at its end so that numbers begin at a multiple of 8 bytes."""
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    offset = 0
    for name, shape in params:
        end = offset + int(np.prod(shape, dtype=np.int64)) * numpy_dtype(dtype).itemsize
        header[name] = {"dtype": CODES[dtype], "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text
