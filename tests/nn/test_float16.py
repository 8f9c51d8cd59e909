"""16-bit parameters: each operator is the float32 computation, rounded once.

NumPy's own 16-bit products are never called.
"""

from __future__ import annotations

import numpy as np
import pytest

from mpizero.dtypes import numpy_dtype
from mpizero.nn import functional as fn
from mpizero.nn.gpt import GPTConfig, gpt
from mpizero.nn.ops.gradients import Gradients
from mpizero.nn.mlp import mlp
from tests.nn.helpers import MEM, loss_and_gradients, parameters


@pytest.fixture(params=["float16", "bfloat16"])
def dtype(request):
    pytest.importorskip("ml_dtypes") if request.param == "bfloat16" else None
    return numpy_dtype(request.param)


def stored(dtype, *shape, seed=0, scale=1.0):
    return (scale * np.random.default_rng(seed).standard_normal(shape)).astype(dtype)


def wide(x):
    return x.astype(np.float32)


def same(result, float32_result):
    """Equal bits after one rounding."""
    assert result.dtype.itemsize == 2 and float32_result.dtype == np.float32
    assert np.array_equal(wide(result), wide(float32_result.astype(result.dtype)), equal_nan=True)


def float16_sink(dtype, **shapes):
    narrow = {name: np.full(shape, np.nan, dtype) for name, shape in shapes.items()}
    full = {name: np.full(shape, np.nan, np.float32) for name, shape in shapes.items()}
    return Gradients(narrow, set()), narrow, Gradients(full, set()), full


@pytest.mark.parametrize("n,k,m", [(7, 5, 3), (64, 96, 96), (512, 128, 384)])
def test_linear(dtype, n, k, m):
    x, w, b, residual, dy = (stored(dtype, *shape, seed=i)
                             for i, shape in enumerate([(n, k), (k, m), (m,), (n, m), (n, m)]))
    same(fn.linear(x, w, b, MEM), fn.linear(wide(x), wide(w), wide(b), MEM))
    same(fn.linear(x, w, b, MEM, residual), fn.linear(wide(x), wide(w), wide(b), MEM, wide(residual)))
    grads, narrow, full_grads, full = float16_sink(dtype, **{"l.weight": (k, m), "l.bias": (m,)})
    params = {"l.weight": w, "l.bias": b}
    for _ in range(2):  # store, then add
        dx = fn.linear_backward(x, dy, params, "l", grads, MEM)
        if full_grads.written:  # the second addition starts from the rounded first one
            for name in full:
                full[name][...] = wide(full[name].astype(dtype))
        wide_params = {name: wide(value) for name, value in params.items()}
        right = fn.linear_backward(wide(x), wide(dy), wide_params, "l", full_grads, MEM)
        same(dx, right)
        for name in narrow:
            same(narrow[name], full[name])


@pytest.mark.parametrize("p,q,r", [(700, 1500, 600), (600, 40, 2100), (9, 600, 2100)])
def test_large_products_are_right_to_one_rounding(dtype, p, q, r):
    """Deep ones, and wide ones, where a tile of a meets several of b.

    Tiles add up in another order than one call of BLAS.

    float32's rounding, 1e-6, may move a value over one 16-bit boundary.
    """
    a, b = stored(dtype, p, q), stored(dtype, q, r, seed=1)
    out = np.empty((p, r), dtype)
    fn.matmul(a, b, out, MEM)
    right = a.astype(np.float64) @ b.astype(np.float64)
    half_step = 2.0**-11 if dtype == np.float16 else 2.0**-8
    assert (np.abs(out.astype(np.float64) - right) <= half_step * np.abs(right) + 1e-3).all()
    assert (wide(out) == wide(right.astype(np.float32).astype(dtype))).mean() > 0.99


def test_relu(dtype):
    x, dy = stored(dtype, 9, 7), stored(dtype, 9, 7, seed=1)
    y = fn.relu(x.copy())
    same(y, np.maximum(wide(x), 0))
    same(fn.relu_backward(y, dy, MEM), fn.relu_backward(wide(y), wide(dy), MEM))


