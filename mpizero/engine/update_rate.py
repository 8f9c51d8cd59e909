"""How fast the host's processors update: Adam on flat arrays, by dtype and number of threads."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from mpizero.comm import Group, all_gather_values, barrier
from mpizero.dtypes import numpy_dtype
from mpizero.layout import UPDATE_BLOCK
from mpizero.memory.ledger import Uncounted
from mpizero.optim import Adam, Workers

DTYPES = ("float32", "float16", *(["bfloat16"] if importlib.util.find_spec("ml_dtypes") else []))
WARM_UP = 2  # rounds
BYTES = 20  # at most, of a parameter's weight, states, gradient and copy


@dataclass(frozen=True)
class Rate:
    """Parameters a second of the slowest rank while all update: the median, and the best of all rounds. block: elements
    that a thread takes at once. ratio: of the first number of threads' seconds to this one's, median of rounds."""

    dtype: str
    threads: int
    block: int
    rate: float
    best: float
    ratio: float


def measure(world: Group, numel: int, threads: Sequence[int], repeat: int, block: int = UPDATE_BLOCK) -> list[Rate]:
    """Of each dtype, the numbers of threads in turn. Collective; the same on every rank."""
    workers = [Workers(number) for number in threads]
    return [rate for dtype in DTYPES for rate in _of_dtype(world, numel, dtype, workers, repeat, block)]


def _of_dtype(world: Group, numel: int, dtype: str, workers: Sequence[Workers], repeat: int, block: int) -> list[Rate]:
    call = adam(dtype, numel, block)
    seconds = np.empty((WARM_UP + repeat, len(workers)))
    for row in seconds:
        for column, each in enumerate(workers):
            barrier(world)
            begin = time.perf_counter()
            call(each)
            row[column] = time.perf_counter() - begin
    slowest = all_gather_values(world, seconds[WARM_UP:].reshape(-1)).max(axis=0).reshape(repeat, -1)
    return [Rate(dtype, each.number, min(block, numel) // each.number, numel / float(np.median(taken)),
                 numel / float(taken.min()), float(np.median(slowest[:, 0] / taken)))
            for each, taken in zip(workers, slowest.T, strict=True)]


def adam(dtype: str, numel: int, block: int = UPDATE_BLOCK) -> Callable[[Workers], None]:
    """An update of `numel` float32 weights, which 16-bit parameters follow."""
    optimizer, kind, mem = Adam(), numpy_dtype(dtype), Uncounted()
    master, grad = np.ones(numel, np.float32), np.full(numel, 0.5, kind)
    states = {state.name: np.full(numel, 0.25, np.float32) for state in optimizer.spec.states}
    out = None if dtype == "float32" else np.ones(numel, kind)
    return lambda workers: optimizer.update(master, states, grad, lr=1e-3, step=1, factor=1.0, mem=mem, out=out,
                                            block=block, workers=workers)
