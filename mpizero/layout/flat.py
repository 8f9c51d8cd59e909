"""The FlatParameter: the parameters of a unit, one after the other, padded so that all shards have the same size.

Source: PyTorch FSDP (arXiv:2304.11277), sec. 3.2.1.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from mpizero.layout.spec import ParamSpec
from mpizero.layout.strided import Strided

# elements updated at once by the optimizer: five blocks of float32 stay in L2; a plan counts the gradient's
UPDATE_BLOCK = 32768
# elements whose squares are added at once, in float64: 64 KiB; below OpenBLAS's limit (10,000) for a threaded, hence
# reordered, dot
NORM_BLOCK = 8192
READ_BLOCK = 16384  # bytes that are read at once of a file of which not all is wanted


@dataclass(frozen=True)
class FlatLayout:
    """Where each parameter of a unit lies in its flat buffer.

    padded_numel is the smallest multiple of `ranks` that holds numel elements: at most ranks - 1 elements are padding.
    """

    name: str
    params: tuple[ParamSpec, ...]
    offsets: tuple[int, ...]  # of each parameter, in elements
    numel: int
    padded_numel: int

    @functools.cached_property
    def frozen(self) -> bool:
        """Whether its parameters are: a unit holds either kind, never both."""
        return any(param.frozen for param in self.params)

    @property
    def tile(self) -> bool:
        """Whether it is a tile of a parameter: always a unit of its own."""
        return any(param.tile for param in self.params)

    @property
    def copied(self) -> bool:
        """Whether all tensor parallel ranks hold the same: a unit holds either kind, never both."""
        return any(param.copied for param in self.params)

    def shard_numel(self, count: int) -> int:
        """Elements of each of `count` equal shards; `count` divides the number of ranks the layout was padded for."""
        assert self.padded_numel % count == 0, (f"unit {self.name}: {self.padded_numel} elements do not split into "
                                                f"{count} shards")
        return self.padded_numel // count

    def shard(self, index: int, count: int) -> slice:
        """The elements of shard `index` of `count`."""
        size = self.shard_numel(count)
        return slice(index * size, (index + 1) * size)

    def views(self, flat: Any) -> dict[str, Any]:
        """Name -> view of `flat` (padded_numel,) in the parameter's shape."""
        return {param.name: flat[offset : offset + param.numel].reshape(param.shape)
                for param, offset in zip(self.params, self.offsets, strict=True)}

    def pieces(self, wanted: slice) -> Iterator[tuple[ParamSpec, Strided, slice]]:
        """The elements `wanted` cut along parameters, without padding: parameter (of a part the whole one), which of
        its elements a piece is, the piece as elements of the flat buffer. Whole rows of columns are one piece."""
        for param, offset, piece in self._cut(wanted):
            start = piece.start
            for where in param.elements(piece.start - offset, piece.stop - offset):
                yield param.whole or param, where, slice(start, start + where.numel)
                start += where.numel

    def _cut(self, wanted: slice) -> Iterator[tuple[ParamSpec, int, slice]]:
        """Parameters with elements among `wanted`: where each begins in the flat buffer, and these elements."""
        for param, offset in zip(self.params, self.offsets, strict=True):
            low, high = max(wanted.start, offset), min(wanted.stop, offset + param.numel)
            if low < high:
                yield param, offset, slice(low, high)

    def decayed(self, kept: slice) -> tuple[tuple[int, int], ...]:
        """The elements of `kept` that weight decay shrinks: (begin, end) counted from its start, sorted and apart.
        Parameters that say nothing of it are shrunk."""
        found: list[tuple[int, int]] = []
        for param, _, piece in self._cut(kept):
            if param.decay is not False:
                begin, end = piece.start - kept.start, piece.stop - kept.start
                if found and found[-1][1] == begin:
                    begin, _ = found.pop()
                found.append((begin, end))
        return tuple(found)


def flatten(name: str, params: Iterable[ParamSpec], ranks: int) -> FlatLayout:
    """The layout of a unit that holds `params`, padded for `ranks` ranks."""
    params = tuple(params)
    offsets, numel = [], 0
    for param in params:
        offsets.append(numel)
        numel += param.numel
    return FlatLayout(name, params, tuple(offsets), numel, -(-numel // ranks) * ranks)


def rounding_block_numel(numel: int) -> int:
    """Elements that are rounded at once when `numel` master weights were read: at most a quarter of them, so that two
    float32 blocks weigh less than any unit."""
    return max(min(UPDATE_BLOCK, numel // 4), 1)


def norm_block_numel(units: Iterable[FlatLayout], ranks: int) -> int:
    """Elements of the largest block when each of `ranks` ranks adds the squares of its 1/N of all units that train."""
    return min(NORM_BLOCK, max((unit.shard_numel(ranks) for unit in units if not unit.frozen), default=0))


def update_block_numel(numel: int) -> int:
    """Elements of the largest block when `numel` elements are updated."""
    return min(numel, UPDATE_BLOCK)
