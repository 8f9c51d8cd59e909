"""A model: its parameters, its stages, and the values it starts from."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from mpizero.errors import ConfigError
from mpizero.layout.spec import ModelSpec, ParamSpec, StageSpec
from mpizero.memory import Allocator
from mpizero.nn.blocks import Array, Context
from mpizero.nn.gradients import Gradients


class Stage(ABC):
    """One piece of computation. Abstract.

    name: of the stage; params: the names of the model's parameters that it reads.
    """

    name: str
    params: tuple[str, ...]

    @abstractmethod
    def forward(self, params: Mapping[str, Array], x: Array, mem: Allocator) -> tuple[Array, Context]:
        """x -> y, and what backward needs. Afterwards only y and the context's arrays live."""

    @abstractmethod
    def backward(self, params: Mapping[str, Array], context: Context, dy: Array, grads: Gradients, mem: Allocator) -> Array | None:
        """dy -> dx (None where x is data); adds the parameters' gradients into `grads`.

        Consumes the context: each array is dropped after its last use, so it dies there if the caller keeps no reference.
        """

    @abstractmethod
    def saved_bytes(self, batch_shape: tuple[int, ...], itemsize: int) -> int:
        """Bytes this stage allocates in forward that live until its backward: y and the context, without x.

        batch_shape: (n,) samples or (B,T) tokens. itemsize: bytes of an element of the parameters' dtype.
        """


@dataclass(frozen=True)
class Model:
    """What the engine trains. Final. Both models end in `cross_entropy`, which is no stage: it has no parameters."""

    name: str
    spec: ModelSpec
    stages: tuple[Stage, ...]
    draw: Callable[[ParamSpec, int], Array] = field(repr=False)  # (parameter, seed) -> float32 values

    def initial(self, name: str, seed: int) -> Array:
        """The float32 values parameter `name` starts from: a function of (seed, name) alone."""
        for param in self.spec.params:
            if param.name == name:
                return self.draw(param, seed)
        raise KeyError(name)


def make_model(name: str, params: list[ParamSpec], stages: list[Stage], draw: Callable[[ParamSpec, int], Array]) -> Model:
    """A Model whose spec lists the parameters and what each stage reads."""
    spec = ModelSpec(tuple(params), tuple(StageSpec(stage.name, stage.params) for stage in stages))
    return Model(name, spec, tuple(stages), draw)


def require_positive(**sizes: int) -> None:
    """Raise ConfigError for a size below 1, naming its flag."""
    for name, size in sizes.items():
        if size < 1:
            flag = "--" + name.replace("_", "-")
            raise ConfigError(f"{flag} {size} is no size: a model needs at least 1; use {flag} 1 or more")


def rows_in(batch_shape: tuple[int, ...]) -> int:
    """Samples, or batch x tokens."""
    return math.prod(batch_shape)
