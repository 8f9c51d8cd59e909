"""Norms of flat gradients, and the clipping coefficient.

Every function looks at one flat range. A global norm is the sum over the ranges that together hold each element exactly
once: a rank's shards for sharded gradients, and not the same element on every replica (pytorch#72548). Padding must be
left out.
"""

from __future__ import annotations

import math

import numpy as np

from mpizero.errors import ConfigError
from mpizero.layout.flat import NORM_BLOCK


def sum_of_squares(flat: np.ndarray, wide: np.ndarray) -> float:
    """Sum of squares of a flat array of any float type, accumulated in float64. wide: float64, of `NORM_BLOCK` elements
    or as many as `flat`; destroyed.

    inf or NaN anywhere gives a non-finite result, so this pass is also the overflow check; finite float16, bfloat16 and
    float32 never overflow here. The order of additions depends on the number of elements only.
    """
    assert flat.ndim == 1, flat.shape
    total = 0.0
    with np.errstate(invalid="ignore", over="ignore"):
        for start in range(0, flat.size, NORM_BLOCK):
            part = flat[start : start + NORM_BLOCK]
            block = wide[: part.size]
            np.copyto(block, part)
            total += float(np.dot(block, block))
    return total


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
