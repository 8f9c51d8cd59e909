"""A computation in several parts, each a segment of its own, so that each may find other parameters gathered.

It is a generator, which waits at every `yield` for a part to begin. What is between two segments then is the generator
itself, with all that it holds: `Part`, the segment, hands it parameters and a sink, lets it go on, and takes them back.
A computation keeps no reference to them over a `yield`, or they would live on.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Mapping
from typing import Any, TypeVar, final

from mpizero.memory.ledger import Allocator
from mpizero.nn.model import Segment
from mpizero.nn.ops.blocks import Array, Context
from mpizero.nn.ops.gradients import Gradients

T = TypeVar("T")
Parts = Generator[None, None, T]


@final
class Hand:
    """What the part that runs may use: parameters, and where their gradients go."""

    params: Mapping[str, Array]
    grads: Gradients


class InParts(ABC):
    """How such a computation runs. Both ways have as many parts, in reverse."""

    @abstractmethod
    def forward(self, hand: Hand, x: Array, mem: Allocator) -> Parts[tuple[Array, Context]]:
        """As `Segment.forward`. What stands before the first `yield` belongs to the first part."""

    @abstractmethod
    def backward(self, hand: Hand, context: Context, dy: Array, mem: Allocator) -> Parts[Array | None]:
        """As `Segment.backward`."""


@final
class Part(Segment):
    """One part: of the first the input is x, of the last the output y; between them it is a `_Running`."""

    def __init__(self, whole: InParts, first: bool, last: bool):
        self.whole, self.first, self.last = whole, first, last

    def forward(self, params: Mapping[str, Array], x: Any, mem: Allocator) -> tuple[Any, Context]:
        hand = Hand()
        running = _Running(hand, self.whole.forward(hand, x, mem)) if self.first else x
        del x
        result = running.go_on(params)
        return result if self.last else (running, ())

    def backward(self, params: Mapping[str, Array], context: Context, dy: Any, grads: Gradients,
                 mem: Allocator) -> Any:
        hand = Hand()
        running = _Running(hand, self.whole.backward(hand, context, dy, mem)) if self.last else dy
        del context, dy
        result = running.go_on(params, grads)
        return result if self.first else running


@final
class _Running:
    """A computation that has begun, or shall."""

    def __init__(self, hand: Hand, parts: Parts[Any]):
        self.hand, self.parts, self.begun = hand, parts, False

    def go_on(self, params: Mapping[str, Array], grads: Gradients | None = None) -> Any:
        """Run the next part. What all of them come to, after the last."""
        self.hand.params = params
        if grads is not None:
            self.hand.grads = grads
        try:
            if not self.begun:
                self.begun = True
                next(self.parts)  # up to the first `yield`
            next(self.parts)
        except StopIteration as end:
            return end.value
        finally:
            vars(self.hand).clear()
        return None


def parts_of(whole: InParts, count: int) -> list[Part]:
    """The segments of a computation."""
    return [Part(whole, index == 0, index == count - 1) for index in range(count)]
