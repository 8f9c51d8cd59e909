"""Random models, for hypothesis."""

from __future__ import annotations

from hypothesis import strategies as st

from mpizero.layout import ModelSpec, ParamSpec, SegmentSpec


@st.composite
def models(draw):
    """Parameters read by any segments, in any order, again and again; segments without any."""
    count = draw(st.integers(1, 5))
    reads = draw(st.lists(st.lists(st.integers(0, count - 1), max_size=3, unique=True), min_size=1, max_size=6))
    used = sorted({param for params in reads for param in params})
    return ModelSpec(tuple(ParamSpec(f"p{i}", (i + 1,)) for i in used),
                     tuple(SegmentSpec(f"s{i}", tuple(f"p{param}" for param in params))
                           for i, params in enumerate(reads)))
