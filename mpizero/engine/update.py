"""The optimizer's step on what a rank keeps of a unit, now or beside the next step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from mpizero.engine.beside import Beside, Host
from mpizero.engine.pending import Pending
from mpizero.engine.rooms import Array
from mpizero.engine.unit import Unit
from mpizero.layout import MASTER, UPDATE_BLOCK
from mpizero.memory.kinds import PARAM
from mpizero.optim import ALONE, Optimizer, Workers

THREADED = 2 * UPDATE_BLOCK  # elements; of fewer an update is over before threads are awake


@dataclass(frozen=True)
class Update:
    """What an update needs that only the whole job knows: decided when ranks agree, the same on every rank."""

    optimizer: Optimizer
    lr: float
    step: int  # of the optimizer, counted from 1: skipped steps do not count
    factor: float  # clip coefficient / loss scale
    workers: Workers = ALONE  # threads of this rank


def optim_step(unit: Unit, update: Update) -> None:
    """The optimizer on this rank's range; the result is rounded into the parameters it keeps, or into `new` where
    these are not where the states are. Weight decay shrinks the elements of its own parameters alone, wherever the
    shard begins."""
    assert not unit.gathered, f"unit {unit.layout.name} is gathered: its whole parameters would be old"
    kept = unit.range_of(unit.placement.optim)
    streams = {"grad": unit.blocks("grad", kept)}
    streams |= {name: unit.blocks(name, kept, writes=True) for name in unit.states}
    if unit.placement.apart:
        unit.new = unit.updating.empty(kept.stop - kept.start, unit.dtype, PARAM)
    elif unit.has_master:
        streams["out"] = unit.blocks("param", kept, reads=False, writes=True)
    for found in zip(*streams.values(), strict=True):
        arrays, part = {name: values for name, (_, values) in zip(streams, found, strict=True)}, found[0][0]
        out = arrays.get("out") if unit.new is None else unit.new[part.start - kept.start : part.stop - kept.start]
        _prepared(unit, update, arrays, part, out)()


def late_step(unit: Unit, update: Update, host: Host) -> Pending:
    """The same in the host's thread, of the gradient that is held. Its storage is taken now."""
    assert unit.held is not None and unit.placement.apart, f"unit {unit.layout.name} holds no gradient"
    kept = unit.range_of(unit.placement.optim)
    arrays = {name: values for name in unit.states for _, values in unit.blocks(name, kept)}
    unit.new = unit.updating.empty(kept.stop - kept.start, unit.dtype, PARAM)
    go = _prepared(unit, update, arrays | {"grad": unit.held}, kept, unit.new)
    return Pending(Beside(host, unit.layout.name, go))


def _prepared(unit: Unit, update: Update, arrays: Mapping[str, Array], part: slice,
              out: Array | None) -> Callable[[], None]:
    """The update of the elements `part`, of which `arrays` holds gradient and states by name."""
    master = arrays[MASTER.name]
    return update.optimizer.prepared(master, arrays, arrays["grad"], lr=update.lr, step=update.step,
                                     factor=update.factor, mem=unit.updating, out=out,
                                     decayed=unit.layout.decayed(part),
                                     workers=update.workers if master.size >= THREADED else ALONE)


def store_param(unit: Unit) -> None:
    """What a late update gave, into the parameters that are kept on its tier."""
    assert unit.new is not None, f"unit {unit.layout.name} has no new parameters"
    np.copyto(unit.updated_param, unit.new)
    unit.updating.discard(unit.new)
    unit.new = None
