"""Equal runs of elements, equally far apart, against lists of all of them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mpizero.layout import Strided


def elements(where):
    return [element for _, begin, length in where.runs() for element in range(begin, begin + length)]


@st.composite
def columns(draw, width):
    """Of a matrix that is `width` wide, or a range that knows no rows."""
    low, high = sorted(draw(st.sets(st.integers(0, width), min_size=2, max_size=2)))
    row, count = draw(st.integers(0, 3)), draw(st.integers(1, 4))
    if draw(st.booleans()):
        return Strided(row * width + low, high - low + width * (count - 1))
    return Strided(row * width + low, high - low, count, width if count > 1 else 0)


@given(where=columns(5), data=st.data())
def test_a_cut_is_the_same_elements_in_order(where, data):
    every = elements(where)
    assert (where.numel, where.begin, where.end) == (len(every), every[0], every[-1] + 1)
    low, high = sorted(data.draw(st.tuples(*[st.integers(0, len(every))] * 2)))
    pieces = list(where.cut(low, high))
    assert sum(map(elements, pieces), []) == every[low:high]
    assert len(pieces) <= 3 and all(piece.numel for piece in pieces) == (low < high or not pieces)


@given(where=columns(5), width=st.sampled_from([5]))
def test_as_columns_no_run_crosses_a_row(where, width):
    befores, pieces = zip(*where.columns(width), strict=True)
    assert sum(map(elements, pieces), []) == elements(where) and len(pieces) <= 3
    assert befores == tuple(sum(piece.numel for piece in pieces[:place]) for place in range(len(pieces)))
    assert all(piece.begin % width + piece.length <= width for piece in pieces)


@given(data=st.data(), widths=st.sampled_from([(5, 5), (3, 5), (6, 3)]))
def test_what_two_have_in_common(data, widths):
    """Of matrices of one width, or of two."""
    a, b = (data.draw(columns(width)) for width in widths)
    ranges = list(a.common(b))
    mine, theirs = elements(a), elements(b)
    found = [(mine[i + k], theirs[j + k]) for i, j, count in ranges for k in range(count)]
    assert all(one == other for one, other in found)
    assert sorted(one for one, _ in found) == sorted(set(mine) & set(theirs))
    assert all(count > 0 for _, _, count in ranges)


def test_whole_rows_of_both_are_one_range():
    """What a rank reads again of its own is read at once."""
    where = Strided(2, 2, 100, 8)
    assert list(where.common(where)) == [(0, 0, 200)]
    assert list(where.common(Strided(10, 2, 50, 8))) == [(2, 0, 100)]
    assert list(where.common(Strided(0, 800))) == [(2 * row, 8 * row + 2, 2) for row in range(100)]
