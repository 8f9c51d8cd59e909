"""Whole models.

Central differences, GPT-2 against a plain reference, ties, causality, ignored targets, placement of parameters.
"""

from __future__ import annotations

import numpy as np
import pytest

from mpizero.errors import ConfigError
from mpizero.layout.models import MLPSizes, gpt_spec, mlp_spec
from mpizero.memory.ledger import Ledger
from mpizero.nn.functional import cross_entropy, cross_entropy_backward
from mpizero.nn.gpt import GPTConfig, gpt
from mpizero.nn.ops.gradients import Gradients
from mpizero.nn.mlp import mlp
from mpizero.nn.model import Model
from tests.nn.helpers import (
    MEM,
    assert_gradient,
    forward,
    loss_and_gradients,
    mean_loss,
    parameters,
)

SMALL = GPTConfig(layers=2, d_model=6, heads=3, context=5, vocab=7)
UNTIED = GPTConfig(layers=1, d_model=4, heads=2, context=4, vocab=5, tied=False)


def text(config, batch=3, tokens=None, seed=0):
    """Tokens and targets, one target in four ignored."""
    rng = np.random.default_rng(seed)
    shape = (batch, tokens or config.context)
    targets = rng.integers(0, config.vocab, shape)
    targets[rng.random(shape) < 0.25] = -1
    return rng.integers(0, config.vocab, shape), targets


# -- what it is made of -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model,spec", [(mlp(), mlp_spec()), (mlp(5, 1, 4, 3), mlp_spec(MLPSizes(5, 1, 4, 3))),
                                        (gpt(SMALL), gpt_spec(SMALL)), (gpt(UNTIED), gpt_spec(UNTIED))],
                         ids=["mlp", "one linear", "tied", "untied"])
def test_a_model_is_its_spec(model, spec):
    """Names and shapes are those of layout.models, and each of its segments is computed."""
    assert (model.spec.params, model.spec.segments) == (spec.params, spec.segments)
    assert len(model.segments) == len(spec.segments)
    for segment, facts in zip(model.segments, spec.segments, strict=True):
        assert getattr(segment, "name", facts.name) == facts.name
        assert getattr(segment, "params", facts.params) == facts.params


def test_a_segment_for_each():
    model = mlp(5, 3, 4, 3)
    with pytest.raises(ConfigError, match="model mlp has 2 segments, its spec 3: give one for each"):
        Model("mlp", model.spec, model.segments[:2], model.draw)


# -- gradients --------------------------------------------------------------------------------------------------------


def check_all_parameters(model, x, targets):
    params = parameters(model)
    loss, views = loss_and_gradients(model, params, x, targets)
    assert loss == mean_loss(model, params, x, targets)
    for name, value in params.items():
        assert_gradient(lambda: mean_loss(model, params, x, targets), value, views[name])


@pytest.mark.parametrize("layers", [1, 2, 4])
def test_mlp_gradients(layers):
    rng = np.random.default_rng(3)
    check_all_parameters(mlp(5, layers, 4, 3), rng.standard_normal((6, 4)), rng.integers(0, 3, 6))


@pytest.mark.parametrize("config", [SMALL, UNTIED], ids=["tied", "untied"])
def test_gpt_gradients(config):
    check_all_parameters(gpt(config), *text(config))


def test_gpt_gradients_of_a_short_row():
    """Fewer tokens than the context: the other positions have gradient 0."""
    x, targets = text(SMALL, tokens=3)
    _, views = loss_and_gradients(gpt(SMALL), parameters(gpt(SMALL)), x, targets)
    assert views["wpe.weight"][:3].all() and not views["wpe.weight"][3:].any()


