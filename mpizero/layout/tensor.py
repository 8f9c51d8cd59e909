"""What a tensor parallel rank has of a model: some heads, columns and rows. Pure.

Megatron-LM (arXiv:1909.08053), sec. 3.

[Note: Summands] T ranks that have the same samples each compute with their part of a block's matrices, so what each
gets is a summand of the output, or of the gradient of the input; an all-reduce makes it whole. Whatever is added to the
output besides (x itself, a bias, a position) the first of them adds. Parameters that do not divide so, norms for one,
all ranks hold; of their gradient, too, each has a summand.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from mpizero.errors import ConfigError
from mpizero.layout.spec import ParamSpec
from mpizero.layout.strided import Strided


@dataclass(frozen=True)
class TensorPlace:
    """Place `rank` among `size` ranks."""

    rank: int = 0
    size: int = 1

    @property
    def adds(self) -> bool:
        """Whether it adds what is added once. See [Note: Summands]."""
        return self.rank == 0

    def range(self, count: int) -> tuple[int, int]:
        """Its part of `count`, which divides."""
        own = count // self.size
        return self.rank * own, (self.rank + 1) * own

    def rows(self, param: ParamSpec) -> ParamSpec:
        """Its part of the rows."""
        begin, end = self.range(param.shape[0])
        return self._part(param, (end - begin, *param.shape[1:]), row=begin)

    def columns(self, param: ParamSpec, blocks: int = 1) -> ParamSpec:
        """Its part of the last dimension; of each of `blocks` that lie in it side by side."""
        width = param.shape[-1] // blocks
        begin, end = self.range(width)
        columns = Strided(begin, end - begin, param.numel // width, width)
        return self._part(param, (*param.shape[:-1], blocks * (end - begin)), columns=columns)

    def copy(self, param: ParamSpec) -> ParamSpec:
        """All of it."""
        return param if self.size == 1 else replace(param, copied=True)

    def _part(self, param: ParamSpec, shape: tuple[int, ...], row: int = 0,
              columns: Strided | None = None) -> ParamSpec:
        return param if self.size == 1 else replace(param, shape=shape, whole=param, row=row, columns=columns)


def parts_of(params: Iterable[ParamSpec]) -> set[int]:
    """The places of the tensor parallel ranks that have these; tiles, and what all ranks hold alike, have none."""
    return {param.columns.begin // param.columns.length if param.columns else param.row // param.shape[0]
            for param in params if param.whole is not None and not param.tile and not param.copied}


def require_divides(what: str, count: int, size: int) -> None:
    """ConfigError unless `size` tensor parallel ranks can divide a model's `count` of something, a field's name in
    backticks, or words."""
    if count % size:
        sizes = [each for each in range(1, count + 1) if count % each == 0]
        near = [each for each in sizes if each <= 64]
        raise ConfigError(f"`tensor_size` {size} does not divide {what} {count:,}, and each tensor parallel rank has "
                          f"as many as the others: use `tensor_size` {' or '.join(map(str, near))}, whichever divides "
                          "the ranks too, or another model")
