"""FlatLayout: every element in exactly one place, every shard of the same size."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mpizero.layout import ParamSpec, flatten, update_block_numel

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