def test_mlp_gradient_of_the_input():
    """All layers but the first hand on dx; the first one's input is data."""
    model, rng = mlp(5, 3, 4, 3), np.random.default_rng(0)
    params, x, targets = parameters(model), rng.standard_normal((6, 5)), rng.integers(0, 3, 6)
    inner = model.segments[1:]

    def f():
        y = x
        for segment in inner:
            y, _ = segment.forward(params, y, MEM)
        return cross_entropy(y, targets, MEM)[0]

    y, contexts = x, []
    for segment in inner:
        y, context = segment.forward(params, y, MEM)
        contexts.append(context)
    dy = cross_entropy_backward(cross_entropy(y, targets, MEM)[2], 1.0, MEM)
    grads = Gradients({name: np.empty_like(value) for name, value in params.items()}, set())
    for segment in reversed(inner):
        dy = segment.backward(params, contexts.pop(), dy, grads, MEM)
    assert_gradient(f, x, dy)
    context = model.segments[0].forward(params, rng.standard_normal((6, 4)), MEM)[1]
    assert model.segments[0].backward(params, context, dy, grads, MEM) is None


def test_two_microbatches_add():
    model = gpt(SMALL)
    params, (x, targets) = parameters(model), text(SMALL)
    _, once = loss_and_gradients(model, params, x, targets)
    views, written = {name: np.full_like(value, np.nan) for name, value in params.items()}, set()
    for _ in range(2):
        y, contexts = forward(model, params, x)
        _, count, context = cross_entropy(y, targets, MEM)
        dy = cross_entropy_backward(context, 1 / count, MEM)
        for segment in reversed(model.segments):
            dy = segment.backward(params, contexts.pop(), dy, Gradients(views, written), MEM)
    assert written == set(params)
    for name, view in views.items():
        np.testing.assert_allclose(view, 2 * once[name], rtol=1e-12, atol=1e-15)


def test_tied_gradient_is_the_sum_of_both_uses():
    tied, untied = gpt(SMALL), gpt(GPTConfig(**{**vars(SMALL), "tied": False}))
    params, (x, targets) = parameters(tied), text(SMALL)
    _, views = loss_and_gradients(tied, params, x, targets)
    _, both = loss_and_gradients(untied, {**params, "lm_head.weight": params["wte.weight"]}, x, targets)
    assert both["lm_head.weight"].any() and both["wte.weight"].any()
    np.testing.assert_allclose(views["wte.weight"], both["wte.weight"] + both["lm_head.weight"], rtol=1e-12, atol=1e-15)


# -- a plain GPT-2 ----------------------------------------------------------------------------------------------------


def plain_gpt2(params, tokens, layers, heads):
    """Logits of one row of tokens (T,), written from the paper's formulas in float64."""

    def norm(x, name):
        centred = x - x.mean(-1, keepdims=True)
        centred /= np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
        return centred * params[name + ".weight"] + params[name + ".bias"]

    def affine(x, name):
        return x @ params[name + ".weight"] + params[name + ".bias"]

    x = params["wte.weight"][tokens] + params["wpe.weight"][: len(tokens)]
    for layer in (f"h.{i}" for i in range(layers)):
        q, k, v = np.split(affine(norm(x, layer + ".ln_1"), layer + ".attn.c_attn"), 3, axis=1)
        outputs = []
        for qh, kh, vh in zip(*(np.split(part, heads, axis=1) for part in (q, k, v)), strict=True):
            weights = np.tril(np.exp(qh @ kh.T / np.sqrt(qh.shape[1])))
            outputs.append(weights / weights.sum(1, keepdims=True) @ vh)
        x = x + affine(np.concatenate(outputs, axis=1), layer + ".attn.c_proj")
        u = affine(norm(x, layer + ".ln_2"), layer + ".mlp.c_fc")
        x = x + affine(0.5 * u * (1 + np.tanh(np.sqrt(2 / np.pi) * (u + 0.044715 * u**3))), layer + ".mlp.c_proj")
    return norm(x, "ln_f") @ params["wte.weight"].T


def test_gpt_equals_plain_gpt2():
    model, (x, _) = gpt(SMALL), text(SMALL)
    params = parameters(model)
    y, _ = forward(model, params, x)
    for row, logits in zip(x, y, strict=True):
        np.testing.assert_allclose(logits, plain_gpt2(params, row, SMALL.layers, SMALL.heads), rtol=1e-11, atol=1e-12)


