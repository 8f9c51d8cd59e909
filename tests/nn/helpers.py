"""What the tests of mpizero.nn share: central differences, and a whole forward and backward pass."""

from __future__ import annotations

import numpy as np

from mpizero.memory.ledger import Uncounted
from mpizero.nn.functional import cross_entropy, cross_entropy_backward
from mpizero.nn.ops.gradients import Gradients

MEM = Uncounted()

# float64: with step h = 1e-5 the truncation error is h^2 f'''/6 = 2e-11 f''', the rounding error 1e-16 f / h = 1e-11 f;
# values here are of order 1 to 100. A wrong term shows as an error of order 1e-2 or more.
STEP = 1e-5
TOLERANCE = 1e-7


def numeric_gradient(f, array):
    """d f() / d array by central differences; f reads `array`, which is changed in place."""
    gradient = np.empty(array.shape)
    for i in range(array.size):
        held = array.flat[i]
        array.flat[i] = held + STEP
        above = f()
        array.flat[i] = held - STEP
        below = f()
        array.flat[i] = held
        gradient.flat[i] = (above - below) / (2 * STEP)
    return gradient


def assert_gradient(f, array, gradient):
    """`gradient` is that of f by `array`, float64."""
    assert array.dtype == gradient.dtype == np.float64
    np.testing.assert_allclose(gradient, numeric_gradient(f, array), rtol=TOLERANCE, atol=TOLERANCE)


def sink(**shapes):
    """Gradients over float64 views filled with NaN, so that a missing store shows; and the views."""
    views = {name: np.full(shape, np.nan) for name, shape in shapes.items()}
    return Gradients(views, set()), views


def parameters(model, dtype=np.float64, seed=1, noise=0.1):
    """Initial values plus noise, so that biases and norms are not at their special values; part by part."""
    rng = np.random.default_rng(seed)
    wholes = {p.name: p.whole or p for p in model.spec.params}
    drawn = {name: model.initial(name, seed) + noise * rng.standard_normal(p.shape) for name, p in wholes.items()}
    return {piece.name: part_of(piece, drawn[param.name]).astype(np.float32).astype(dtype)
            for param in model.spec.params for piece in param.cut()}


def part_of(param, whole):
    """The elements that a tile or part of a parameter has, in its shape."""
    runs = [whole.reshape(-1)[begin:begin + count] for where in param.elements(0, param.numel)
            for _, begin, count in where.runs()]
    return np.concatenate(runs).reshape(param.shape)


def forward(model, params, x, mem=MEM):
    """(y, contexts)."""
    contexts = []
    for segment in model.segments:
        x, context = segment.forward(params, x, mem)
        contexts.append(context)
    return x, contexts


def backward(model, params, contexts, dy, grads, mem=MEM):
    for segment in reversed(model.segments):
        dy = segment.backward(params, contexts.pop(), dy, grads, mem)
    return dy


def mean_loss(model, params, x, targets, mem=MEM):
    y, _ = forward(model, params, x, mem)
    total, count, _ = cross_entropy(y, targets, mem)
    return total / max(count, 1)


def loss_and_gradients(model, params, x, targets, mem=MEM, views=None, scale=1.0):
    """Mean loss, and the gradients of scale * it as {name: array}; into `views` if given.

    Drops everything as early as the engine does.
    """
    y, contexts = forward(model, params, x, mem)
    total, count, context = cross_entropy(y, targets, mem)
    del y
    dy = cross_entropy_backward(context, scale / max(count, 1), mem)
    del context
    if views is None:
        views = {name: np.full_like(value, np.nan) for name, value in params.items()}
    assert backward(model, params, contexts, dy, Gradients(views, set()), mem) is None
    return total / max(count, 1), views
