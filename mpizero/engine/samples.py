"""What a run asks of its dataset before it trains, and of each step's samples."""

from __future__ import annotations

import math
import numbers
import os
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np

from mpizero.data import Dataset
from mpizero.engine.config import Settings, TrainConfig
from mpizero.engine.resolve import resolve
from mpizero.errors import DataError

PART = 2**20  # samples that a dataset counts at once


def check_data(data: Dataset, settings: Settings) -> None:
    """DataError for a dataset without held-out samples, and for batches that no host could hold."""
    eval_size: Any = data.eval_size  # a user's own may be anything
    if not isinstance(eval_size, numbers.Integral) or eval_size < 1:
        raise DataError(f"{type(data).__name__}.eval_size is {eval_size!r}, but it is the number of held-out samples, "
                        "and an evaluation needs one: let it be an integer of at least 1")
    sample = sum(array.nbytes for array in data.eval_batch(np.zeros(1, np.int64)))
    batch, host = sample * settings.batch_size, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if batch > host:
        raise DataError(f"`batch_size` {settings.batch_size:,} means {batch:,} bytes a batch, more than the {host:,} "
                        "bytes of this host's memory: lower it")


def with_epochs(config: TrainConfig, data: Dataset, ranks: int) -> Settings:
    """The settings of a run whose length `epochs` gives: its last step is filled up with pads, so that each sample is
    seen once an epoch, and all ranks end after the same step. DataError where data has no end."""
    if data.epoch_size is None or config.epochs is None:
        raise DataError(f"`epochs` cannot be counted, since samples of this data are drawn without end "
                        f"({data.describe()}): give `steps`, or other `data`")
    end = math.ceil(Fraction(repr(config.epochs)) * data.epoch_size)  # of decimals as they are written
    samples = resolve(config, ranks=ranks).samples(ranks)
    return replace(resolve(config, -(-end // samples), ranks), end=end)


def count_targets(data: Dataset, begin: int, end: int) -> int:
    """Targets that count of training samples begin .. end - 1. Asks for `PART` at a time: a batch may have more samples
    than memory has bytes for their numbers."""
    total = 0
    for part in range(begin, end, PART):
        count: Any = data.count(np.arange(part, min(part + PART, end), dtype=np.int64))
        if not isinstance(count, numbers.Integral) or count < 0:
            raise DataError(f"{type(data).__name__}.count gave {count!r}, by which gradients are divided: let it give "
                            "how many targets count, an integer")
        total += int(count)
    return total