# -- behaviour --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_future_tokens_do_not_change_past_logits(dtype):
    model, (x, _) = gpt(SMALL), text(SMALL)
    params = parameters(model, dtype)
    before, _ = forward(model, params, x)
    other = x.copy()
    other[:, 3] = (other[:, 3] + 1) % SMALL.vocab
    after, _ = forward(model, params, other)
    assert np.array_equal(after[:, :3], before[:, :3]) and not np.array_equal(after[:, 3:], before[:, 3:])


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_all_targets_ignored(dtype):
    model, (x, targets) = gpt(SMALL), text(SMALL)
    loss, views = loss_and_gradients(model, parameters(model, dtype), x, np.full_like(targets, -1))
    assert loss == 0 and not any(view.any() for view in views.values())


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_empty_batch(dtype):
    for model, x, targets in ((mlp(), np.empty((0, 32), np.float32), np.empty(0, np.int64)),
                              (gpt(SMALL), np.empty((0, 5), np.int64), np.empty((0, 5), np.int64))):  # fmt: skip
        params = parameters(model, dtype)
        y, _ = forward(model, params, x)
        assert y.shape[0] == 0 and y.dtype == dtype
        loss, views = loss_and_gradients(model, params, x, targets)
        assert loss == 0 and not any(view.any() for view in views.values())


def laid_out(params, offset):
    """Views of the parameters in one flat buffer, one after the other from `offset` on, as in a FlatParameter."""
    flat = np.zeros(offset + sum(value.size for value in params.values()), next(iter(params.values())).dtype)
    views, start = {}, offset
    for name, value in params.items():
        views[name] = flat[start : start + value.size].reshape(value.shape)
        views[name][...] = value
        start += value.size
    return views


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_results_do_not_depend_on_where_parameters_lie(dtype):
    """Any alignment of parameter and gradient views: equal bits. Sizes odd, and large enough for every BLAS kernel."""
    config = GPTConfig(layers=1, d_model=66, heads=3, context=37, vocab=83)
    samples = np.random.default_rng(0).standard_normal((19, 33), np.float32)
    for model, x, targets in ((gpt(config), *text(config, batch=4)), (mlp(97, 3, 33, 17), samples, np.arange(19) % 17)):
        params = parameters(model, dtype)
        loss, views = loss_and_gradients(model, params, x, targets)
        for offset in (1, 2, 3, 5, 8, 13):
            again, moved = loss_and_gradients(model, laid_out(params, offset), x, targets,
                                              views=laid_out(params, offset + 1))
            assert again == loss
            assert all(np.array_equal(moved[name], views[name]) for name in params)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_results_do_not_depend_on_the_allocator(dtype):
    """A ledger that fills new buffers with NaN changes no bit: nothing is read before it is written."""
    for model, x, targets in ((gpt(SMALL), *text(SMALL)), (mlp(), np.ones((3, 32), np.float32), np.arange(3))):
        params = parameters(model, dtype)
        loss, views = loss_and_gradients(model, params, x, targets)
        again, poisoned = loss_and_gradients(model, params, x, targets, mem=Ledger(debug=True))
        assert again == loss and all(np.array_equal(poisoned[name], views[name]) for name in params)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_parameters_and_contexts_of_others_are_only_read(dtype):
    """Backward consumes its own context, never the parameters, x or dy of its neighbours."""
    model, (x, targets) = gpt(SMALL), text(SMALL)
    params = parameters(model, dtype)
    for value in params.values():
        value.flags.writeable = False
    y, contexts = forward(model, params, x)
    _, count, context = cross_entropy(y, targets, MEM)
    dy = cross_entropy_backward(context, 1 / count, MEM)
    grads = Gradients({name: np.empty_like(value) for name, value in params.items()}, set())
    for segment in reversed(model.segments):
        dy.flags.writeable = False
        dy = segment.backward(params, contexts.pop(), dy, grads, MEM)
