"""The arrays x and y of a .npz file, mapped where they can be. Never unpickles: a data file must not run code."""

from __future__ import annotations

import math
import zipfile
from pathlib import Path

import numpy as np
from numpy.lib import format as npy

from mpizero.data.files import BLOCK
from mpizero.errors import DataError

CURE = "save one with numpy.savez(path, x=features, y=labels)"
_HEADER = 30  # bytes in front of a zip member's name; the last four say how long the name and an extra field are
_READERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


def read_npz(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """x and y: a memmap each where the file holds it as it is, as numpy.savez writes it; in memory where it is
    compressed. Checksums of both were seen to hold. DataError for what is no such file."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = [name.removesuffix(".npy") for name in archive.namelist()]
            missing = [name for name in ("x", "y") if name not in names]
            if missing:
                raise DataError(f"{path} lacks {' and '.join(missing)} (it holds {', '.join(names) or 'nothing'}): "
                                f"{CURE}")
            return _member(archive, path, "x.npy"), _member(archive, path, "y.npy")
    except DataError:
        raise
    except Exception as error:  # whatever a damaged file makes NumPy and zipfile stumble over
        raise DataError(f"{path} cannot be read as a .npz file of plain numbers "
                        f"({' '.join(str(error).split())[:200]}): {CURE}") from None


def mapped_anew(array: np.ndarray) -> np.ndarray:
    """The same memmap, of which nothing was read yet: the pages that were read are not this process's any more."""
    if not isinstance(array, np.memmap):
        return array
    return np.memmap(str(array.filename), array.dtype, "r", array.offset, array.shape,
                     "C" if array.flags.c_contiguous else "F")


def _member(archive: zipfile.ZipFile, path: Path, name: str) -> np.ndarray:
    info = archive.getinfo(name)
    with archive.open(info) as member:
        version = npy.read_magic(member)
        if info.compress_type == zipfile.ZIP_STORED and version in _READERS:
            shape, fortran, dtype = _READERS[version](member)
            begin, nbytes = member.tell(), math.prod(shape) * dtype.itemsize
            if nbytes and not dtype.hasobject:
                if begin + nbytes != info.file_size:
                    raise ValueError(f"{name} should hold {nbytes:,} bytes and holds {info.file_size - begin:,}")
                while member.read(BLOCK):  # at its end the checksum is compared
                    pass
                offset = _offset(path, info) + begin
                return np.memmap(path, dtype, "r", offset, shape, "F" if fortran else "C")
    with archive.open(info) as member:
        return npy.read_array(member, allow_pickle=False)


def _offset(path: Path, info: zipfile.ZipInfo) -> int:
    """Where in the file the member begins."""
    with open(path, "rb") as file:
        file.seek(info.header_offset + _HEADER - 4)
        name, extra = (int.from_bytes(file.read(2), "little") for _ in range(2))
    return info.header_offset + _HEADER + name + extra
