"""A multi-layer perceptron: Linear, ReLU, Linear, ..., Linear.

Legend: n samples, K features in, M features out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import final

import numpy as np

from mpizero.errors import DataError
from mpizero.layout.models import MLPSizes, mlp_spec
from mpizero.layout.spec import ParamSpec, SegmentSpec
from mpizero.layout.tensor import TensorPlace
from mpizero.memory.kinds import ACTIVATION
from mpizero.memory.ledger import Allocator
from mpizero.nn.functional import linear, linear_backward, linear_backward_params, relu, relu_backward
from mpizero.nn.init import Constant, Initial, he_normal
from mpizero.nn.model import Model, Segment
from mpizero.nn.ops.blocks import Array, Context
from mpizero.nn.ops.casts import cast
from mpizero.nn.ops.gradients import Gradients
from mpizero.nn.ops.tiled import linear_tile, linear_tile_backward, tiles_of
from mpizero.nn.parts import Hand, InParts, Parts, parts_of


@final
class LinearSegment(Segment):
    """y = x @ weight + bias, then ReLU except in the last layer."""

    def __init__(self, spec: SegmentSpec, first: bool, last: bool):
        self.name, self.params = spec.name, spec.params
        self.first, self.last = first, last

    def forward(self, params: Mapping[str, Array], x: Array, mem: Allocator) -> tuple[Array, Context]:
        weight, bias = (params[name] for name in self.params)  # (K,M), (M,)
        if self.first:
            x = _stored(x, len(weight), weight.dtype, mem)
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


@final
class DividedLinear(Segment):
    """What a tensor parallel rank computes of it: of the even ones columns, after a ReLU of x, which is a sum; of the
    odd ones rows, whose y is a summand. See `layout.tensor`."""

    def __init__(self, spec: SegmentSpec, index: int, last: bool, place: TensorPlace):
        self.name, self.params, self.first = spec.name, spec.params, index == 0
        self.by_columns, self.relu = index % 2 == 0, index % 2 == 0 and not last
        self.adds = self.by_columns or place.adds

    def forward(self, params: Mapping[str, Array], x: Array, mem: Allocator) -> tuple[Array, Context]:
        weight, bias = (params[name] for name in self.params)  # (K,M), (M,)
        if self.first:
            x = _stored(x, len(weight), weight.dtype, mem)
        elif self.by_columns:
            relu(x)  # once more changes nothing
        y = linear(x, weight, bias if self.adds else None, mem)  # x (n,K) -> y (n,M)
        return (relu(y), (x, y)) if self.relu else (y, (x,))

    def backward(self, params: Mapping[str, Array], context: Context, dy: Array, grads: Gradients,
                 mem: Allocator) -> Array | None:
        x = context[0]  # (n,K)
        if self.relu:
            dy = relu_backward(context[1], dy, mem)
        del context
        if self.first:
            linear_backward_params(x, dy, self.name, grads, mem, self.adds)
            return None
        dx = linear_backward(x, dy, params, self.name, grads, mem, self.adds)
        return relu_backward(x, dx, mem) if self.by_columns else dx


@final
class TiledLinear(InParts):
    """The same, a tile of the weight at a time."""

    def __init__(self, name: str, fan_in: int, tiles: int, first: bool, last: bool):
        self.bias, self.fan_in, self.first, self.last = name + ".bias", fan_in, first, last
        self.tiles = tiles_of(name, fan_in, tiles)

    def forward(self, hand: Hand, x: Array, mem: Allocator) -> Parts[tuple[Array, Context]]:
        if self.first:
            x = _stored(x, self.fan_in, hand.params[self.bias].dtype, mem)
        y = mem.empty((len(x), len(hand.params[self.bias])), x.dtype, ACTIVATION)
        for tile in self.tiles:
            yield
            linear_tile(x[:, tile.rows], tile, hand.params, mem, y)
        return (y, (x,)) if self.last else (relu(y), (x, y))

    def backward(self, hand: Hand, context: Context, dy: Array, mem: Allocator) -> Parts[Array | None]:
        x = context[0]  # (n,K)
        if not self.last:
            dy = relu_backward(context[1], dy, mem)  # relu(y) (n,M)
        del context
        dx = None if self.first else mem.empty(x.shape, x.dtype, ACTIVATION)
        for tile in reversed(self.tiles):
            yield
            linear_tile_backward(x[:, tile.rows], dy, tile, hand.params, hand.grads, mem,
                                 None if dx is None else dx[:, tile.rows])
        return dx


def _stored(x: Array, features: int, dtype: np.dtype, mem: Allocator) -> Array:
    """Data in the dtype of the parameters."""
    if x.shape[1:] != (features,):
        raise DataError(f"the data's samples have the shape {x.shape[1:]}, but the model reads {features} features: "
                        "give it other data, or a model with as many inputs")
    if x.dtype == dtype:
        return x
    stored = mem.empty(x.shape, dtype, ACTIVATION)
    cast(x, stored, mem)
    return stored


def mlp(hidden: int | str = MLPSizes.hidden, layers: int = MLPSizes.layers, inputs: int = MLPSizes.inputs,
        classes: int = MLPSizes.classes, tiles: int = 1, place: TensorPlace = TensorPlace()) -> Model:
    """The MLP of these `MLPSizes`; names, shapes, tiles, and what a rank at `place` has of it are those of
    `mlp_spec`."""
    sizes = MLPSizes(hidden, layers, inputs, classes)
    spec, layers = mlp_spec(sizes, tiles, place), sizes.layers
    if place.size > 1:
        return Model("mlp", spec, tuple(DividedLinear(segment, i, i == layers - 1, place)
                                        for i, segment in enumerate(spec.segments)), _draw)
    if tiles == 1:
        whole = [LinearSegment(segment, first=i == 0, last=i == layers - 1) for i, segment in enumerate(spec.segments)]
        return Model("mlp", spec, tuple(whole), _draw)
    parts = [part for i, fan_in in enumerate(sizes.widths[:-1])
             for part in parts_of(TiledLinear(f"layers.{i}", fan_in, tiles, i == 0, i == layers - 1), tiles)]
    return Model("mlp", spec, tuple(parts), _draw)


def _draw(param: ParamSpec) -> Initial:
    return Constant(0) if param.name.endswith(".bias") else he_normal(param)
