"""Learning-rate schedule: linear warm-up, then cosine decay."""

from __future__ import annotations

import math

from mpizero.errors import ConfigError


def learning_rate(step: int, *, base: float, warmup: int, total: int, final_ratio: float = 0.1) -> float:
    """The learning rate of optimizer step `step`, which counts from 0.

    Steps 0 .. warmup-1 rise linearly and never use 0: base (step + 1) / warmup. From there half a cosine falls from
    `base` to `final_ratio * base`, reached at step `total` and kept afterwards (SGDR, arXiv:1608.03983, eq. 5 without
    restarts; the same steps as llm.c's `schedulers.h`). `total=0` means no decay. A run shorter than its warm-up simply
    ends while rising. A skipped step (overflow) must not advance `step`.
    """
    _check(step, base, warmup, total, final_ratio)
    if step < warmup:
        return base * (step + 1) / warmup
    if total == 0:
        return base
    if step >= total:
        return base * final_ratio
    progress = (step - warmup) / (total - warmup)  # total > step >= warmup
    return base * (final_ratio + (1.0 - final_ratio) * 0.5 * (1.0 + math.cos(math.pi * progress)))


def _check(step: int, base: float, warmup: int, total: int, final_ratio: float) -> None:
    assert step >= 0, step
    if not (math.isfinite(base) and base >= 0):
        raise ConfigError(f"lr {base} cannot be used, since a step needs a finite length of at least 0: choose `lr` "
                          "between 1e-5 and 1e-1")
    if warmup < 0 or total < 0:
        raise ConfigError(f"warmup {warmup} and total {total} count optimizer steps and cannot be negative: "
                          "use 0 to switch either off")
    if not 0 <= final_ratio <= 1:
        raise ConfigError(f"final_ratio {final_ratio} is the last learning rate over the highest one: use a value "
                          "from 0 to 1")
