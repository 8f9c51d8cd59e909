"""What a dataset is: samples by number, in batches."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from mpizero.errors import DataError

IGNORE = -1  # a target that does not count; among floating-point targets it is NaN


class Batch(NamedTuple):
    """inputs (n, ...) and targets (n, ...) of n samples."""

    inputs: np.ndarray
    targets: np.ndarray


class Dataset(ABC):
    """Samples by number. Training samples are numbered without end; held-out samples 0 .. eval_size - 1.

    A sample depends on the dataset's seed and its number only: never on the rank, the number of ranks or the other
    samples of the batch.
    Negative numbers are pads (`sampler.PAD`): their targets are `IGNORE`.
    """

    eval_size: int  # number of held-out samples, at least 1
    targets_per_sample: int = 1
    # samples of an epoch, if sample i is of epoch i // epoch_size and an epoch has each once; None: samples are drawn
    epoch_size: int | None = None

    def train_batch(self, samples: np.ndarray) -> Batch:
        """samples: int64 (n,)."""
        return self._padded(self.train, samples)

    def eval_batch(self, samples: np.ndarray) -> Batch:
        """Held-out samples, as `train_batch`. Numbers lie below `eval_size`."""
        assert samples.size == 0 or samples.max() < self.eval_size, (f"held-out sample {samples.max()} of "
                                                                     f"{self.eval_size}")
        return self._padded(self.held_out, samples)

    def count(self, samples: np.ndarray) -> int:
        """How many targets of these training samples count: an integer.

        A step's gradient is divided by that of the global batch, which every rank works out by itself, a part of the
        batch at a time. What the loss then counts must come to the same. Override it where samples have masks.
        """
        return int(np.count_nonzero(samples >= 0)) * self.targets_per_sample

    def _padded(self, batch: Callable[[np.ndarray], Batch], samples: np.ndarray) -> Batch:
        """The batch of `samples`, of which negative numbers stand for none."""
        pads = samples < 0
        inputs, targets = batch(np.where(pads, 0, samples))
        if not len(inputs) == len(targets) == samples.size:
            raise DataError(f"{type(self).__name__}.{batch.__name__} was asked for {samples.size:,} samples and gave "
                            f"{len(inputs):,} inputs and {len(targets):,} targets: let it give one of each a sample")
        if pads.any():
            targets = targets.copy()  # it may be a view of the dataset's own
            targets[pads] = np.nan if targets.dtype.kind == "f" else IGNORE
        return Batch(inputs, targets)

    @property
    def files(self) -> list[str]:
        """Paths of the files that are read, in order."""
        return []

    @property
    @abstractmethod
    def fingerprint(self) -> int:
        """A hash of the content, below 2^53 so that float64 carries it.

        Ranks on different hosts compare it before training.
        """

    @abstractmethod
    def describe(self) -> str:
        """One line for the header of a run."""

    @abstractmethod
    def train(self, samples: np.ndarray) -> Batch:
        """Training samples; none of the numbers is negative."""

    @abstractmethod
    def held_out(self, samples: np.ndarray) -> Batch:
        """Held-out samples; none of the numbers is negative."""
