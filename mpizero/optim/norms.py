"""Norms of flat gradients, and the clipping coefficient.

Every function looks at one flat range. A global norm is the sum over the ranges that together hold each element exactly
once: a rank's shards for sharded gradients, and not the same element on every replica (pytorch#72548). Padding must be
left out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import final

import numpy as np

from mpizero.errors import ConfigError
from mpizero.layout.flat import NORM_BLOCK


@final
class SumOfSquares:
    """Of values that come in parts, of any float type and size: accumulated in float64, block by block. The order of
    additions depends on the number of elements only.

    wide: float64, of `NORM_BLOCK` elements or as many as there are values; destroyed.
    """

    def __init__(self, wide: np.ndarray):
        assert wide.size <= NORM_BLOCK, wide.shape
        self._wide, self._filled, self._total = wide, 0, 0.0

    def add(self, flat: np.ndarray) -> None:
        """(n,), which come next."""
        assert flat.ndim == 1, flat.shape
        while flat.size:
            part = flat[: self._wide.size - self._filled]
            np.copyto(self._wide[self._filled : self._filled + part.size], part)
            self._filled += part.size
            if self._filled == self._wide.size:
                self._close_block()
            flat = flat[part.size :]

    def close(self) -> float:
        """The sum; the next value begins another one."""
        self._close_block()
        total, self._total = self._total, 0.0
        return total

    def _close_block(self) -> None:
        block, self._filled = self._wide[: self._filled], 0
        self._total += float(np.dot(block, block))


def sum_of_squares(flat: np.ndarray, wide: np.ndarray) -> float:
    """Sum of squares of a flat array of any float type, accumulated in float64. wide: float64, of `NORM_BLOCK` elements
    or as many as `flat`; destroyed.

    inf or NaN anywhere gives a non-finite result, so this pass is also the overflow check; finite float16, bfloat16 and
    float32 never overflow here. The order of additions depends on the number of elements only.
    """
    whole = slice(0, flat.size)
    return sums_of_squares([whole], [(whole, flat)], wide)[0]


def sums_of_squares(parts: Sequence[slice], blocks: Iterable[tuple[slice, np.ndarray]],
                    wide: np.ndarray) -> list[float]:
    """`sum_of_squares` of each of `parts`, which come one after the other. blocks: which elements, and these, in order;
    0 for what no block holds."""
    totals: list[float] = []
    sums = SumOfSquares(wide)
    with np.errstate(invalid="ignore", over="ignore"):
        for span, values in blocks:
            for part in parts[len(totals) :]:
                low, high = max(span.start, part.start), min(span.stop, part.stop)
                if low < high:
                    sums.add(values[low - span.start : high - span.start])
                if part.stop > span.stop:
                    break
                totals.append(sums.close())
    return totals + [0.0] * (len(parts) - len(totals))


def clip_coefficient(total_norm: float, max_norm: float) -> float:
    """What gradients are multiplied by so that their global norm is at most `max_norm`.

    min(1, max_norm / (total_norm + 1e-6)), as `torch.nn.utils.clip_grad_norm_`. `total_norm` belongs to the gradients
    themselves, that is after division by the loss scale; a non-finite one has to skip the step before this is asked.
    """
    if not max_norm > 0:
        raise ConfigError(f"clip {max_norm} cannot bound a norm: use `clip` with a value above 0, or leave `clip` "
                          "away for no clipping")
    assert math.isfinite(total_norm), "a step with non-finite gradients is skipped, not clipped"
    return min(1.0, max_norm / (total_norm + 1e-6))
