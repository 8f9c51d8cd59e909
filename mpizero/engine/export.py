"""Digests of what the optimizer holds: the same for every stage, mesh and wrapping if, and only if, the numbers are."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from mpizero.dist import all_gather
from mpizero.engine.unit import Unit
from mpizero.layout import REPLICATED, ModelSpec


def whole_state(unit: Unit, buffer: str) -> np.ndarray:
    """Float32 elements (numel,) of `buffer` (master, exp_avg or exp_avg_sq), gathered over the shard group; padding left out."""
    kept = getattr(unit, buffer)
    if unit.placement.optim is REPLICATED:
        return kept[: unit.layout.numel]
    flat = np.empty(unit.layout.padded_numel, np.float32)
    flat[unit.shard] = kept
    all_gather(unit.mesh.shard, flat, unit=unit.layout.name, phase="report")
    return flat[: unit.layout.numel]


def sha256(spec: ModelSpec, units: Sequence[Unit], buffer: str) -> str:
    """SHA-256 of `buffer` over all parameters in the model's order, unpadded, as little-endian float32. One whole unit lives at a time."""
    owner = {param.name: unit for unit in units for param in unit.layout.params}
    digest, current, views = hashlib.sha256(), None, {}
    for param in spec.params:
        if owner[param.name] is not current:
            current = owner[param.name]
            views = current.layout.views(whole_state(current, buffer))
        digest.update(np.ascontiguousarray(views[param.name], dtype="<f4").tobytes())
    return digest.hexdigest()
