"""Digests of what the optimizer holds: the same for every stage, mesh and wrapping if, and only if, the numbers are."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from mpizero.engine.collectives import begin_gather
from mpizero.engine.unit import Unit
from mpizero.layout import REPLICATED, Axis, ModelSpec
from mpizero.memory.kinds import WORKSPACE


def whole_state(unit: Unit, name: str) -> np.ndarray:
    """Elements (numel,) of the state called `name` (master, or one of the optimizer's), gathered over the shard group,
    on which it is collective; padding left out.

    A view of the unit's own buffer where that is a whole array, else workspace.
    """
    unit.ledger.at("digest", unit.layout.name)
    kept = unit.states[name]
    if unit.placement.optim is REPLICATED and isinstance(kept, np.ndarray):
        return kept[: unit.layout.numel]
    flat = unit.ledger.empty(unit.layout.padded_numel, kept.dtype, WORKSPACE)
    for span, values in unit.blocks(name):
        flat[span] = values
    if unit.placement.optim is not REPLICATED:
        begin_gather(unit, flat, Axis.SHARD, "report").finish()
    return flat[: unit.layout.numel]


def sha256(spec: ModelSpec, units: Sequence[Unit], name: str) -> str:
    """SHA-256, in hexadecimal, of a state over all parameters in the model's order that have it, unpadded, as
    little-endian numbers; tiles are the same numbers in the same order.

    Collective over the shard groups. One whole unit lives at a time.
    """
    owner = {param.name: unit for unit in units for param in unit.layout.params}
    digest, current = hashlib.sha256(), None
    views: dict[str, np.ndarray] = {}
    for param in spec.pieces:
        if name not in owner[param.name].states:
            continue
        if owner[param.name] is not current:
            current, views = owner[param.name], {}  # the last unit dies before the next is gathered
            views = current.layout.views(whole_state(current, name))
        size = views[param.name].dtype.itemsize
        # as integers, since bfloat16 has no buffer of its own; no copy on little-endian machines
        digest.update(views[param.name].view(f"u{size}").astype(f"<u{size}", copy=False).data)
    return digest.hexdigest()
