"""A model: its parameters, its segments, and the values it starts from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import final

import numpy as np

from mpizero.errors import ConfigError
from mpizero.layout.spec import ModelSpec, ParamSpec
from mpizero.memory.ledger import Allocator, Uncounted
from mpizero.nn.init import Initial
from mpizero.nn.ops.blocks import Array, Context, spans
from mpizero.nn.ops.gradients import Gradients

DRAW_BLOCK = 16384  # elements that are drawn at once: what `nn.normal` works on stays in a 1 MiB L2 cache


class Segment(ABC):
    """How one segment of a model's spec is computed."""

    @abstractmethod
    def forward(self, params: Mapping[str, Array], x: Array, mem: Allocator) -> tuple[Array, Context]:
        """x -> y, and what backward needs. Afterwards only y and the context's arrays live. The same again for the same
        x, which stays as it is: recompute calls it twice."""

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


class DividedLoss(ABC):
    """A loss of outputs of which each tensor parallel rank has a part (`layout.tensor`)."""

    @abstractmethod
    def part(self, outputs: Array, targets: Array, mem: Allocator) -> Array:
        """(T, ...), of which this rank's row holds what others must know of its part; an all-gather brings theirs."""

    @abstractmethod
    def forward(self, outputs: Array, targets: Array, parts: Array, mem: Allocator) -> tuple[float, int, Context]:
        """As `Loss.forward`, the same on all ranks. parts: with the rows of all."""

    @abstractmethod
    def backward(self, context: Context, scale: float, mem: Allocator) -> Array:
        """As `Loss.backward`, of this rank's part."""


@final
@dataclass(frozen=True)
class Model:
    """What is trained: `segments` compute those of `spec`, in its order.

    The loss comes after them and has no parameters.
    draw: parameter -> what its values are, described (`nn.init`): a model is described without storage.
    """

    name: str
    spec: ModelSpec
    segments: tuple[Segment, ...]
    draw: Callable[[ParamSpec], Initial] = field(repr=False)

    def __post_init__(self) -> None:
        if len(self.segments) != len(self.spec.segments):
            raise ConfigError(f"model {self.name} has {len(self.segments)} segments, its spec "
                              f"{len(self.spec.segments)}: give one for each")

    def initial(self, name: str, seed: int) -> Array:
        """All float32 values that parameter `name` starts from, in its shape. KeyError for a name that it does not
        have."""
        param = {param.name: param.whole or param for param in self.spec.params}[name]
        values = np.empty(param.numel, np.float32)
        for span in spans(param.numel, DRAW_BLOCK):
            self.fill(param, seed, span.start, values[span], Uncounted())
        return values.reshape(param.shape)

    def fill(self, param: ParamSpec, seed: int, begin: int, out: Array, mem: Allocator) -> None:
        """The values of a parameter from element `begin` on into `out` (n,) float32: as `initial` has them, and no
        others. n is at most `DRAW_BLOCK`, or temporary arrays grow with it. ConfigError where `draw` gives no
        `Initial`."""
        drawn = self.draw(param)
        if not isinstance(drawn, Initial):
            raise ConfigError(f"model {self.name}: draw gave a {type(drawn).__name__} for parameter {param.name}: "
                              "return how it is drawn, such as Normal(std) or Constant(0) of mpizero.nn.init")
        drawn.fill(seed, param.name, begin, out, mem)
