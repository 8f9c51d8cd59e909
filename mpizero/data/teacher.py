"""The MLP's own task: learn what a fixed random teacher says."""

from __future__ import annotations

import numpy as np

from mpizero.data.counter import hash64, normal
from mpizero.data.dataset import Batch, Dataset

_DIRECTIONS, _TRAIN, _HELD_OUT = 1, 2, 3  # streams
MARGIN = 0.75  # how far a sample moves towards its class: classes overlap, yet 50 steps of 64 samples learn them


class TeacherTask(Dataset):
    """x float32 (n, inputs); y int64 (n,), one of `classes`.

    The teacher holds a random unit vector per class. A sample is standard normal noise; its label is the class whose
    vector it points along most; then it moves `MARGIN` further along that vector. Noise and label depend on (seed,
    sample number) only; held-out samples come from a stream of their own.
    """

    eval_size = 1024

    def __init__(self, seed: int, inputs: int = 32, classes: int = 16):
        self.seed, self.inputs, self.classes = seed, inputs, classes
        directions = normal(seed, _DIRECTIONS, np.arange(classes), inputs)
        # float64 (classes, inputs)
        self._directions = directions / np.sqrt((directions * directions).sum(axis=1, keepdims=True))

    @property
    def fingerprint(self) -> int:
        return int(hash64(self.seed, self.inputs << 32 | self.classes, np.zeros(1, np.int64))[0]) >> 11

    def describe(self) -> str:
        return (f"teacher task: {self.inputs} features, {self.classes} classes, seed {self.seed}, "
                f"{self.eval_size} samples held out")

    def train(self, samples: np.ndarray) -> Batch:
        return self._label(normal(self.seed, _TRAIN, samples, self.inputs))

    def held_out(self, samples: np.ndarray) -> Batch:
        return self._label(normal(self.seed, _HELD_OUT, samples, self.inputs))

    def _label(self, noise: np.ndarray) -> Batch:
        """noise float64 (n, inputs) -> x, y.

        No matrix product: BLAS may round a row differently in batches of different size.
        """
        scores = np.zeros((noise.shape[0], self.classes))
        for j in range(self.inputs):
            scores += noise[:, j, None] * self._directions[:, j]
        y = scores.argmax(axis=1)
        return Batch((noise + MARGIN * self._directions[y]).astype(np.float32), y)
