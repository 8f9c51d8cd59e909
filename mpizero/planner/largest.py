"""The largest model of a family that still fits: one more does not."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace

from mpizero.errors import ConfigError
from mpizero.layout.models import GPTConfig

MOST = 2**17  # members of a family


@dataclass(frozen=True)
class Family:
    """GPTs that grow by `layers` or by `width`. sizes: of the first; of the others the layers are n times as many, or
    width and heads."""

    grows: str
    sizes: GPTConfig

    def member(self, number: int) -> GPTConfig:
        """From 1 on, each larger than the one before."""
        first = self.sizes
        if self.grows == "layers":
            return replace(first, layers=number * first.layers)
        return replace(first, d_model=number * first.d_model, heads=number * first.heads)


@dataclass(frozen=True)
class Largest:
    """Member `number` of the family takes `nbytes` on a rank, the next one `next_bytes`."""

    number: int
    nbytes: int
    next_bytes: int


def largest(needs: Callable[[int], int], room: int) -> Largest:
    """Of members 1, 2, ... which need more and more. ConfigError where not even the first fits, or all that are tried.

    Bytes grow nearly in proportion, so a line through two members tells where to look: a few are planned, and the last
    two side by side. Where that gains little, halves are taken.
    """
    needs = functools.cache(needs)
    if needs(1) > room:
        raise ConfigError(f"not even the smallest of the family fits: a rank needs {needs(1):,} bytes and has "
                          f"{room:,}: use a larger `device_memory`, more `ranks`, a higher `stage`, or a smaller "
                          "`d_model` (of `family` width: fewer `layers`)")
    low, high = 1, 2
    while needs(high) <= room:
        if high == MOST:
            raise ConfigError(f"even member {high:,} of the family fits: a rank needs {needs(high):,} bytes and has "
                              f"{room:,}: use a larger `d_model` (of `family` width: more `layers`)")
        # of owners bytes grow by leaps, and between them not at all
        slope = max((needs(high) - needs(low)) // (high - low), needs(high) // (2 * high), 1)
        low, high = high, min(high + (room - needs(high)) // slope + 1, MOST)
    halve = False
    while high - low > 1:
        width, share = high - low, (room - needs(low)) / (needs(high) - needs(low))
        guess = (low + high) // 2 if halve else min(max(low + int(share * width), low + 1), high - 1)
        low, high = (guess, high) if needs(guess) <= room else (low, guess)
        halve = not halve and high - low > width // 2
    return Largest(low, needs(low), needs(high))
