"""Dynamic loss scaling for float16 gradients: the rules and names of `torch.amp.GradScaler`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from mpizero.errors import ConfigError, LossScaleError

# GradScaler.state_dict()'s keys
_SAVED = ("scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker")


@dataclass
class LossScaler:
    """Multiplies the loss by `scale` so that small gradients survive float16, and adapts the scale.

    The rule is arXiv:1710.03740, sec. 3.2: an overflow multiplies the scale by `backoff_factor` and skips the step;
    `growth_interval` steps in a row without one multiply it by `growth_factor`. Unlike GradScaler it stops at a floor:
    an overflow at `min_scale` raises `LossScaleError` instead of skipping for ever (DeepSpeed#1599). `enabled=False`
    (float32) keeps the scale at 1 and never changes it.

    `found_inf` must be the same on every rank: agree on it first, then call `update` everywhere.
    """

    init_scale: float = 2.0**16
    growth_factor: float = 2.0
    backoff_factor: float = 0.5
    growth_interval: int = 2000
    min_scale: float = 1.0
    enabled: bool = True
    scale: float = field(init=False)
    _growth_tracker: int = field(init=False, default=0)  # steps without overflow since the scale last changed

    def __post_init__(self) -> None:
        self.scale = float(self.init_scale) if self.enabled else 1.0
        self._check()

    def update(self, found_inf: bool, culprit: str = "") -> None:
        """Adapt the scale after a step that was taken (`found_inf=False`) or skipped (True).

        culprit: where the gradient overflowed, for the message of `LossScaleError`: a unit's name.
        """
        if not self.enabled:
            return
        if found_inf:
            self._back_off(culprit)
            return
        self._growth_tracker += 1
        if self._growth_tracker == self.growth_interval:
            self._growth_tracker = 0
            if math.isfinite(self.scale * self.growth_factor):
                self.scale *= self.growth_factor

    def state_dict(self) -> dict[str, float | int]:
        """What a checkpoint keeps, under GradScaler's keys; empty when disabled."""
        return {key: getattr(self, key) for key in _SAVED} if self.enabled else {}

    def load_state_dict(self, state: Mapping[str, float | int]) -> None:
        """Continue from `state_dict()`. Nothing changes if it cannot be used."""
        if not self.enabled:
            return
        missing = [key for key in _SAVED if key not in state]
        if missing:
            raise ConfigError(f"the saved loss scaler lacks {', '.join(missing)}: it was saved without loss scaling "
                              "(float32) or is damaged; start with the `dtype` it was saved with, or without its state")
        before = {key: getattr(self, key) for key in _SAVED}
        try:
            self._assign(state)
            self._check()
        except ConfigError:
            self._assign(before)
            raise

    def _assign(self, state: Mapping[str, float | int]) -> None:
        self.scale, self.growth_factor, self.backoff_factor = (float(state[key]) for key in _SAVED[:3])
        self.growth_interval, self._growth_tracker = int(state["growth_interval"]), int(state["_growth_tracker"])

    def _back_off(self, culprit: str) -> None:
        if self.scale <= self.min_scale:
            where = f"the gradient of unit {culprit}" if culprit else "a gradient"
            raise LossScaleError(f"{where} is inf or NaN although the loss scale is already at its floor of "
                                 f"{self.min_scale:g}: a smaller scale cannot help, because the values themselves "
                                 "leave float16's range (65,504). Lower `lr`, lengthen `warmup`, set `clip`, check the "
                                 "data, or use `sum_dtype` float32, or `dtype` float32")
        self.scale = max(self.scale * self.backoff_factor, self.min_scale)
        self._growth_tracker = 0

    def _check(self) -> None:
        for name, good in {
            "min_scale": math.isfinite(self.min_scale) and self.min_scale > 0,
            "init_scale": math.isfinite(self.init_scale) and self.init_scale >= self.min_scale,
            "scale": not self.enabled or (math.isfinite(self.scale) and self.scale > 0),
            "growth_factor": math.isfinite(self.growth_factor) and self.growth_factor > 1,
            "backoff_factor": 0 < self.backoff_factor < 1,
            "growth_interval": self.growth_interval >= 1,
            "_growth_tracker": self._growth_tracker >= 0,
        }.items():
            if not good:
                raise ConfigError(f"loss scaler: {name} = {getattr(self, name)} cannot be used: it needs min_scale > "
                                  "0, init_scale >= min_scale, growth_factor > 1, 0 < backoff_factor < 1 and "
                                  "growth_interval >= 1, all finite")
