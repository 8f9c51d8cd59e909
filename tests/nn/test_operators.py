"""Every operator against central differences in float64, and against a plain formula that knows nothing of ours."""

from __future__ import annotations

import math

import numpy as np
import pytest

from mpizero.errors import DataError
from mpizero.layout import sizes
from mpizero.nn import functional as fn
from tests.nn.helpers import MEM, assert_gradient, sink


@pytest.fixture(autouse=True, params=["one block", "many blocks"])
def block_sizes(request, monkeypatch):
    """Every test runs with arrays that fit a block, and again with blocks of a few elements."""
    if request.param == "many blocks":
        for name, size in {"BLOCK": 11, "TILE": 2, "WIDE": 3, "QUERIES": 2, "SCORES": 40}.items():
            monkeypatch.setattr(sizes, name, size)


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


# -- linear -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("residual", [None, normal(5, 4, seed=3)], ids=["plain", "residual"])
def test_linear(residual):
    x, params, dy = normal(5, 3), {"l.weight": normal(3, 4, seed=1), "l.bias": normal(4, seed=2)}, normal(5, 4, seed=4)

    def f():
        return float((fn.linear(x, params["l.weight"], params["l.bias"], MEM, residual) * dy).sum())

    right = np.einsum("nk,km->nm", x, params["l.weight"]) + params["l.bias"] + (0 if residual is None else residual)
    np.testing.assert_allclose(fn.linear(x, params["l.weight"], params["l.bias"], MEM, residual), right, rtol=1e-13)
    grads, views = sink(**{name: value.shape for name, value in params.items()})
    dx = fn.linear_backward(x, dy, params, "l", grads, MEM)
    assert_gradient(f, x, dx)
    for name, value in params.items():
        assert_gradient(f, value, views[name])


def test_relu():
    y = fn.relu(np.array([[-1.0, 2.0, np.nan, -0.0]]))
    assert np.array_equal(y, [[0, 2, np.nan, 0]], equal_nan=True)
    assert np.array_equal(fn.relu_backward(y, np.array([[5.0, 6.0, 7.0, 8.0]]), MEM), [[0, 6, 7, 0]])


# -- gelu -------------------------------------------------------------------------------------------------------------


def test_gelu():
    x, dy = normal(7, 5) * 2, normal(7, 5, seed=1)
    y = fn.gelu(x, MEM)
    for value, result in zip(x.flat, y.flat, strict=True):
        right = 0.5 * value * (1 + math.tanh(math.sqrt(2 / math.pi) * (value + 0.044715 * value**3)))
        assert result == pytest.approx(right, rel=1e-13, abs=1e-15)
    dx, again = fn.gelu_backward(x.copy(), dy.copy(), MEM)
    assert np.array_equal(again, y)
    assert_gradient(lambda: float((fn.gelu(x, MEM) * dy).sum()), x, dx)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_gelu_far_out(dtype):
    """x where tanh is 1 and where x^3 overflows: 0 and x, slopes 0 and 1."""
    x = np.array([-1e4, -30, 30, 1e4], dtype)
    dx, y = fn.gelu_backward(x.copy(), np.ones_like(x), MEM)
    assert np.array_equal(y, [0, 0, 30, x[3]]) and np.array_equal(dx, [0, 0, 1, 1])


# -- layer norm -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("residual", [None, normal(6, 5, seed=9)], ids=["plain", "residual"])
def test_layer_norm(residual):
    x, w, b, dy = normal(6, 5) * 3 + 2, normal(5, seed=1), normal(5, seed=2), normal(6, 5, seed=3)
    stats = fn.new_stats(len(x), x.dtype, MEM)
    y = fn.layer_norm(x, w, b, stats, MEM)
    right = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5) * w + b
    np.testing.assert_allclose(y, right, rtol=1e-12)
    assert np.array_equal(fn.layer_norm_again(x, stats, w, b, MEM), y)
    grads, views = sink(w=(5,), b=(5,))
    dx = fn.layer_norm_backward(x, stats, dy, w, ("w", "b"), grads, MEM, residual)

    def f():
        total = (fn.layer_norm(x, w, b, np.empty_like(stats), MEM) * dy).sum()
        return float(total + (0 if residual is None else (residual * x).sum()))

    assert_gradient(f, x, dx)
    assert_gradient(f, w, views["w"])
    assert_gradient(f, b, views["b"])


# -- attention --------------------------------------------------------------------------------------------------------


