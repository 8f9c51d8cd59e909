"""What a dataset is, and how a training run opens one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path

import numpy as np

from mpizero.errors import ConfigError, DataError

IGNORE = -1  # a target that does not count
Batch = tuple[np.ndarray, np.ndarray]


class Dataset(ABC):
    """Samples by number. Training samples are numbered without end; held-out samples 0 .. eval_size - 1.

    A sample depends on the dataset's seed and its number only: never on the rank, the number of ranks or the other samples of the batch.
    Negative numbers are pads (`sampler.PAD`): their targets are `IGNORE`.
    """

    eval_size: int  # number of held-out samples

    def train_batch(self, samples: np.ndarray) -> Batch:
        """samples: int64 (n,) -> x (n, ...), y int64 (n,) or (n, T)."""
        return self._padded(self._train, samples)

    def eval_batch(self, samples: np.ndarray) -> Batch:
        """Held-out samples, as `train_batch`. Numbers lie below `eval_size`."""
        assert samples.size == 0 or samples.max() < self.eval_size, f"held-out sample {samples.max()} of {self.eval_size}"
        return self._padded(self._held_out, samples)

    @property
    @abstractmethod
    def fingerprint(self) -> int:
        """A hash of the content, below 2^53 so that float64 carries it: ranks on different hosts compare it before training."""

    @abstractmethod
    def describe(self) -> str:
        """One line for the header of a run."""

    @abstractmethod
    def _train(self, samples: np.ndarray) -> Batch: ...

    @abstractmethod
    def _held_out(self, samples: np.ndarray) -> Batch: ...

    @staticmethod
    def _padded(batch: Callable[[np.ndarray], Batch], samples: np.ndarray) -> Batch:
        pads = samples < 0
        x, y = batch(np.where(pads, 0, samples))
        y[pads] = IGNORE
        return x, y


def load(model: str, path: str | Path | None, *, seed: int, context: int = 128, inputs: int = 32, classes: int = 16) -> Dataset:
    """The dataset of `--model` and `--data`.

    mlp: the teacher task, or arrays x (n, inputs) and y (n,) of a .npz file. gpt: bytes of a file or folder, or the standard library's
    source. Raises `DataError` where the data cannot be used.
    """
    from mpizero.data.arrays import ArrayData
    from mpizero.data.teacher import TeacherTask
    from mpizero.data.text import Text, load_text

    if path is not None and not str(path):
        raise DataError("--data is empty, so there is nothing to open: name a file or folder, or leave --data away for the default")
    if model == "gpt":
        return Text(load_text(path), context, seed)
    if model != "mlp":
        raise ConfigError(f"no data for model {model!r}: use --model mlp or --model gpt")
    if path is None:
        return TeacherTask(seed, inputs, classes)
    if Path(path).suffix != ".npz" and Path(path).exists():
        raise DataError(f"--data {path} is not a .npz file, which --model mlp needs (arrays x and y): save one with numpy.savez, or use "
                        "--model gpt for text")
    return ArrayData(path, seed=seed, inputs=inputs, classes=classes)
