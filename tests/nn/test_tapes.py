"""What operators and segments hold at a time: the ledger's peak is the tape's, to the byte, whatever the data are."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpizero.dtypes import ITEMSIZE, numpy_dtype
from mpizero.layout import freeze, sizes
from mpizero.layout.tape import Give, Take, most
from mpizero.layout.tapes import activation, attention, embedding, linear, loss, matmul, normalization
from mpizero.layout.tensor import TensorPlace
from mpizero.memory.kinds import ACTIVATION
from mpizero.memory.ledger import Ledger
from mpizero.nn import functional as fn
from mpizero.nn.gpt import GPTConfig, gpt
from mpizero.nn.losses import CrossEntropy, DividedCrossEntropy
from mpizero.nn.mlp import mlp
from mpizero.nn.ops.gradients import Gradients
from tests.nn.helpers import parameters

pytest.importorskip("ml_dtypes")
dtypes = st.sampled_from(sorted(ITEMSIZE))
# blocks of a few elements, so that small arrays lie on both sides of each limit; WIDE divides BLOCK, as in truth
SMALL = {"BLOCK": 64, "CAST_BLOCK": 24, "SMALL_WIDEN": 8, "SMALL_ROUND": 11, "TILE": 4, "WIDE": 8, "ROWS": 5,
         "SCORES": 60, "QUERIES": 3}


@contextmanager
def small_blocks():
    with patch.multiple(sizes, **SMALL):
        yield


def zeros(dtype, *shape):
    return np.zeros(shape, numpy_dtype(dtype))


# -- operators --------------------------------------------------------------------------------------------------------
# Each runs one, and gives its tape. n, k, m: any sizes.


def a_linear(mem, dtype, sink, n, k, m):
    fn.linear(zeros(dtype, n, k), zeros(dtype, k, m), zeros(dtype, m), mem, out=zeros(dtype, n, m))
    return linear.linear(n, k, m, dtype)


def a_linear_and_residual(mem, dtype, sink, n, k, m):
    fn.linear(zeros(dtype, n, k), zeros(dtype, k, m), zeros(dtype, m), mem, zeros(dtype, n, m), zeros(dtype, n, m))
    return linear.linear(n, k, m, dtype, residual=True)


def a_linear_backward(mem, dtype, sink, n, k, m):
    params = {"l.weight": zeros(dtype, k, m), "l.bias": zeros(dtype, m)}
    fn.linear_backward(zeros(dtype, n, k), zeros(dtype, n, m), params, "l", sink(params), mem)
    return linear.linear_backward(n, k, m, dtype, "l")


def a_relu_backward(mem, dtype, sink, n, k, m):
    fn.relu_backward(zeros(dtype, n, m), zeros(dtype, n, m), mem)
    return linear.relu_backward(n, m, dtype)


def a_matmul(mem, dtype, sink, n, k, m):
    fn.matmul(zeros(dtype, k, n).T, zeros(dtype, k, m), zeros(dtype, n, m), mem)
    return matmul.matmul(n, k, m, dtype)


def a_gelu(mem, dtype, sink, n, k, m):
    fn.gelu(zeros(dtype, n, m), mem)
    return activation.gelu(n * m, dtype)


def a_gelu_backward(mem, dtype, sink, n, k, m):
    fn.gelu_backward(zeros(dtype, n, m), zeros(dtype, n, m), mem)
    return activation.gelu_backward(n * m, dtype)


def a_layer_norm(mem, dtype, sink, n, k, m):
    stats = fn.new_stats(n, numpy_dtype(dtype), mem)
    fn.layer_norm(zeros(dtype, n, m), zeros(dtype, m), zeros(dtype, m), stats, mem)
    fn.layer_norm_again(zeros(dtype, n, m), stats, zeros(dtype, m), zeros(dtype, m), mem)
    return normalization.new_stats(n, dtype), *normalization.layer_norm(n, m, dtype)


def a_layer_norm_backward(mem, dtype, sink, n, k, m):
    params = {"w": zeros(dtype, m), "b": zeros(dtype, m)}
    fn.layer_norm_backward(zeros(dtype, n, m), zeros("float32", 2, n), zeros(dtype, n, m), params["w"], ("w", "b"),
                           sink(params), mem, residual=zeros(dtype, n, m) if k % 2 else None)
    return normalization.layer_norm_backward(n, m, dtype, ("w", "b"))


def a_attention(mem, dtype, sink, b, t, heads):
    fn.attention(zeros(dtype, b, t, 3 * 2 * heads), heads, mem)
    return attention.attention(b, t, 2 * heads, heads, dtype)


def a_attention_backward(mem, dtype, sink, b, t, heads):
    y, lse = zeros(dtype, b, t, 2 * heads), zeros("float32", b, heads, t)
    fn.attention_backward(zeros(dtype, b, t, 3 * 2 * heads), y, lse, y, heads, mem)
    return attention.attention_backward(b, t, 2 * heads, heads, dtype)


def a_embedding(mem, dtype, sink, b, t, c):
    fn.embedding(np.zeros((b, t), np.int64), zeros(dtype, 5, c), zeros(dtype, t + 2, c), mem)
    return embedding.embedding(b, t, c, dtype)


def a_embedding_backward(mem, dtype, sink, b, t, c):
    params = {"wte.weight": zeros(dtype, b * t, c), "wpe.weight": zeros(dtype, t + 2, c)}
    tokens = np.arange(b * t).reshape(b, t) * (b % 2)  # all different, or one
    fn.embedding_backward(tokens, zeros(dtype, b, t, c), sink(params), mem)
    return embedding.embedding_backward(b, t, c, dtype)


def a_cross_entropy(mem, dtype, sink, n, k, m):
    fn.cross_entropy(zeros(dtype, n, m), np.zeros(n, np.int64), mem)
    return loss.cross_entropy(n, m, dtype)


def a_cross_entropy_backward(mem, dtype, sink, n, k, m):
    context = fn.cross_entropy(zeros(dtype, n, m), np.zeros(n, np.int64), Ledger())[2]
    fn.cross_entropy_backward(context, 1.0, mem)
    return loss.cross_entropy_backward(n, m, dtype)


OPERATORS = [a_linear, a_linear_and_residual, a_linear_backward, a_relu_backward, a_matmul, a_gelu, a_gelu_backward,
             a_layer_norm, a_layer_norm_backward, a_attention, a_attention_backward, a_embedding, a_embedding_backward,
             a_cross_entropy, a_cross_entropy_backward]
SIZES = st.sampled_from([1, 2, 3, 4, 5, 7, 8, 9, 12, 17, 20])
NAMES = ["l.weight", "l.bias", "w", "b", "wte.weight", "wpe.weight"]


def assert_operator(run, dtype, shape, begun, frozen):
    """begun, frozen: of its parameters the gradients that hold something already, and those that there are not."""
    mem, written, planned = Ledger(), set(), set()

    def sink(params):
        names = [name for name in params if name not in frozen]
        written.update(name for name in names if name in begun)
        planned.update(written)
        return Gradients({name: np.zeros_like(params[name]) for name in names}, written,
                         {name: value.shape for name, value in params.items() if name in frozen})

    tape = run(mem, dtype, sink, *shape)
    assert mem.peak_bytes == most(tape, planned, frozen)
    assert written == planned


@pytest.mark.parametrize("run", OPERATORS)
@given(data=st.data())
@settings(max_examples=60)
def test_an_operator_holds_what_its_tape_says(run, data):
    begun, frozen = st.sampled_from([(), NAMES]), st.sampled_from([(), *((name,) for name in NAMES), NAMES])
    with small_blocks():
        assert_operator(run, data.draw(dtypes), data.draw(st.tuples(SIZES, SIZES, SIZES)), data.draw(begun),
                        data.draw(frozen))


@pytest.mark.parametrize("dtype", ITEMSIZE)
@pytest.mark.parametrize("run", OPERATORS)
def test_operators_of_true_size(run, dtype):
    """On both sides of a tile of products, of a cast and of what is too small for one."""
    shapes = [(520, 515, 64), (32, 64, 64), (33, 64, 2049)]
    if "attention" in run.__name__ or "embedding" in run.__name__:
        shapes = [(2, 66, 4), (9, 40, 60)]
    for shape in shapes:
        for begun in [(), NAMES] if run is a_linear_backward else [()]:
            assert_operator(run, dtype, shape, begun, ())


# -- segments ---------------------------------------------------------------------------------------------------------


def assert_segments(model, x, targets, dtype):
    """Each segment, twice: a first microbatch, and one that is added to it. Everything is handed over."""
    mem, facts, written, planned = Ledger(), model.spec.activations(targets.shape, dtype), set(), set()
    params = parameters(model, numpy_dtype(dtype))
    frozen = {param.name: param.shape for param in model.spec.pieces if param.frozen}
    views = {name: np.zeros_like(value) for name, value in params.items() if name not in frozen}

    def during(compute, tape):
        """What `compute` gives, and what lives longer by it."""
        before = mem.live_bytes
        mem.at("it")
        result = compute()
        assert mem.action_peak_bytes - before == most(tape, planned, frozen)
        assert written == planned
        return result, mem.live_bytes - before

    for _ in range(2):
        held, contexts, taken = [mem.adopt(x.copy(), ACTIVATION)], [], 0  # the only references, as the executor's
        for segment, said in zip(model.segments, facts.segments, strict=True):
            (y, context), left = during(lambda: segment.forward(params, held.pop(), mem), said.forward)
            assert left == sum(event.nbytes * {Take: 1, Give: -1}.get(type(event), 0) for event in said.forward)
            taken = taken if said.part else 0 if said.keeps_input else facts.inputs
            assert left == said.output + said.kept - taken
            taken = said.output
            held.append(y)
            contexts.append(context)
            del y, context
        loss, parts = CrossEntropy(), []
        if model.spec.divided:
            loss = DividedCrossEntropy(TensorPlace(0, facts.ranks))
            found, left = during(lambda: loss.part(held[-1], targets, mem), facts.loss_part)
            assert left == facts.loss_parts
            found.fill(1)  # other ranks' too
            parts.append(found)
            del found
        (_, count, context), left = during(lambda: loss.forward(held.pop(), targets, *parts, mem), facts.loss)
        parts.clear()
        assert left == facts.loss_kept
        held.append(context)
        del context
        held.append(during(lambda: loss.backward(held.pop(), 1 / count, mem), facts.loss_backward)[0])
        for segment, said in zip(reversed(model.segments), reversed(facts.segments), strict=True):
            grads = Gradients(views, written, frozen)
            held.append(during(lambda: segment.backward(params, contexts.pop(), held.pop(), grads, mem),
                               said.backward)[0])
        held.clear()
        assert mem.live_bytes == 0


def frozen_some(data, model):
    """The model with any of its parameters frozen."""
    names = data.draw(st.lists(st.sampled_from([param.name for param in model.spec.params]), max_size=4))
    return replace(model, spec=freeze(model.spec, names))


@given(data=st.data())
@settings(max_examples=60)
def test_segments_of_a_gpt(data):
    heads, layers, tied = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 2)), data.draw(st.booleans())
    config = GPTConfig(layers, heads * data.draw(st.integers(1, 4)), heads, data.draw(st.integers(1, 9)),
                       data.draw(st.integers(1, 20)), tied)
    shape = data.draw(st.integers(1, 4)), data.draw(st.integers(1, config.context))
    tokens = np.random.default_rng(0).integers(0, config.vocab, shape)
    model = gpt(config, tiles=data.draw(st.integers(1, min(3, config.d_model))))
    with small_blocks():
        assert_segments(frozen_some(data, model), tokens, tokens, data.draw(dtypes))


@given(data=st.data())
@settings(max_examples=60)
def test_segments_of_a_tensor_parallel_gpt(data):
    size, layers, tied = data.draw(st.integers(2, 3)), data.draw(st.integers(1, 2)), data.draw(st.booleans())
    heads = size * data.draw(st.integers(1, 2))
    config = GPTConfig(layers, heads * data.draw(st.integers(1, 3)), heads, data.draw(st.integers(1, 9)),
                       size * data.draw(st.integers(1, 9)), tied)
    shape = data.draw(st.integers(1, 4)), data.draw(st.integers(1, config.context))
    tokens = np.random.default_rng(0).integers(0, config.vocab, shape)
    model = gpt(config, place=TensorPlace(data.draw(st.integers(0, size - 1)), size))
    with small_blocks():
        assert_segments(frozen_some(data, model), tokens, tokens, data.draw(dtypes))


@given(data=st.data())
@settings(max_examples=60)
def test_segments_of_a_tensor_parallel_mlp(data):
    size, layers, (hidden, classes, inputs, n) = data.draw(st.tuples(st.integers(2, 3), st.integers(1, 4),
                                                                     st.tuples(*[SIZES] * 4)))
    model = mlp(size * hidden, layers, inputs, size * classes, place=TensorPlace(data.draw(st.integers(0, size - 1)),
                                                                                 size))
    with small_blocks():
        assert_segments(frozen_some(data, model), np.ones((n, inputs), np.float32), np.zeros(n, np.int64),
                        data.draw(dtypes))


@given(data=st.data())
@settings(max_examples=60)
def test_segments_of_an_mlp(data):
    hidden, inputs, classes, n = data.draw(st.tuples(*[SIZES] * 4))
    layers, most = data.draw(st.integers(1, 3)), min(inputs, hidden, 3)
    model = mlp(hidden, layers, inputs, classes, tiles=data.draw(st.integers(1, most)))
    with small_blocks():
        assert_segments(frozen_some(data, model), np.ones((n, inputs), np.float32), np.zeros(n, np.int64),
                        data.draw(dtypes))


def test_a_frozen_output_matrix_needs_no_norm_again():
    """Of many words and few features: else the most is held when this is gone."""
    model, tokens = gpt(GPTConfig(1, 2, 1, 8, 40)), np.zeros((4, 8), np.int64)
    with small_blocks():
        assert_segments(replace(model, spec=freeze(model.spec, ["wte.weight"])), tokens, tokens, "float16")


@pytest.mark.parametrize("dtype", ITEMSIZE)
@pytest.mark.parametrize(("config", "shape"), [
    (GPTConfig(1, 64, 4, 128, 256), (5, 128)), (GPTConfig(1, 32, 4, 100, 2100, tied=False), (1, 70)),
], ids=["many rows", "many words"])
def test_a_gpt_of_true_size(dtype, config, shape):
    tokens = np.random.default_rng(0).integers(0, config.vocab, shape)
    for tiles in (1, 3):
        assert_segments(gpt(config, tiles), tokens, tokens, dtype)


@pytest.mark.parametrize("dtype", ITEMSIZE)
def test_an_mlp_of_true_size(dtype):
    for tiles in (1, 5):
        assert_segments(mlp(tiles=tiles), np.ones((65, 32), np.float32), np.zeros(65, np.int64), dtype)
