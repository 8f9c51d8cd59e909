"""What a model is made of, without arrays: parameter names and shapes, and the stages that read them."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class ParamSpec:
    """One parameter tensor."""

    name: str
    shape: tuple[int, ...]

    @property
    def numel(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True)
class StageSpec:
    """One piece of computation and the names of the parameters it reads. Stages that read the same name share (tie) it."""

    name: str
    params: tuple[str, ...]


@dataclass(frozen=True)
class ModelSpec:
    """Parameters in the model's order, and the stages in the order of forward."""

    params: tuple[ParamSpec, ...]
    stages: tuple[StageSpec, ...]

    @property
    def psi(self) -> int:
        """Number of parameters, tied ones once."""
        return sum(param.numel for param in self.params)
