"""How a training run opens a dataset."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from mpizero.data.arrays import ArrayData
from mpizero.data.dataset import Dataset
from mpizero.data.files import status
from mpizero.data.teacher import TeacherTask
from mpizero.data.text import Text, find_text
from mpizero.errors import ConfigError, DataError


def load(model: str, path: str | Path | None, *, seed: int, context: int = 128, inputs: int = 32, classes: int = 16,
         epochs: bool = False, outputs: Iterable[str | Path] = ()) -> Dataset:
    """The built-in dataset of a model, or that of a file.

    mlp: the teacher task, or arrays x (n, inputs) and y (n,) of a .npz file. gpt: bytes of a file or folder, or the
    standard library's source. epochs: text without replacement, see `Text`. outputs: paths that the run itself writes,
    which are not read. Raises `DataError` where the data cannot be used.
    """
    if path is not None and not str(path):
        raise DataError("`data` is empty, so there is nothing to open: name a file or folder, or leave `data` "
                        "away for the default")
    if model == "gpt":
        return Text(find_text(path, outputs), context, seed, epochs=epochs)
    if model != "mlp":
        raise ConfigError(f"no data for model {model!r}: use `model` mlp or gpt")
    if path is None:
        return TeacherTask(seed, inputs, classes)
    if Path(path).suffix != ".npz" and status(path) is not None:
        raise DataError(f"`data` {path} is not a .npz file, which `model` mlp needs (arrays x and y): save one "
                        "with numpy.savez, or use `model` gpt for text")
    return ArrayData(path, seed=seed, inputs=inputs, classes=classes)