def test_gelu(dtype):
    x, dy = stored(dtype, 300, 200, scale=2), stored(dtype, 300, 200, seed=1)
    same(fn.gelu(x, MEM), fn.gelu(wide(x), MEM))
    for result, right in zip(fn.gelu_backward(x.copy(), dy.copy(), MEM), fn.gelu_backward(wide(x), wide(dy), MEM),
                             strict=True):
        same(result, right)


@pytest.mark.parametrize("residual", [False, True])
def test_layer_norm(dtype, residual):
    x, w, b, dy = (stored(dtype, *shape, seed=i) for i, shape in enumerate([(700, 96), (96,), (96,), (700, 96)]))
    stats = fn.new_stats(len(x), x.dtype, MEM)
    y = fn.layer_norm(x, w, b, stats, MEM)
    right_stats = np.empty_like(stats)
    right = fn.layer_norm(wide(x), wide(w), wide(b), right_stats, MEM)
    same(y, right)
    assert stats.dtype == np.float32 and np.array_equal(stats, right_stats)
    same(fn.layer_norm_again(x, stats, w, b, MEM), right)
    grads, narrow, full_grads, full = float16_sink(dtype, w=(96,), b=(96,))
    add = stored(dtype, 700, 96, seed=8) if residual else None
    dx = fn.layer_norm_backward(x, stats, dy, w, ("w", "b"), grads, MEM, add)
    same(dx, fn.layer_norm_backward(wide(x), stats, wide(dy), wide(w), ("w", "b"), full_grads, MEM,
                                    wide(add) if residual else None))
    for name in narrow:
        same(narrow[name], full[name])


def test_attention(dtype):
    qkv, dy = stored(dtype, 3, 50, 96), stored(dtype, 3, 50, 32, seed=1)
    y, lse = fn.attention(qkv, 4, MEM)
    right, right_lse = fn.attention(wide(qkv), 4, MEM)
    same(y, right)
    assert lse.dtype == np.float32 and np.array_equal(lse, right_lse)
    same(fn.attention_backward(qkv, y, lse, dy, 4, MEM),
         fn.attention_backward(wide(qkv), wide(y), lse, wide(dy), 4, MEM))


@pytest.mark.parametrize("block", [65536, 100], ids=["one block", "many blocks"])
def test_embedding(dtype, block, monkeypatch):
    """A token's gradient is rounded once, however its rows fall into blocks."""
    monkeypatch.setattr("mpizero.layout.sizes.BLOCK", block)
    tokens = np.random.default_rng(0).integers(0, 9, (40, 33))
    wte, wpe, dy = stored(dtype, 9, 24), stored(dtype, 33, 24, seed=1), stored(dtype, 40, 33, 24, seed=2)
    same(fn.embedding(tokens, wte, wpe, MEM), fn.embedding(tokens, wide(wte), wide(wpe), MEM))
    grads, narrow, full_grads, full = float16_sink(dtype, **{"wte.weight": (9, 24), "wpe.weight": (33, 24)})
    fn.embedding_backward(tokens, dy, grads, MEM)
    fn.embedding_backward(tokens, wide(dy), full_grads, MEM)
    for name in narrow:
        same(narrow[name], full[name])


def test_cross_entropy(dtype):
    logits, targets = stored(dtype, 500, 64, scale=4), np.random.default_rng(1).integers(-1, 64, 500)
    total, count, context = fn.cross_entropy(logits, targets, MEM)
    right, right_count, right_context = fn.cross_entropy(wide(logits), targets, MEM)
    assert (total, count) == (right, right_count)
    same(fn.cross_entropy_backward(context, 65536 / count, MEM),
         fn.cross_entropy_backward(right_context, 65536 / count, MEM))


