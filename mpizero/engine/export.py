"""Digests of what the optimizer holds: the same for every stage, mesh and wrapping if, and only if, the numbers are."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

import numpy as np

from mpizero.comm import begin_all_gather
from mpizero.engine.collectives import begin_gather
from mpizero.engine.unit import Unit
from mpizero.layout import REPLICATED, Axis, ModelSpec, ParamSpec
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


def whole_param(unit: Unit, param: ParamSpec, mine: np.ndarray) -> np.ndarray:
    """`mine`, this rank's part of a state of one parameter, with what other tensor parallel ranks have of it, in the
    order of its elements; collective over these."""
    tensor = unit.mesh.group(Axis.TENSOR)
    if tensor.size == 1 or param.whole is None:
        return mine
    parts = unit.ledger.empty((tensor.size, *param.shape), mine.dtype, WORKSPACE)
    parts[tensor.rank] = mine
    begin_all_gather(tensor, parts.reshape(-1), unit=unit.layout.name, phase="report").finish()
    if param.columns is None:
        return parts
    whole = unit.ledger.empty(param.whole.shape, mine.dtype, WORKSPACE)
    of_each = whole.reshape(param.columns.count, tensor.size, param.columns.length)
    for rank, part in enumerate(parts):
        of_each[:, rank] = part.reshape(param.columns.count, param.columns.length)
    return whole


def whole_params(spec: ModelSpec, units: Sequence[Unit], name: str) -> Iterator[np.ndarray]:
    """A state over all parameters in the model's order that have it, one after the other, unpadded; tiles are the same
    numbers in the same order. Collective.

    One whole unit lives at a time, and one whole parameter of which tensor parallel ranks have parts, if the caller
    lets go of it.
    """
    owner = {param.name: unit for unit in units for param in unit.layout.params}
    current = None
    views: dict[str, np.ndarray] = {}
    for param in spec.pieces:
        if name not in owner[param.name].states:
            continue
        if owner[param.name] is not current:
            current, views = owner[param.name], {}  # the last unit dies before the next is gathered
            views = current.layout.views(whole_state(current, name))
        yield whole_param(current, param, views[param.name])


def sha256(spec: ModelSpec, units: Sequence[Unit], name: str) -> str:
    """SHA-256, in hexadecimal, of `whole_params` as little-endian numbers. Collective."""
    digest = hashlib.sha256()
    for whole in whole_params(spec, units, name):
        size = whole.dtype.itemsize
        # as integers, since bfloat16 has no buffer of its own; no copy on little-endian machines
        digest.update(whole.view(f"u{size}").astype(f"<u{size}", copy=False).data)
        del whole
    return digest.hexdigest()
