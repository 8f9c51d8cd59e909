"""FlatLayout: every element in exactly one place, every shard of the same size."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpizero.errors import ConfigError
from mpizero.layout import ModelSpec, ParamSpec, flatten, update_block_numel, with_decay

shapes = st.lists(st.lists(st.integers(0, 5), max_size=3).map(tuple), min_size=1, max_size=6)


@given(shapes, st.integers(1, 16))
def test_elements_lie_in_order_and_padding_is_least(shapes, ranks):
    layout = flatten("u", [ParamSpec(f"p{i}", shape) for i, shape in enumerate(shapes)], ranks)
    assert layout.numel == sum(int(np.prod(shape)) for shape in shapes)
    assert layout.padded_numel % ranks == 0 and 0 <= layout.padded_numel - layout.numel < ranks
    flat = np.arange(layout.padded_numel)
    views = layout.views(flat)
    assert np.array_equal(np.concatenate([view.ravel() for view in views.values()]), flat[: layout.numel])
    assert [view.shape for view in views.values()] == shapes
    assert all(np.shares_memory(view, flat) for view in views.values() if view.size)


@given(st.integers(0, 1000), st.integers(1, 16), st.integers(1, 16))
def test_shards_divide_the_buffer(numel, count, groups):
    layout = flatten("u", [ParamSpec("p", (numel,))], count * groups)
    covered = [i for index in range(count) for i in range(layout.padded_numel)[layout.shard(index, count)]]
    assert covered == list(range(layout.padded_numel))


def test_fsdp_paper_figure_3():
    """arXiv:2304.11277, fig. 3: nn.Linear 4x3 on 16 ranks is 15 elements and a pad, which the last rank holds alone."""
    layout = flatten("linear", [ParamSpec("weight", (4, 3)), ParamSpec("bias", (3,))], 16)
    assert (layout.numel, layout.padded_numel, layout.shard_numel(16)) == (15, 16, 1)
    assert layout.shard(15, 16) == slice(15, 16)


def test_a_large_block_pads_little():
    layout = flatten("block", [ParamSpec("w", (12 * 5120**2,))], 1000)
    assert layout.padded_numel - layout.numel == 200


def test_update_block():
    assert [update_block_numel(n) for n in (0, 9312, 32768, 10**9)] == [0, 9312, 32768, 32768]


@given(shapes, st.lists(st.sampled_from([None, True, False]), min_size=6, max_size=6), st.integers(1, 16), st.data())
def test_what_decays_of_a_slice(shapes, decays, ranks, data):
    """Element by element; ranges are sorted and do not touch."""
    params = [ParamSpec(f"p{i}", shape, decay=decays[i]) for i, shape in enumerate(shapes)]
    layout = flatten("u", params, ranks)
    start, stop = sorted(data.draw(st.tuples(*[st.integers(0, layout.padded_numel)] * 2)))
    owner = [param for param in params for _ in range(param.numel)]
    right = [i for i in range(stop - start) if start + i < layout.numel and owner[start + i].decay is not False]
    found = layout.decayed(slice(start, stop))
    assert [i for begin, end in found for i in range(begin, end)] == right
    assert all(begin < end for begin, end in found)
    assert all(end < begin for (_, end), (begin, _) in zip(found, found[1:], strict=False))


def test_rules_of_decay():
    """Matrices, or all; a parameter that says itself keeps to it."""
    spec = ModelSpec((ParamSpec("w", (2, 3)), ParamSpec("b", (3,)), ParamSpec("s", ()), ParamSpec("k", (2, 3, 4)),
                      ParamSpec("no", (2, 3), decay=False), ParamSpec("yes", (3,), decay=True)), ())
    assert [param.decay for param in with_decay(spec, "matrices").params] == [True, False, False, True, False, True]
    assert [param.decay for param in with_decay(spec, "all").params] == [True, True, True, True, False, True]
    with pytest.raises(ConfigError, match="`decay` 'some' is none of matrices, all: use one of these"):
        with_decay(spec, "some")
