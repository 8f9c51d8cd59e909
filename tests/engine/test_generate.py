"""How the next token is chosen."""

from __future__ import annotations

import numpy as np
import pytest

from mpizero.engine.generate import generate, pick
from mpizero.errors import ConfigError

LOGITS = np.log([0.1, 0.4, 0.2, 0.3])
ORDER = (1, 3, 2, 0)  # by likelihood, in which a draw runs through them


def chosen(draws, temperature=1.0, top_k=None, logits=LOGITS):
    return [pick(logits, temperature, top_k, draw) for draw in draws]


def test_likelihoods():
    """A draw from 0 to 1 falls into each token's share: 0.4, 0.3, 0.2, 0.1."""
    assert chosen([0.0, 0.399, 0.401, 0.699, 0.701, 0.899, 0.901, 1 - 2.0**-53]) == [1, 1, 3, 3, 2, 2, 0, 0]


@pytest.mark.parametrize("temperature", [0.25, 2.0])
def test_temperature(temperature):
    """Shares to the power of 1 / temperature, by their own formula."""
    shares = np.array([0.4, 0.3, 0.2, 0.1]) ** (1 / temperature)
    edges = np.cumsum(shares / shares.sum())[:3]
    assert chosen(edges - 1e-9, temperature) == [*ORDER[:3]] and chosen(edges + 1e-9, temperature) == [*ORDER[1:]]


def test_the_likeliest():
    draws = np.linspace(0, 0.999, 7)
    assert chosen(draws, temperature=0) == chosen(draws, top_k=1) == chosen(draws, temperature=1e-300) == [1] * 7
    assert pick(np.array([1.0, 2.0, 2.0]), 0, None, 0.9) == 1  # of equal ones the first


def test_top_k():
    """0.4 and 0.3 of 0.7."""
    assert chosen([0.0, 0.571, 0.572, 0.999], top_k=2) == [1, 1, 3, 3]
    assert chosen([0.999], top_k=9) == [0]
    assert {pick(np.zeros(5), 1.0, 2, draw) for draw in np.linspace(0, 0.99, 9)} == {0, 1}


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_logits_that_are_not_finite(wrong):
    with pytest.raises(ConfigError, match="the model's logits are not finite"):
        pick(np.array([0.0, wrong]), 0, None, 0.5)


def test_a_new_draw_for_each_token(monkeypatch):
    """Of a model to which all tokens are alike: shares near 1/8, other tokens for another seed, and token i a function
    of the seed and i alone."""
    monkeypatch.setattr("mpizero.engine.generate.outputs", lambda job, seen: np.zeros((1, seen.size, 8), np.float32))

    def written(count, **more):
        return list(generate(None, [1], count, context=3, **more))

    tokens = written(4000)
    assert np.abs(np.bincount(tokens, minlength=8) / 4000 - 1 / 8).max() < 0.02  # 4 standard deviations
    assert np.abs(np.corrcoef(tokens[:-1], tokens[1:])[0, 1]) < 0.05
    assert written(9) == tokens[:9] != written(9, seed=1)
