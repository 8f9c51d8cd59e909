"""Where a unit's weights come from: drawn at the start, or rounded from master weights that were read."""

from __future__ import annotations

import numpy as np

from mpizero.engine.unit import Unit
from mpizero.half import narrow
from mpizero.layout import MASTER, REPLICATED, SHARDED, Axis, FlatLayout, rounding_block_numel
from mpizero.memory.kinds import WORKSPACE
from mpizero.nn.model import DRAW_BLOCK, Model
from mpizero.nn.ops.blocks import spans


def initialise(unit: Unit, model: Model, seed: int) -> None:
    """Draw what this rank keeps, and nothing else, block by block. Workspace: see `drawing_bytes`."""
    unit.ledger.at("init", unit.layout.name)
    master, optimised = unit.states[MASTER.name], unit.range_of(unit.placement.optim)
    size = _drawing_block(unit.layout)
    block = unit.ledger.empty(size, np.float32, WORKSPACE)
    for param, begin, piece in unit.layout.pieces(unit.range_of(unit.placement.params)):
        for span in spans(piece.stop - piece.start, size):
            values, low = block[: span.stop - span.start], piece.start + span.start
            model.fill(param, seed, begin + span.start, values, unit.ledger)
            unit.part_of(unit.param, slice(low, low + values.size))[...] = values
            own = slice(max(low, optimised.start), min(low + values.size, optimised.stop))
            if own.start < own.stop:
                unit.part_of(master, own)[...] = values[own.start - low : own.stop - low]


def drawing_bytes(layout: FlatLayout, kept: slice, model: Model) -> int:
    """Workspace of `initialise`, of a rank that keeps the elements `kept`: a block of float32, and what drawing it
    takes, as far as the model's values tell."""
    size = _drawing_block(layout)
    return 4 * size + max((model.draw(param).workspace(begin + span.start, span.stop - span.start)
                           for param, begin, piece in layout.pieces(kept)
                           for span in spans(piece.stop - piece.start, size)), default=0)


def _drawing_block(layout: FlatLayout) -> int:
    """Elements: with all that drawing them takes never more than the unit weighs in 16 bits."""
    return max(min(DRAW_BLOCK, layout.padded_numel // 16), 1)


def params_from_master(unit: Unit) -> None:
    """Round "master", which was filled from outside, into the parameters, and complete those that are kept whole: then
    collective along the shard axis. Workspace: `planner.need.rounding_bytes`."""
    master, out = unit.states[MASTER.name], unit.updated_param
    if unit.dtype == np.float16 and master.dtype == np.float32:
        size = rounding_block_numel(master.size)
        scratch, more = (unit.ledger.empty(size, np.float32, WORKSPACE) for _ in range(2))
        for start in range(0, master.size, size):
            part = slice(start, min(start + size, master.size))
            narrow(master[part], out[part], scratch[: part.stop - start], more[: part.stop - start])
    elif unit.has_master:
        np.copyto(out, master, casting="unsafe")  # same_kind does not know bfloat16
    if unit.placement.params is REPLICATED and unit.placement.optim is SHARDED:
        unit.all_gather_param(Axis.SHARD).finish()
