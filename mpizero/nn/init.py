"""What parameters start from, described without storage: any range of the values is made alone, where it is wanted.

Values are keyed by (seed, parameter name, place in the parameter), never by the model's layout or the rank, so every
layout starts from the same model.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import final

from mpizero.layout.spec import ParamSpec
from mpizero.memory.ledger import Allocator
from mpizero.nn.normal import fill_normal, normal_bytes
from mpizero.nn.ops.blocks import Array


class Initial(ABC):
    """How the values of a parameter begin: `Normal`, `Constant`, or a user's own."""

    @abstractmethod
    def fill(self, seed: int, name: str, begin: int, out: Array, mem: Allocator) -> None:
        """Elements of parameter `name`, counted row by row, from `begin` on, into `out` (n,) float32.

        Each is a function of seed, name and its own place: however a range is cut, the bits are the same. The caller
        asks for a block at a time, so temporary arrays may be as large as `out`.
        """

    def workspace(self, begin: int, count: int) -> int:
        """Bytes that `fill` takes from `mem` for `count` elements from `begin` on; of one that does not say so, 0."""
        return 0


@final
@dataclass(frozen=True)
class Normal(Initial):
    """Normal values around 0 of standard deviation `std`."""

    std: float

    def fill(self, seed: int, name: str, begin: int, out: Array, mem: Allocator) -> None:
        fill_normal(seed, name, begin, out, self.std, mem)

    def workspace(self, begin: int, count: int) -> int:
        return normal_bytes(begin, count)


@final
@dataclass(frozen=True)
class Constant(Initial):
    """All equal."""

    value: float

    def fill(self, seed: int, name: str, begin: int, out: Array, mem: Allocator) -> None:
        out.fill(self.value)


def he_normal(param: ParamSpec) -> Normal:
    """Normal with variance 2 / inputs, of a matrix (inputs, outputs).

    That keeps activations level through ReLU (arXiv:1502.01852, sec. 2.2).
    """
    return Normal(math.sqrt(2 / param.shape[0]))
