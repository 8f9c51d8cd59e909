"""Features and labels from a .npz file."""

from __future__ import annotations

import stat
import zlib
from pathlib import Path

import numpy as np

from mpizero.data.counter import hash64, permuted
from mpizero.data.dataset import Batch, Dataset
from mpizero.data.files import BLOCK, file, status
from mpizero.data.npz import CURE, mapped_anew, read_npz
from mpizero.data.split import hold_out
from mpizero.errors import DataError

_SHUFFLE, _CONTENT = 5, 8  # streams
SHARE = 1 / 10  # of the rows is held out


class ArrayData(Dataset):
    """x float32 (n, features) and y int64 (n,) of a .npz file.

    A row is held out or not by a hash of its numbers and its label, until a tenth is. So the order of the rows does not
    matter, sorted ones are as good as any, and equal rows stand on one side. Training goes through the other rows epoch
    by epoch, each epoch in an order by (seed, epoch): sample i is of epoch i // epoch_size.
    inputs, classes: what the model expects; None takes the file's.

    Arrays as numpy.savez writes them are read from the file when they are needed; compressed ones are held in memory.
    """

    def __init__(self, path: str | Path, *, seed: int = 0, inputs: int | None = None, classes: int | None = None):
        self.path, self.seed = Path(path), seed
        there = status(path)
        if there is None or not stat.S_ISREG(there.st_mode):
            what = "does not exist" if there is None else "is not a regular file"
            raise DataError(f"`data` {path} {what}: {CURE}, or leave `data` away for the teacher task")
        self._file = file(path)
        x, y = read_npz(self.path)
        self._check_shapes(x, y, inputs)
        keys, self._fingerprint, highest = self._read_through(x, y, classes)
        held_out = hold_out(keys, np.ones(keys.size, np.int64), SHARE, np.ones(keys.size, bool))
        if held_out.all():
            raise DataError(f"{path}: all {held_out.size:,} rows are equal, so none can be held out that is not "
                            "trained on: add other rows")
        self._train_rows, self._eval_rows = np.flatnonzero(~held_out), np.flatnonzero(held_out)
        self._x, self._y = mapped_anew(x), mapped_anew(y)
        self.inputs, self.classes = x.shape[1], highest + 1 if classes is None else classes
        self.epoch_size: int = self._train_rows.size
        self.eval_size = self._eval_rows.size

    @property
    def fingerprint(self) -> int:
        return self._fingerprint

    @property
    def files(self) -> list[str]:
        return [str(self.path)]

    def describe(self) -> str:
        mapped = isinstance(self._x, np.memmap) and isinstance(self._y, np.memmap)
        return (f"{self.path.name}: {self.epoch_size:,} rows, {self.inputs} features, {self.classes} classes, "
                f"{self.eval_size:,} more rows held out by content"
                f"{'' if mapped else '; held in memory by every rank, since it is compressed'}")

    def train(self, samples: np.ndarray) -> Batch:
        epochs, places = np.divmod(samples, self.epoch_size)
        return self._rows(self._train_rows[permuted(self.seed, _SHUFFLE, epochs, places, self.epoch_size)])

    def held_out(self, samples: np.ndarray) -> Batch:
        return self._rows(self._eval_rows[samples])

    def _rows(self, rows: np.ndarray) -> Batch:
        self._file.check()
        return Batch(np.array(self._features(rows), np.float32, order="C"), np.array(self._y[rows], np.int64))

    def _features(self, rows: np.ndarray) -> np.ndarray:
        """Rows of x as they are stored. Read, where they lie one behind the other: a page that is looked at through a
        map counts as this process's memory until it ends, and its neighbours too."""
        x = self._x
        if not isinstance(x, np.memmap) or not x.flags.c_contiguous:
            return x[rows]
        width = x.dtype.itemsize * x.shape[1]
        data = self._file.read((x.offset + row * width for row in rows.tolist()), width)
        return np.frombuffer(data, x.dtype).reshape(rows.size, x.shape[1])

    def _check_shapes(self, x: np.ndarray, y: np.ndarray, inputs: int | None) -> None:
        if x.ndim != 2 or y.ndim != 1 or len(x) != len(y) or x.dtype.kind not in "fiu" or y.dtype.kind not in "iu":
            raise DataError(f"{self.path}: x is {x.dtype} {x.shape} and y is {y.dtype} {y.shape}, but x must be "
                            f"numbers (rows, features) and y integers (rows,): {CURE}")
        if len(y) < 2:
            raise DataError(f"{self.path} has {len(y)} rows, but one row to train on and one to hold out are needed: "
                            "add rows")
        if inputs is not None and x.shape[1] != inputs:
            raise DataError(f"{self.path}: x has {x.shape[1]} features, but the model reads {inputs}: store x with "
                            f"shape (rows, {inputs})")

    def _read_through(self, x: np.ndarray, y: np.ndarray, classes: int | None) -> tuple[np.ndarray, int, int]:
        """One pass over the file, block by block: the rows' keys uint64 (n,), a hash of everything below 2^53, and the
        highest label. DataError for numbers that cannot be used."""
        keys, crc, bad_x, bad_y = np.empty(len(y), np.uint64), 0, list[int](), list[int]()
        step = max(1, BLOCK // (8 * max(1, x.shape[1])))
        for begin in range(0, len(y), step):
            with np.errstate(over="ignore"):
                features = np.array(x[begin:begin + step], np.float32, order="C") + np.float32(0)  # -0 becomes 0
            labels = np.array(y[begin:begin + step])
            bad_x += (begin + np.flatnonzero(~np.isfinite(features).all(axis=1))).tolist()
            beyond = (labels < 0) if classes is None else (labels < 0) | (labels >= classes)
            bad_y += (begin + np.flatnonzero(beyond)[:1]).tolist()
            labels = labels.astype(np.int64)
            crc = zlib.crc32(labels.data, zlib.crc32(features.data, crc))
            keys[begin:begin + step] = _row_keys(features, labels)
        self._check_values(y, classes, bad_x, bad_y)
        return keys, crc << 21 | len(y) % (1 << 21), int(y.max())

    def _check_values(self, y: np.ndarray, classes: int | None, bad_x: list[int], bad_y: list[int]) -> None:
        """bad_x: rows of x that are not finite. bad_y: rows with an impossible label, the first among them."""
        if bad_x:
            raise DataError(f"{self.path}: row {bad_x[0]} of x is the first of {len(bad_x)} that hold NaN, inf or a "
                            "value beyond float32: remove or repair these rows")
        if bad_y:
            allowed = "at least 0" if classes is None else f"from 0 to {classes - 1}"
            raise DataError(f"{self.path}: row {bad_y[0]} has label {y[bad_y[0]]}, but labels must be {allowed}: "
                            "number the classes from 0, or remove the row")


def _row_keys(features: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """A hash of each row: the sum over its numbers, each hashed with its column. float32 (n, k), int64 (n,) -> uint64
    (n,)."""
    columns = np.arange(1, features.shape[1] + 1, dtype=np.int64) << 32
    return hash64(0, _CONTENT, hash64(0, _CONTENT, features.view(np.uint32) + columns).sum(axis=1)
                  + hash64(1, _CONTENT, labels))
