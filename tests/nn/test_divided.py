"""What tensor parallel ranks compute comes to what one computes alone: outputs, loss and every gradient, in float64."""

from __future__ import annotations

import numpy as np
import pytest

from mpizero.layout.models import GPTConfig
from mpizero.layout.tensor import TensorPlace
from mpizero.nn.gpt import gpt
from mpizero.nn.losses import CrossEntropy, DividedCrossEntropy
from mpizero.nn.mlp import mlp
from mpizero.nn.ops.gradients import Gradients
from tests.nn.helpers import MEM, loss_and_gradients, parameters, part_of

CONFIG = GPTConfig(layers=2, d_model=12, heads=6, context=5, vocab=30)


def text(rng):
    tokens = rng.integers(0, CONFIG.vocab, (3, 5))
    targets = rng.integers(0, CONFIG.vocab, (3, 5))
    targets[1, 2:] = -1  # does not count
    return tokens, targets


def features(rng):
    return rng.standard_normal((4, 6)), rng.integers(0, 12, 4)


MODELS = {
    "gpt": (lambda place: gpt(CONFIG, place=place), text),
    "untied": (lambda place: gpt(GPTConfig(1, 6, 6, 5, 30, tied=False), place=place), text),
    "mlp": (lambda place: mlp(12, 3, 6, 12, place=place), features),
    "mlp of an even number": (lambda place: mlp(12, 4, 6, 12, place=place), features),
}


def together(models, params, x, targets):
    """The loss as every rank has it, and each rank's gradients of its parts."""
    size, ys, contexts = len(models), [x.copy() for _ in models], [[] for _ in models]
    views = [{name: np.full_like(value, np.nan) for name, value in mine.items()} for mine in params]
    sinks = [Gradients(mine, set()) for mine in views]

    def every(values, summed):
        return [sum(values).copy() for _ in values] if summed else values

    for number, use in enumerate(models[0].spec.segments):
        results = [model.segments[number].forward(mine, y, MEM)
                   for model, mine, y in zip(models, params, ys, strict=True)]
        ys = every([y for y, _ in results], use.sums)
        for kept, (_, context) in zip(contexts, results, strict=True):
            kept.append(context)
    if models[0].spec.divided:
        losses = [DividedCrossEntropy(TensorPlace(rank, size)) for rank in range(size)]
        parts = sum(loss.part(y, targets, MEM) * (np.arange(size) == rank)[:, None, None]
                    for rank, (loss, y) in enumerate(zip(losses, ys, strict=True)))
        found = [loss.forward(y, targets, parts, MEM) for loss, y in zip(losses, ys, strict=True)]
    else:
        losses = [CrossEntropy() for _ in models]
        found = [loss.forward(y, targets, MEM) for loss, y in zip(losses, ys, strict=True)]
    dys = [loss.backward(context, 1 / count, MEM) for loss, (_, count, context) in zip(losses, found, strict=True)]
    for number, use in reversed(list(enumerate(models[0].spec.segments))):
        dys = [model.segments[number].backward(mine, kept.pop(), dy, grads, MEM)
               for model, mine, kept, dy, grads in zip(models, params, contexts, dys, sinks, strict=True)]
        dys = every(dys, use.sums_back and number > 0)
    for mine, grads in zip(views, sinks, strict=True):
        for name in mine.keys() - grads.written:
            mine[name].fill(0)  # as the engine does
    return [total / count for total, count, _ in found], views


@pytest.mark.parametrize("size", [1, 2, 3, 6])
@pytest.mark.parametrize("name", MODELS)
def test_all_together_are_one(name, size):
    make, data = MODELS[name]
    x, targets = data(np.random.default_rng(0))
    whole = make(TensorPlace())
    drawn = parameters(whole)
    models = [make(TensorPlace(rank, size)) for rank in range(size)]
    params = [{param.name: part_of(param, drawn[param.name]) for param in model.spec.params} for model in models]
    losses, views = together(models, params, x, targets)
    loss, gradients = loss_and_gradients(whole, drawn, x.copy(), targets)
    np.testing.assert_allclose(losses, loss, rtol=1e-12)
    for position, param in enumerate(whole.spec.params):
        parts = [model.spec.params[position] for model in models]
        mine = [view[param.name] for view in views]
        if parts[0].copied:
            np.testing.assert_allclose(sum(mine), gradients[param.name], rtol=1e-9, atol=1e-13, err_msg=param.name)
        for part, gradient in zip(parts, mine, strict=True) if not parts[0].copied else ():
            np.testing.assert_allclose(gradient, part_of(part, gradients[param.name]), rtol=1e-9, atol=1e-13,
                                       err_msg=param.name)