def test_gradient_overflow_is_inf_without_a_warning():
    """The loss scaler looks for inf."""
    _, _, context = fn.cross_entropy(np.zeros((600, 8), np.float16), np.zeros(600, np.int64), MEM)
    with np.errstate(all="raise", under="ignore"):
        assert np.isinf(fn.cross_entropy_backward(context, 1e6, MEM)).all()


def test_numpy_never_multiplies_16_bit_matrices(dtype, monkeypatch):
    """np.matmul, np.dot and np.einsum see float32 and float64 only.

    The operator @ has a hook of its own in test_no_hidden_products.
    """
    seen = set()

    def watch(name):
        real = getattr(np, name)

        def call(*args, **kwargs):
            for array in args:
                if isinstance(array, np.ndarray):
                    seen.add(array.dtype.name)
            return real(*args, **kwargs)

        monkeypatch.setattr(np, name, call)

    for name in ("matmul", "dot", "einsum", "inner", "tensordot", "vdot"):
        watch(name)
    config = GPTConfig(layers=1, d_model=12, heads=2, context=8, vocab=11)
    tokens = np.random.default_rng(0).integers(0, 11, (3, 8))
    loss_and_gradients(gpt(config), parameters(gpt(config), dtype), tokens, tokens)
    loss_and_gradients(mlp(), parameters(mlp(), dtype), np.ones((4, 32), np.float32), np.arange(4))
    assert seen == {"float32"}


class Watched(np.ndarray):
    """An array that reports every ufunc done on it."""

    calls: set[tuple[str, str]] = set()  # noqa: RUF012

    def __array_ufunc__(self, ufunc, method, *inputs, out=(), **kwargs):
        plain = [x.view(np.ndarray) if isinstance(x, Watched) else x for x in inputs]
        kept = tuple(x.view(np.ndarray) if isinstance(x, Watched) else x for x in out)
        Watched.calls.update((ufunc.__name__, x.dtype.name) for x in plain if isinstance(x, np.ndarray))
        result = getattr(ufunc, method)(*plain, **({"out": kept} if out else {}), **kwargs)
        return out[0] if out else (result.view(Watched) if isinstance(result, np.ndarray) else result)


class WatchedMemory:
    def empty(self, shape, dtype, kind):
        return np.empty(shape, dtype).view(Watched)


def test_no_hidden_products(dtype):
    """Every ufunc on every array of ours, operators included.

    No product in 16 bits, and none of NumPy's slow 16-bit arithmetic.
    """
    Watched.calls.clear()
    config = GPTConfig(layers=1, d_model=12, heads=2, context=8, vocab=11)
    tokens = np.random.default_rng(0).integers(0, 11, (3, 8))
    params = {name: value.view(Watched) for name, value in parameters(gpt(config), dtype).items()}
    loss_and_gradients(gpt(config), params, tokens, tokens, mem=WatchedMemory())
    assert ("matmul", "float32") in Watched.calls  # the hook works
    assert {name for name, used in Watched.calls if used == dtype.name} == set()


@pytest.mark.parametrize("config", [GPTConfig(layers=2, d_model=16, heads=2, context=12, vocab=19)])
def test_gpt_stays_near_float32(dtype, config):
    """Loss within rounding of float32's, gradients too: 2^-11 (2^-8) per operator, a few dozen operators deep."""
    model, rng = gpt(config), np.random.default_rng(0)
    x, targets = rng.integers(0, 19, (4, 12)), rng.integers(0, 19, (4, 12))
    params = parameters(model, dtype)
    loss, views = loss_and_gradients(model, params, x, targets, scale=1024.0)
    wide_params = {name: wide(value) for name, value in params.items()}
    right, full = loss_and_gradients(model, wide_params, x, targets, scale=1024.0)
    step = 2.0**-11 if dtype == np.float16 else 2.0**-8
    assert loss == pytest.approx(right, rel=4 * step)
    for name in views:
        assert np.abs(wide(views[name]) - full[name]).max() <= 32 * step * np.abs(full[name]).max(), name
