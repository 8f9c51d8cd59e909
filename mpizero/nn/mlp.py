"""A multi-layer perceptron: Linear, ReLU, Linear, ..., Linear.

Legend: n samples, K features in, M features out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import final

from mpizero.errors import DataError
from mpizero.layout.models import MLPSizes, mlp_spec
from mpizero.layout.spec import ParamSpec, SegmentSpec
from mpizero.memory.kinds import ACTIVATION
from mpizero.memory.ledger import Allocator
from mpizero.nn.functional import linear, linear_backward, linear_backward_params, relu, relu_backward
from mpizero.nn.init import Constant, Initial, he_normal
from mpizero.nn.model import Model, Segment
from mpizero.nn.ops.blocks import Array, Context
from mpizero.nn.ops.casts import cast
from mpizero.nn.ops.gradients import Gradients


@final
class LinearSegment(Segment):
    """y = x @ weight + bias, then ReLU except in the last layer."""

    def __init__(self, spec: SegmentSpec, first: bool, last: bool):
        self.name, self.params = spec.name, spec.params
        self.first, self.last = first, last

    def forward(self, params: Mapping[str, Array], x: Array, mem: Allocator) -> tuple[Array, Context]:
        weight, bias = (params[name] for name in self.params)  # (K,M), (M,)
        if self.first:
            x = _stored(x, weight, mem)
        y = linear(x, weight, bias, mem)  # x (n,K) -> y (n,M)
        return (y, (x,)) if self.last else (relu(y), (x, y))

    def backward(self, params: Mapping[str, Array], context: Context, dy: Array, grads: Gradients,
                 mem: Allocator) -> Array | None:
        x = context[0]  # (n,K)
        if not self.last:
            dy = relu_backward(context[1], dy, mem)  # relu(y) (n,M)
        del context
        if not self.first:
            return linear_backward(x, dy, params, self.name, grads, mem)  # y = linear(x, weight, bias)
        linear_backward_params(x, dy, self.name, grads, mem)
        return None


def _stored(x: Array, weight: Array, mem: Allocator) -> Array:
    """Data in the dtype of the parameters."""
    if x.shape[1:] != weight.shape[:1]:
        raise DataError(f"the data's samples have the shape {x.shape[1:]}, but the model reads {len(weight)} features: "
                        "give it other data, or a model with as many inputs")
    if x.dtype == weight.dtype:
        return x
    stored = mem.empty(x.shape, weight.dtype, ACTIVATION)
    cast(x, stored, mem)
    return stored


def mlp(hidden: int = MLPSizes.hidden, layers: int = MLPSizes.layers, inputs: int = MLPSizes.inputs,
        classes: int = MLPSizes.classes) -> Model:
    """The MLP of these `MLPSizes`; names and shapes are those of `mlp_spec`."""
    spec = mlp_spec(MLPSizes(hidden, layers, inputs, classes))
    segments = [LinearSegment(segment, first=i == 0, last=i == layers - 1) for i, segment in enumerate(spec.segments)]
    return Model("mlp", spec, tuple(segments), _draw)


def _draw(param: ParamSpec) -> Initial:
    return Constant(0) if param.name.endswith(".bias") else he_normal(param)
