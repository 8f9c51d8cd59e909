"""What is held out: decided by content, so that equal things stand on one side wherever they are."""

from __future__ import annotations

import numpy as np


def hold_out(keys: np.ndarray, sizes: np.ndarray, share: float, usable: np.ndarray) -> np.ndarray:
    """Which things are held out: bool (n,). Things of one key go together.

    keys: uint (n,), a hash of each thing's content. sizes: int (n,). usable: bool (n,), whether it can be evaluated.

    Keys are held out from the smallest on until `share` of the sum of sizes is reached, so about that much is. A key of
    more than twice the share (what repeats all over) is passed over, unless all have more: then the smallest counts as
    the bound. It may be everything, if all is equal.
    """
    _, group = np.unique(keys, return_inverse=True)
    size = np.bincount(group, weights=sizes)
    candidate = np.bincount(group, weights=usable) > 0
    if not candidate.any():
        return np.zeros(keys.size, bool)
    goal = share * size.sum()
    candidate &= size <= max(2 * goal, size[candidate].min())
    taken = np.where(candidate, size, 0)
    return (candidate & (np.cumsum(taken) - taken < goal))[group]
