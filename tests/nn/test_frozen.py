"""Operators meet frozen parameters: what goes on is the same, and nothing is added for them."""

from __future__ import annotations

import numpy as np
import pytest

from mpizero.errors import ConfigError
from mpizero.nn.gpt import GPTConfig, gpt
from mpizero.nn.mlp import mlp
from mpizero.nn.ops.gradients import Gradients
from tests.nn.helpers import MEM, forward, parameters

RNG = np.random.default_rng(0)


def both(model, x, frozen):
    """dx and gradients of each segment, without frozen parameters and with."""
    found = []
    params = parameters(model)
    for names in ((), frozen):
        y, contexts = forward(model, params, x.copy())
        shapes = {param.name: param.shape for param in model.spec.params}
        views = {name: np.full(shape, np.nan) for name, shape in shapes.items() if name not in names}
        grads = Gradients(views, set(), {name: shapes[name] for name in names})
        dy, flows = np.linspace(-1, 1, y.size).reshape(y.shape), []
        for segment, context in zip(reversed(model.segments), reversed(contexts), strict=True):
            dy = segment.backward(params, context, dy, grads, MEM)
            flows.append(None if dy is None else dy.copy())
        found.append((flows, views))
    return found


GPT = GPTConfig(layers=1, d_model=4, heads=2, context=5, vocab=7)
CASES = [(mlp(hidden=3), RNG.standard_normal((4, 32))), (gpt(GPT), RNG.integers(0, 7, (2, 5)))]


@pytest.mark.parametrize(("model", "x"), CASES, ids=["mlp", "gpt"])
def test_each_parameter_can_be_frozen_alone_and_all_others_are_as_before(model, x):
    names = [param.name for param in model.spec.params]
    for frozen in [*([name] for name in names), names[:2], names]:
        (flows, views), (other_flows, other_views) = both(model, x, frozen)
        for here, there in zip(flows, other_flows, strict=True):
            assert np.array_equal(here, there)
        assert set(other_views) == set(names) - set(frozen)
        assert all(np.array_equal(views[name], view) for name, view in other_views.items())


def test_a_sink_that_wants_no_gradient():
    grads = Gradients({"b": np.full(2, np.nan)}, set(), {"a": (2,)})
    assert [grads.wants("a"), grads.wants("b"), grads.wants("a", "b")] == [False, True, True]
    grads.add("a", np.ones(2))
    grads.add_matmul("a", np.ones((2, 1)), np.ones((1, 2)), MEM)
    assert grads.zeroed("a").shape == (2,) and not grads.zeroed("a").any() and grads.written == set()
    with pytest.raises(ConfigError, match=r"shape \(3,\) was added for parameter a, whose shape is \(2,\)"):
        grads.add("a", np.ones(3))