def plain_attention(qkv, heads):
    """One row at a time, with Python loops."""
    batch, tokens, width = qkv.shape[0], qkv.shape[1], qkv.shape[2] // 3
    size, y = width // heads, np.empty((batch, tokens, width))
    for b in range(batch):
        for h in range(heads):
            q, k, v = (qkv[b, :, part * width + h * size : part * width + (h + 1) * size] for part in range(3))
            for t in range(tokens):
                weights = np.array([math.exp(float(q[t] @ k[s]) / math.sqrt(size)) for s in range(t + 1)])
                y[b, t, h * size : (h + 1) * size] = (weights / weights.sum()) @ v[: t + 1]
    return y


@pytest.mark.parametrize("batch,tokens,heads,size", [(2, 5, 3, 2), (3, 1, 1, 4), (1, 6, 2, 3)])
def test_attention(batch, tokens, heads, size):
    qkv, dy = normal(batch, tokens, 3 * heads * size) * 1.5, normal(batch, tokens, heads * size, seed=1)
    y, lse = fn.attention(qkv, heads, MEM)
    np.testing.assert_allclose(y, plain_attention(qkv, heads), rtol=1e-12, atol=1e-14)
    dqkv = fn.attention_backward(qkv, y, lse, dy, heads, MEM)
    assert_gradient(lambda: float((fn.attention(qkv, heads, MEM)[0] * dy).sum()), qkv, dqkv)


def test_attention_is_causal():
    qkv = normal(2, 6, 12)
    y, _ = fn.attention(qkv, 2, MEM)
    # so large that a future score in a row's maximum would wipe the row out
    qkv[:, 4:] = 1e3 * normal(2, 2, 12, seed=1)
    changed, _ = fn.attention(qkv, 2, MEM)
    assert np.array_equal(changed[:, :4], y[:, :4]) and not np.allclose(changed[:, 4:], y[:, 4:])


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_attention_large_scores(dtype):
    """Scores of thousands: finite, the largest wins."""
    qkv = np.zeros((1, 3, 6), dtype)
    qkv[0, :, 0:2], qkv[0, :, 2:4], qkv[0, :, 4:6] = 100, [[-90, 0], [90, 0], [0, 0]], [[1, 2], [3, 4], [5, 6]]
    y, lse = fn.attention(qkv, 1, MEM)
    assert np.array_equal(y[0], [[1, 2], [3, 4], [3, 4]])
    assert np.isfinite(fn.attention_backward(qkv, y, lse, np.ones_like(y), 1, MEM)).all()


# -- embedding --------------------------------------------------------------------------------------------------------


def test_embedding():
    tokens = np.random.default_rng(0).integers(0, 7, (3, 5))
    wte, wpe, dy = normal(9, 4), normal(6, 4, seed=1), normal(3, 5, 4, seed=2)
    assert np.array_equal(fn.embedding(tokens, wte, wpe, MEM), wte[tokens] + wpe[:5])
    grads, views = sink(**{"wte.weight": (9, 4), "wpe.weight": (6, 4)})
    fn.embedding_backward(tokens, dy, grads, MEM)
    right = np.zeros((9, 4))
    np.add.at(right, tokens, dy)
    np.testing.assert_allclose(views["wte.weight"], right, rtol=1e-14, atol=1e-14)
    np.testing.assert_allclose(views["wpe.weight"], np.vstack([dy.sum(0), np.zeros((1, 4))]), rtol=1e-14)
    fn.embedding_backward(tokens, dy, grads, MEM)  # a second microbatch adds
    np.testing.assert_allclose(views["wte.weight"], 2 * right, rtol=1e-14, atol=1e-14)


def test_embedding_of_one_token_only():
    """All rows fall on one token: its sum runs through every block."""
    dy, tokens = np.ones((4, 5, 3)), np.full((4, 5), 2)
    grads, views = sink(**{"wte.weight": (4, 3), "wpe.weight": (5, 3)})
    fn.embedding_backward(tokens, dy, grads, MEM)
    assert np.array_equal(views["wte.weight"], [[0] * 3, [0] * 3, [20] * 3, [0] * 3])


@pytest.mark.parametrize("token", [-1, 9])
def test_embedding_refuses_tokens_outside(token):
    with pytest.raises(DataError, match=f"token {token} in the data"):
        fn.embedding(np.array([[0, token]]), normal(9, 4), normal(6, 4), MEM)


def test_embedding_refuses_long_rows():
    with pytest.raises(DataError, match="7 tokens.*6 positions"):
        fn.embedding(np.zeros((1, 7), np.int64), normal(9, 4), normal(6, 4), MEM)


