"""A multi-layer perceptron: Linear, ReLU, Linear, ..., Linear.

Legend: n samples, K features in, M features out.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

from mpizero.layout.spec import ParamSpec
from mpizero.memory import ACTIVATION, Allocator
from mpizero.nn import init
from mpizero.nn.blocks import Array, Context
from mpizero.nn.casts import cast
from mpizero.nn.functional import (
    linear,
    linear_backward,
    linear_backward_params,
    relu,
    relu_backward,
)
from mpizero.nn.gradients import Gradients
from mpizero.nn.model import Model, Stage, make_model, require_positive, rows_in


class LinearStage(Stage):
    """y = x @ weight + bias, then ReLU except in the last layer. Final."""

    def __init__(self, index: int, inputs: int, outputs: int, last: bool):
        self.name = f"layers.{index}"
        self.params = (f"{self.name}.weight", f"{self.name}.bias")
        self.first, self.last = index == 0, last
        self.inputs, self.outputs = inputs, outputs

    def forward(self, params: Mapping[str, Array], x: Array, mem: Allocator) -> tuple[Array, Context]:
        weight, bias = (params[name] for name in self.params)  # (K,M), (M,)
        if x.dtype != weight.dtype:  # data
            stored = mem.empty(x.shape, weight.dtype, ACTIVATION)
            cast(x, stored, mem)
            x = stored
        y = linear(x, weight, bias, mem)  # x (n,K) -> y (n,M)
        return (y, (x,)) if self.last else (relu(y), (x, y))

    def backward(self, params: Mapping[str, Array], context: Context, dy: Array, grads: Gradients, mem: Allocator) -> Array | None:
        x = context[0]  # (n,K)
        if not self.last:
            dy = relu_backward(context[1], dy, mem)  # relu(y) (n,M)
        del context
        if not self.first:
            return linear_backward(x, dy, params, self.name, grads, mem)  # y = linear(x, weight, bias)
        linear_backward_params(x, dy, self.name, grads, mem)
        return None

    def saved_bytes(self, batch_shape: tuple[int, ...], itemsize: int) -> int:
        data = self.inputs * itemsize if self.first and itemsize != 4 else 0  # x is float32 and is cast
        return rows_in(batch_shape) * (self.outputs * itemsize + data)


def mlp(hidden: int = 96, layers: int = 5, inputs: int = 32, classes: int = 16) -> Model:
    """`layers` Linears of widths inputs -> hidden -> ... -> hidden -> classes, a stage each.

    Parameters layers.I.weight (in, out), layers.I.bias (out,). Raises ConfigError for a size below 1.
    """
    require_positive(hidden=hidden, layers=layers, inputs=inputs, classes=classes)
    widths = [inputs, *[hidden] * (layers - 1), classes]
    params: list[ParamSpec] = []
    stages: list[Stage] = []
    for index, (fan_in, fan_out) in enumerate(pairwise(widths)):
        stage = LinearStage(index, fan_in, fan_out, last=index == layers - 1)
        params += [ParamSpec(stage.params[0], (fan_in, fan_out)), ParamSpec(stage.params[1], (fan_out,))]
        stages.append(stage)
    return make_model("mlp", params, stages, _draw)


def _draw(param: ParamSpec, seed: int) -> Array:
    if param.name.endswith(".bias"):
        return init.constant(param.shape, 0)
    return init.he_normal(seed, param.name, param.shape)
