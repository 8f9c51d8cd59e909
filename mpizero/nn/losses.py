"""Losses as a task names them."""

from __future__ import annotations

from typing import final

from mpizero.memory.ledger import Allocator
from mpizero.nn.functional import cross_entropy, cross_entropy_backward
from mpizero.nn.model import Loss
from mpizero.nn.ops.blocks import Array, Context


@final
class CrossEntropy(Loss):
    """-log p[target] over the last axis of the logits; a target below 0 does not count."""

    def forward(self, outputs: Array, targets: Array, mem: Allocator) -> tuple[float, int, Context]:
        return cross_entropy(outputs, targets, mem)

    def backward(self, context: Context, scale: float, mem: Allocator) -> Array:
        return cross_entropy_backward(context, scale, mem)
