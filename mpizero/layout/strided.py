"""Elements of a parameter in equal runs that lie equally far apart, as some columns of a matrix do. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Strided:
    """`count` runs of `length` elements each, the first from element `begin` on, the others each `stride` elements
    after the one before (0 of a single run): what MPI calls a vector. None crosses a multiple of `stride`: they are
    columns of a matrix that is as wide."""

    begin: int
    length: int
    count: int = 1
    stride: int = 0

    @property
    def numel(self) -> int:
        return self.length * self.count

    @property
    def end(self) -> int:
        """The element after the last."""
        return self.begin + (self.count - 1) * self.stride + self.length

    def runs(self) -> Iterator[tuple[int, int, int]]:
        """Of each run: how many elements come before it, where it begins, its length."""
        for run in range(self.count):
            yield run * self.length, self.begin + run * self.stride, self.length

    def cut(self, low: int, high: int) -> Iterator[Strided]:
        """Of its elements, counted in their order, low .. high - 1: a rest of a run, whole runs, a part of a run."""
        first, last = -(-low // self.length), high // self.length  # the whole runs are first .. last - 1
        if first > last:
            yield Strided(self._element(low), high - low)
            return
        if low % self.length:
            yield Strided(self._element(low), first * self.length - low)
        if first < last:
            yield Strided(self._element(first * self.length), self.length, last - first,
                          self.stride if last - first > 1 else 0)
        if high % self.length:
            yield Strided(self._element(last * self.length), high % self.length)

    def _element(self, index: int) -> int:
        return self.begin + index // self.length * self.stride + index % self.length

    def columns(self, width: int) -> Iterator[tuple[int, Strided]]:
        """The same elements as columns of a matrix that is `width` wide, and how many come before: itself, or, of one
        run, a rest of a row, whole rows, and a part of one."""
        whole = [self] if self.count > 1 else Strided(0, width, self.end // width + 1, width).cut(self.begin, self.end)
        before = 0
        for piece in whole:
            yield before, piece
            before += piece.numel

    def common(self, other: Strided) -> Iterator[tuple[int, int, int]]:
        """The elements that both hold, in ranges of both: how many of this one's come before a range, how many of the
        other's, and how many it has."""
        if self.stride and other.stride and self.stride != other.stride:
            for skipped, begin, length in other.runs():
                for before, before_other, count in self.common(Strided(begin, length)):
                    yield before, skipped + before_other, count
            return
        width = self.stride or other.stride or max(self.end, other.end)
        for before, mine in self.columns(width):
            for before_other, theirs in other.columns(width):
                for low, low_other, count in _common(mine, theirs, width):
                    yield before + low, before_other + low_other, count


def _common(a: Strided, b: Strided, width: int) -> Iterator[tuple[int, int, int]]:
    """The same of columns of a matrix that is `width` wide."""
    (a_row, a_low), (b_row, b_low) = divmod(a.begin, width), divmod(b.begin, width)
    low, high = max(a_low, b_low), min(a_low + a.length, b_low + b.length)
    row, rows = max(a_row, b_row), min(a_row + a.count, b_row + b.count) - max(a_row, b_row)
    if low >= high or rows <= 0:
        return
    in_a, in_b = (row - a_row) * a.length + low - a_low, (row - b_row) * b.length + low - b_low
    if high - low == a.length == b.length:  # rows of both, whole ones
        yield in_a, in_b, rows * a.length
        return
    for each in range(rows):
        yield in_a + each * a.length, in_b + each * b.length, high - low
