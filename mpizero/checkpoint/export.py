"""A checkpoint's weights as one safetensors file, by the names and shapes of Hugging Face's GPT-2. Needs no ranks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from mpizero.checkpoint.tensors import check_new, write_tensors
from mpizero.checkpoint.weights import SavedWeights, pieces
from mpizero.errors import CheckpointError
from mpizero.quantities import in_units
from mpizero.text import counted


def export(path: str | Path, out: str | Path, *, dtype: str = "float32", force: bool = False) -> dict[str, Any]:
    """Write the master weights of D/latest, D or D/step-00000020; what was written, as `--json` has it. A block of
    weights at a time is in memory. force: replace a file that is there.

    CheckpointError where the checkpoint is not what it should be, or the file cannot be written.
    """
    check_new(Path(out), force)
    weights = SavedWeights(path)
    about = weights.checkpoint.about
    metadata = {"format": "pt", "model": str(about.get("model")), "step": str(about["step"])}  # pt: or no transformers
    if weights.heads:
        metadata["heads"] = str(weights.heads)
    params = list(weights.params.items())
    size = write_tensors(Path(out), params, dtype, metadata, _values(weights, dtype), force=force)
    return {"checkpoint": str(weights.path), "file": str(out), "bytes": size, "dtype": dtype, "step": about["step"],
            "parameters": len(params), "elements": sum(int(np.prod(shape, dtype=np.int64)) for _, shape in params)}


def _values(weights: SavedWeights, dtype: str) -> Iterator[np.ndarray]:
    for name in weights.params:
        for piece in pieces(weights, name, dtype):
            if dtype == "float16" and np.isinf(piece).any():
                raise CheckpointError(f"{name} of {weights.path} holds numbers beyond 65,504, float16's largest: use "
                                      "`dtype` bfloat16 or float32")
            yield piece


def show(found: dict[str, Any]) -> str:
    """In one line."""
    return (f"wrote {found['file']}: {counted(found['parameters'], 'parameter')}, {found['elements']:,} numbers of "
            f"{found['dtype']}, {in_units(found['bytes'])}; weights of step {found['step']:,} of {found['checkpoint']}")
