"""Where a unit's weights come from: drawn at the start, or rounded from master weights that were read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import final

import numpy as np

from mpizero.engine.rooms import Array
from mpizero.engine.collectives import all_gather_param
from mpizero.engine.unit import Unit
from mpizero.half import narrow
from mpizero.layout import MASTER, REPLICATED, SHARDED, Axis, FlatLayout, ParamSpec, rounding_block_numel
from mpizero.memory.kinds import WORKSPACE
from mpizero.memory.regions import Block
from mpizero.nn.model import DRAW_BLOCK, Model
from mpizero.nn.ops.blocks import spans


def initialise(unit: Unit, model: Model, seed: int) -> None:
    """Draw what this rank keeps, and nothing else, block by block. Workspace: see `drawing_bytes`."""
    unit.ledger.at("init", unit.layout.name)
    optimised, size = unit.range_of(unit.placement.optim), _drawing_block(unit.layout)
    params = _Writer(unit.blocks("param", writes=True))
    master = _Writer(unit.blocks(MASTER.name, writes=True) if unit.has_master else iter([]))
    block = unit.ledger.empty(size, np.float32, WORKSPACE)
    for param, begin, low, count in _drawn(unit.layout, unit.range_of(unit.placement.params)):
        values = block[:count]
        model.fill(param, seed, begin, values, unit.ledger)
        params.put(low, values)
        own = slice(max(low, optimised.start), min(low + count, optimised.stop))
        if own.start < own.stop and unit.has_master:
            master.put(own.start, values[own.start - low : own.stop - low])
    params.close()
    master.close()


def _drawn(layout: FlatLayout, kept: slice) -> Iterator[tuple[ParamSpec, int, int, int]]:
    """What is drawn at once of the elements `kept`: the parameter, where in it, where in the flat buffer, how many."""
    size = _drawing_block(layout)
    for param, where, piece in layout.pieces(kept):
        for before, begin, length in where.runs():
            for span in spans(length, size):
                yield param, begin + span.start, piece.start + before + span.start, span.stop - span.start


@final
class _Writer:
    """Puts values that come in order into blocks that come in order."""

    def __init__(self, blocks: Iterator[Block]):
        self.blocks, self.span, self.target = blocks, slice(0, 0), np.empty(0)

    def put(self, low: int, values: Array) -> None:
        """(n,), the elements from `low` on."""
        while values.size:
            while low >= self.span.stop:
                self.span, self.target = next(self.blocks)
            count = min(self.span.stop - low, values.size)
            self.target[low - self.span.start : low - self.span.start + count] = values[:count]
            low, values = low + count, values[count:]

    def close(self) -> None:
        """The rest stays as it is."""
        for _ in self.blocks:
            pass


def drawing_bytes(layout: FlatLayout, kept: slice, model: Model) -> int:
    """Workspace of `initialise`, of a rank that keeps the elements `kept`: a block of float32, and what drawing it
    takes, as far as the model's values tell."""
    return 4 * _drawing_block(layout) + max((model.draw(param).workspace(begin, count)
                                             for param, begin, _, count in _drawn(layout, kept)), default=0)


def _drawing_block(layout: FlatLayout) -> int:
    """Elements: with all that drawing them takes never more than the unit weighs in 16 bits."""
    return max(min(DRAW_BLOCK, layout.padded_numel // 16), 1)


def params_from_master(unit: Unit) -> None:
    """Round "master", which was filled from outside, into the parameters, and complete those that are kept whole: then
    collective along the shard axis. Workspace: `planner.need.rounding_bytes`."""
    for span, master in unit.blocks(MASTER.name) if unit.has_master else ():
        for _, out in unit.blocks("param", span, reads=False, writes=True):
            if master.dtype == np.float32 and out.dtype == np.float16:
                _narrow(master, out, unit)
            else:
                np.copyto(out, master, casting="unsafe")  # same_kind does not know bfloat16
    if unit.placement.params is REPLICATED and unit.placement.optim is SHARDED:
        all_gather_param(unit, Axis.SHARD).finish()


def _narrow(master: Array, out: Array, unit: Unit) -> None:
    size = rounding_block_numel(master.size)
    scratch, more = (unit.ledger.empty(size, np.float32, WORKSPACE) for _ in range(2))
    for start in range(0, master.size, size):
        part = slice(start, min(start + size, master.size))
        narrow(master[part], out[part], scratch[: part.stop - start], more[: part.stop - start])
