"""Features and labels from a .npz file."""

from __future__ import annotations

import zlib
from pathlib import Path

import numpy as np

from mpizero.data.counter import hash64
from mpizero.data.dataset import Batch, Dataset
from mpizero.errors import DataError

_SHUFFLE = 5  # stream
_CURE = "save one with numpy.savez(path, x=features, y=labels)"


class ArrayData(Dataset):
    """x float32 (n, features) and y int64 (n,) of a .npz file. The last 10 % of the rows, at least one, are held out.

    Training goes through the other rows epoch by epoch, each epoch in its own order: sample i is row order[i % n] of
    epoch i // n.
    inputs, classes: what the model expects; None takes the file's.
    """

    def __init__(self, path: str | Path, *, seed: int = 0, inputs: int | None = None, classes: int | None = None):
        self.path, self.seed = Path(path), seed
        x, y = _read(self.path)
        self._check_shapes(x, y, inputs)
        self._check_values(x, y, classes)
        self.x, self.y = x.astype(np.float32, order="C"), y.astype(np.int64, order="C")
        self.inputs = x.shape[1]
        self.classes = classes if classes is not None else int(y.max()) + 1
        self.eval_size = max(1, len(y) // 10)
        self._train_size = len(y) - self.eval_size
        self._epoch, self._order = -1, np.empty(0, np.int64)

    @property
    def fingerprint(self) -> int:
        return zlib.crc32(self.y.data, zlib.crc32(self.x.data)) << 21 | len(self.y) % (1 << 21)

    def describe(self) -> str:
        return (f"{self.path.name}: {self._train_size:,} rows, {self.inputs} features, {self.classes} classes, "
                f"{self.eval_size:,} more rows held out")

    def train(self, samples: np.ndarray) -> Batch:
        epochs, places = samples // self._train_size, samples % self._train_size
        rows = np.empty_like(samples)
        for epoch in np.unique(epochs):
            here = epochs == epoch
            rows[here] = self._shuffled(int(epoch))[places[here]]
        return Batch(self.x[rows], self.y[rows])

    def held_out(self, samples: np.ndarray) -> Batch:
        rows = samples + self._train_size
        return Batch(self.x[rows], self.y[rows])

    def _shuffled(self, epoch: int) -> np.ndarray:
        """Rows in the order of an epoch; the latest is kept."""
        if epoch != self._epoch:
            keys = hash64(self.seed, _SHUFFLE, epoch * self._train_size + np.arange(self._train_size))
            self._epoch, self._order = epoch, keys.argsort(kind="stable")
        return self._order

    def _check_shapes(self, x: np.ndarray, y: np.ndarray, inputs: int | None) -> None:
        if x.ndim != 2 or y.ndim != 1 or len(x) != len(y) or x.dtype.kind not in "fiu" or y.dtype.kind not in "iu":
            raise DataError(f"{self.path}: x is {x.dtype} {x.shape} and y is {y.dtype} {y.shape}, but x must be "
                            f"numbers (rows, features) and y integers (rows,): {_CURE}")
        if len(y) < 2:
            raise DataError(f"{self.path} has {len(y)} rows, but one row to train on and one to hold out are needed: "
                            "add rows")
        if inputs is not None and x.shape[1] != inputs:
            raise DataError(f"{self.path}: x has {x.shape[1]} features, but the model reads {inputs}: store x with "
                            f"shape (rows, {inputs})")

    def _check_values(self, x: np.ndarray, y: np.ndarray, classes: int | None) -> None:
        with np.errstate(over="ignore"):
            bad = ~np.isfinite(x.astype(np.float32)).all(axis=1)
        if bad.any():
            raise DataError(f"{self.path}: row {bad.argmax()} of x is the first of {bad.sum()} that hold NaN, inf or a "
                            "value beyond float32: remove or repair these rows")
        bad = y < 0 if classes is None else (y < 0) | (y >= classes)
        if bad.any():
            row = bad.argmax()
            allowed = "at least 0" if classes is None else f"from 0 to {classes - 1}"
            raise DataError(f"{self.path}: row {row} has label {y[row]}, but labels must be {allowed}: number "
                            "the classes from 0, or remove the row")


def _read(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """The arrays x and y of a .npz file. Never unpickles: a data file must not run code."""
    if not path.is_file():
        what = "is not a regular file" if path.exists() else "does not exist"
        raise DataError(f"`data` {path} {what}: {_CURE}, or leave `data` away for the teacher task")
    try:
        with np.load(path, allow_pickle=False) as stored:
            missing = [name for name in ("x", "y") if name not in stored.files]
            if missing:
                raise DataError(f"{path} lacks {' and '.join(missing)} (it holds "
                                f"{', '.join(stored.files) or 'nothing'}): {_CURE}")
            x, y = stored["x"], stored["y"]
    except DataError:
        raise
    except Exception as error:  # whatever a damaged file makes NumPy and zipfile stumble over
        raise DataError(f"{path} cannot be read as a .npz file of plain numbers "
                        f"({' '.join(str(error).split())[:200]}): {_CURE}") from None
    if not (isinstance(x, np.ndarray) and isinstance(y, np.ndarray)):
        raise DataError(f"{path}: x and y are not both NumPy arrays: {_CURE}")
    return x, y
