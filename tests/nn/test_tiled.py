"""A linear layer tile by tile: the whole product to rounding, within the stated bound; gradients are exact."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpizero.layout.spec import tile_rows
from mpizero.nn.gpt import GPTConfig, gpt
from mpizero.nn.mlp import mlp
from mpizero.nn.ops.linear import linear
from mpizero.nn.ops.tiled import linear_tile, tiles_of
from tests.nn.helpers import MEM, loss_and_gradients, parameters

RNG = np.random.default_rng(0)
CONFIG = GPTConfig(layers=2, d_model=6, heads=2, context=5, vocab=11)
TOKENS = RNG.integers(0, 11, (2, 2, 5))
U = 2.0**-24


def tiled(x, weight, bias, residual, count):
    y = np.full((len(x), weight.shape[1]), np.nan, x.dtype)
    for tile in tiles_of("l", len(weight), count):
        params = {"l.bias": bias, tile.weight: weight[tile.rows]}
        linear_tile(x[:, tile.rows], tile, params, MEM, y, residual)
    return y


@pytest.mark.parametrize("count", [1, 2, 7, 64])
@given(st.integers(64, 300), st.integers(0, 2**32))
@settings(max_examples=20)
def test_float32_is_within_the_stated_bound(count, k, seed):
    """2 (K + 2) u (|x| @ |weight| + |bias| + |residual|) of the whole product, and half of that of the true one."""
    rng = np.random.default_rng(seed)
    x, weight, bias, residual = (rng.standard_normal(shape, np.float32) * 10.0**rng.integers(-3, 4)
                                 for shape in ((5, k), (k, 4), (4,), (5, 4)))
    x, weight, bias, residual = (each.astype(np.float32) for each in (x, weight, bias, residual))
    y = tiled(x, weight, bias, residual, count)
    wide = [each.astype(np.float64) for each in (x, weight, bias, residual)]
    true = wide[0] @ wide[1] + wide[2] + wide[3]
    size = abs(wide[0]) @ abs(wide[1]) + abs(wide[2]) + abs(wide[3])
    bound = (k + 2) * U * size * (1 + 1e-3)
    assert (abs(y - true) <= bound).all()
    assert (abs(y.astype(np.float64) - linear(x, weight, bias, MEM, residual)) <= 2 * bound).all()


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_one_tile_is_the_whole_layer(dtype):
    x, weight, bias, residual = (RNG.standard_normal(shape).astype(dtype) for shape in ((9, 8), (8, 5), (5,), (9, 5)))
    assert np.array_equal(tiled(x, weight, bias, residual, 1), linear(x, weight, bias, MEM, residual))


@pytest.mark.parametrize("count", [2, 5])
def test_16_bits_are_rounded_once_a_tile(count):
    """Half a unit in the last place of each partial sum."""
    x, weight = (RNG.standard_normal(shape).astype(np.float16) for shape in ((6, 40), (40, 3)))
    zero = np.zeros(3, np.float16)
    wide = x.astype(np.float64), weight.astype(np.float64)
    off = abs(tiled(x, weight, zero, None, count) - wide[0] @ wide[1])
    assert (off <= count * 2.0**-11 * 1.01 * (abs(wide[0]) @ abs(wide[1]))).all() and off.any()


@pytest.mark.parametrize("make, x, targets", [
    (lambda tiles: gpt(CONFIG, tiles), *TOKENS),
    (lambda tiles: mlp(7, 3, 6, 4, tiles), RNG.standard_normal((5, 6)), np.arange(5) % 4),
    (lambda tiles: mlp(7, 1, 6, 4, tiles), RNG.standard_normal((5, 6)), np.arange(5) % 4)],
    ids=["gpt", "mlp", "linear"])
@pytest.mark.parametrize("count", [2, 4, 6])
def test_a_model_has_the_gradients_of_the_whole_one(make, x, targets, count):
    """In float64, where rounding is far below; those of one are held against differences in test_models."""
    losses, gradients = [], []
    for model in (make(1), make(count)):
        loss, views = loss_and_gradients(model, parameters(model), x, targets)
        losses.append(loss)
        gradients.append(np.concatenate([views[piece.name].reshape(-1) for piece in model.spec.pieces]))
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-13)
    np.testing.assert_allclose(gradients[1], gradients[0], rtol=1e-10, atol=1e-14)


@given(st.integers(1, 100), st.data())
def test_rows_are_dealt_evenly(rows, data):
    parts = tile_rows(rows, data.draw(st.integers(1, rows)))
    assert [row for part in parts for row in range(rows)[part]] == list(range(rows))
    sizes = [part.stop - part.start for part in parts]
    assert max(sizes) - min(sizes) <= 1
