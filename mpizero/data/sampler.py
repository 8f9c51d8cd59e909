"""Which samples a rank computes.

Samples are numbered through the whole run, so a step's data depends on the global batch only.
"""

from __future__ import annotations

import numpy as np

PAD = -1  # a sample that is not there: its targets are ignored, so it weighs 0


def global_samples(position: int, microbatch: int, rank: int, *, world_size: int, batch_size: int) -> np.ndarray:
    """Numbers of the samples of one microbatch on one rank, in a step that begins at sample `position`.

    int64 (batch_size,): position + (microbatch * world_size + rank) * batch_size + i. Ranks and microbatches divide a
    step's samples among themselves without overlap; N ranks of b samples see what one rank of N b samples sees.
    """
    assert position >= 0 and batch_size >= 1 and 0 <= rank < world_size and microbatch >= 0
    start = position + (microbatch * world_size + rank) * batch_size
    return np.arange(start, start + batch_size, dtype=np.int64)


def until(samples: np.ndarray, end: int) -> np.ndarray:
    """`samples`, with pads for those from number `end` on: where a global batch ends that ranks and microbatches do not
    divide, or a run of whole epochs."""
    return np.where(samples < end, samples, PAD)


def eval_batches(eval_size: int, batch_size: int, rank: int, world_size: int) -> list[np.ndarray]:
    """The held-out samples this rank evaluates, in batches of at most `batch_size`, padded with `PAD`.

    Every rank gets as many batches as every other, so that all join every collective; together they hold each of
    0..eval_size-1 exactly once. The sum of losses over all ranks divided by the number of valid targets over all ranks
    depends on N by rounding only.
    """
    assert batch_size >= 1 and 0 <= rank < world_size
    size = -(-eval_size // world_size)
    mine = until(np.arange(rank * size, (rank + 1) * size, dtype=np.int64), eval_size)
    return [mine[start : start + batch_size] for start in range(0, size, batch_size)]
