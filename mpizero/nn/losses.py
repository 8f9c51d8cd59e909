"""Losses as a task names them."""

from __future__ import annotations

from typing import final

from mpizero.layout.tensor import TensorPlace
from mpizero.memory.kinds import ACTIVATION
from mpizero.memory.ledger import Allocator
from mpizero.nn.functional import cross_entropy, cross_entropy_backward, cross_entropy_of_parts, cross_entropy_part
from mpizero.nn.model import DividedLoss, Loss
from mpizero.nn.ops.blocks import Array, Context, compute_dtype


@final
class CrossEntropy(Loss):
    """-log p[target] over the last axis of the logits; a target below 0 does not count."""

    def forward(self, outputs: Array, targets: Array, mem: Allocator) -> tuple[float, int, Context]:
        return cross_entropy(outputs, targets, mem)

    def backward(self, context: Context, scale: float, mem: Allocator) -> Array:
        return cross_entropy_backward(context, scale, mem)


@final
class DividedCrossEntropy(DividedLoss):
    """The same where each of T tensor parallel ranks has logits of as many classes. They tell each other three numbers
    a target, and no logits. Megatron-LM (arXiv:1909.08053), sec. 3."""

    def __init__(self, place: TensorPlace):
        self.place = place

    def part(self, outputs: Array, targets: Array, mem: Allocator) -> Array:
        size, classes = self.place.size, self.place.size * outputs.shape[-1]
        parts = mem.empty((size, 3, targets.size), compute_dtype(outputs.dtype), ACTIVATION)
        cross_entropy_part(outputs, targets, self.place.range(classes)[0], classes, parts[self.place.rank], mem)
        return parts

    def forward(self, outputs: Array, targets: Array, parts: Array, mem: Allocator) -> tuple[float, int, Context]:
        return cross_entropy_of_parts(outputs, targets, parts, mem)

    def backward(self, context: Context, scale: float, mem: Allocator) -> Array:
        classes = self.place.size * context[0].shape[-1]
        return cross_entropy_backward(context, scale, mem, self.place.range(classes)[0])
