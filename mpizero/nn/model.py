"""A model: its parameters, its segments, and the values it starts from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import final

from mpizero.errors import ConfigError
from mpizero.layout.spec import ModelSpec, ParamSpec
from mpizero.memory.ledger import Allocator
from mpizero.nn.ops.blocks import Array, Context
from mpizero.nn.ops.gradients import Gradients


class Segment(ABC):
    """How one segment of a model's spec is computed."""

    @abstractmethod
    def forward(self, params: Mapping[str, Array], x: Array, mem: Allocator) -> tuple[Array, Context]:
        """x -> y, and what backward needs. Afterwards only y and the context's arrays live."""

    @abstractmethod
    def backward(self, params: Mapping[str, Array], context: Context, dy: Array, grads: Gradients,
                 mem: Allocator) -> Array | None:
        """dy -> dx (None where x is data); adds the parameters' gradients into `grads`.

        Consumes the context: each array is dropped after its last use, and dies there if the caller keeps no reference.
        """


class Loss(ABC):
    """What training makes small: a sum over targets of the model's outputs.

    The mean is taken by whoever knows how many there are.
    """

    @abstractmethod
    def forward(self, outputs: Array, targets: Array, mem: Allocator) -> tuple[float, int, Context]:
        """The sum over the targets that count, their number, and what backward needs."""

    @abstractmethod
    def backward(self, context: Context, scale: float, mem: Allocator) -> Array:
        """The gradient of `scale` times the sum, as the outputs are stored.

        Consumes the context; the outputs' array may be reused.
        """


@final
@dataclass(frozen=True)
class Model:
    """What is trained: `segments` compute those of `spec`, in its order.

    The loss comes after them and has no parameters.
    draw: (parameter, seed) -> float32 values of its shape, a function of seed and name alone.
    """

    name: str
    spec: ModelSpec
    segments: tuple[Segment, ...]
    draw: Callable[[ParamSpec, int], Array] = field(repr=False)

    def __post_init__(self) -> None:
        if len(self.segments) != len(self.spec.segments):
            raise ConfigError(f"model {self.name} has {len(self.segments)} segments, its spec "
                              f"{len(self.spec.segments)}: give one for each")

    def initial(self, name: str, seed: int) -> Array:
        """The float32 values parameter `name` starts from. KeyError for a name that it does not have; ConfigError where
        `draw` gives another shape."""
        param = {param.name: param for param in self.spec.params}[name]
        values = self.draw(param, seed)
        if values.shape != param.shape:
            raise ConfigError(f"model {self.name}: draw gave {values.shape} for parameter {name}, whose shape is "
                              f"{param.shape}: return an array of that shape")
        return values