# -- cross-entropy ----------------------------------------------------------------------------------------------------


def test_cross_entropy():
    logits, targets = normal(2, 3, 5) * 3, np.array([[0, 4, -1], [2, -1, 1]])
    total, count, context = fn.cross_entropy(logits.copy(), targets, MEM)
    p = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    right = -sum(math.log(p[b, t, targets[b, t]]) for b in range(2) for t in range(3) if targets[b, t] >= 0)
    assert isinstance(total, float) and total == pytest.approx(right, rel=1e-13) and count == 4
    dlogits = fn.cross_entropy_backward(context, 0.25, MEM)
    assert_gradient(lambda: 0.25 * fn.cross_entropy(logits.copy(), targets, MEM)[0], logits, dlogits)
    assert not dlogits[0, 2].any() and not dlogits[1, 1].any()


def test_cross_entropy_ignores_what_it_ignores():
    """Not even NaN in an ignored row reaches loss or gradient."""
    logits = np.array([[1.0, 2.0], [np.nan, np.inf]])
    with np.errstate(invalid="ignore"):
        total, count, context = fn.cross_entropy(logits, np.array([1, -1]), MEM)
        dlogits = fn.cross_entropy_backward(context, 1.0, MEM)
    assert total == pytest.approx(math.log1p(math.exp(-1))) and count == 1
    assert np.isfinite(dlogits).all() and not dlogits[1].any()


def test_cross_entropy_of_a_sure_answer():
    """-log p = log(1 + 2 e^-10) where the largest logit is 10,000.

    No cancellation, even in float32, whose spacing there is 1e-3.
    """
    total, _, _ = fn.cross_entropy(np.array([[1e4, 1e4 - 10, 1e4 - 10]], np.float32), np.array([0]), MEM)
    assert total == pytest.approx(math.log1p(2 * math.exp(-10)), rel=1e-3)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_cross_entropy_large_logits(dtype):
    logits = np.array([[6e4, 0, -6e4]], dtype)
    assert fn.cross_entropy(logits, np.array([0]), MEM)[0] == 0
    assert fn.cross_entropy(logits, np.array([1]), MEM)[0] == pytest.approx(6e4, rel=1e-3)


def test_cross_entropy_refuses_labels_outside():
    with pytest.raises(DataError, match="target 5 "):
        fn.cross_entropy(normal(2, 5), np.array([0, 5]), MEM)
    total, count, context = fn.cross_entropy(normal(0, 5), np.zeros(0, np.int64), MEM)
    assert (total, count) == (0.0, 0) and fn.cross_entropy_backward(context, 1.0, MEM).shape == (0, 5)


def of_two_parts(logits, targets):
    """The loss as each of two ranks has it that have half of the classes each."""
    half = logits.shape[1] // 2
    parts = np.empty((2, 3, len(logits)), np.float32)
    for rank, mine in enumerate(np.split(logits, 2, axis=1)):
        fn.cross_entropy_part(mine, targets, rank * half, 2 * half, parts[rank], MEM)
    return [fn.cross_entropy_of_parts(mine, targets, parts, MEM)[0] for mine in np.split(logits, 2, axis=1)]


@pytest.mark.parametrize("largest", range(4))
@pytest.mark.parametrize("target", range(4))
def test_cross_entropy_of_parts_with_large_logits(largest, target):
    logits = np.zeros((1, 4), np.float32)
    logits[0, largest] = 6e4
    expected = 0 if target == largest else 6e4
    assert of_two_parts(logits, np.array([target])) == [expected, expected]


def test_cross_entropy_of_parts_refuses_labels_that_no_rank_has():
    with pytest.raises(DataError, match="target 4 .* outside 0..3"):
        of_two_parts(np.zeros((2, 4), np.float32), np.array([0, 4]))


# -- matmul -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("p,q,r", [(3, 4, 5), (1, 1, 1), (4, 0, 3), (0, 2, 2)])
@pytest.mark.parametrize("flip", ["", "a", "b", "ab"])
def test_matmul_of_integers_is_exact(dtype, p, q, r, flip):
    rng = np.random.default_rng(0)
    a, b = rng.integers(-3, 4, (p, q)).astype(dtype), rng.integers(-3, 4, (q, r)).astype(dtype)
    a = np.asfortranarray(a) if "a" in flip else a
    b = np.asfortranarray(b) if "b" in flip else b
    out = np.full((p, r), 99, dtype)
    fn.matmul(a, b, out, MEM)
    assert np.array_equal(out, a.astype(np.int64) @ b.astype(np.int64))
