"""A checkpoint of weights from a safetensors file, whoever wrote it. Needs no ranks."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from mpizero.checkpoint.files import unwritable
from mpizero.checkpoint.folder import commit, complete, lock, temporary
from mpizero.checkpoint.format import Param, params_data, step_name
from mpizero.checkpoint.models import model_of
from mpizero.checkpoint.save import Piece, write_part
from mpizero.checkpoint.tensors import Tensors
from mpizero.checkpoint.weights import Weights, fill_as, is_tied, own_params
from mpizero.engine.config import SIZES
from mpizero.engine.versions import versions
from mpizero.errors import CheckpointError
from mpizero.layout import MASTER, READ_BLOCK, Strided
from mpizero.layout.models import GPTConfig
from mpizero.text import counted


def import_weights(path: str | Path, folder: str | Path, *, heads: int | None = None) -> dict[str, Any]:
    """Write folder/step-00000000, from which `init` starts and `sample` writes; what was imported, as `--json` has it.
    Float32, a parameter at a time in memory. heads: of a GPT whose file does not say; None: as GPT-2 has them.

    CheckpointError where the file holds no model of ours, or the folder has checkpoints already.
    """
    weights, target = Tensors(Path(path)), Path(folder)
    shapes = own_params(weights, is_tied(weights))
    sizes = model_of(shapes, weights.heads if heads is None else heads, path)
    model, run = "gpt" if isinstance(sizes, GPTConfig) else "mlp", secrets.token_hex(6)
    about = {"saved": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"), "step": 0, "updates": 0, "position": 0,
             "scaler": {}, "model": model, "world_size": 1, "runs": [run], "weights_only": True,
             "settings": {"model": model, "dtype": "float32", **asdict(sizes)},
             "data": {"describe": f"none: weights of {Path(path).name}"}, "versions": versions(),
             "params": params_data([Param(name, shape, {MASTER.name: "float32"}) for name, shape in shapes.items()])}
    with lock(target, run):
        if there := complete(target):
            raise CheckpointError(f"{target} holds {next(iter(there)).name} already: name another folder")
        _write(target / step_name(0), run, about, _values(weights, list(shapes)))
    return {"file": str(path), "folder": str(target / step_name(0)), "model": model, **asdict(sizes),
            "parameters": len(shapes), "elements": sum(int(np.prod(shape)) for shape in shapes.values())}


def _values(weights: Weights, names: list[str]) -> Iterator[Piece]:
    scratch = np.empty(READ_BLOCK, np.uint8)
    for name in names:
        values = np.empty(int(np.prod(weights.params[name])), np.float32)
        fill_as(weights, name, 0, values, scratch)
        yield MASTER.name, name, Strided(0, values.size), [values]


def _write(target: Path, run: str, about: dict[str, Any], values: Iterator[Piece]) -> None:
    made = target.with_name(temporary(target.name, run))
    try:
        made.mkdir()
        commit(made, target, {**about, "parts": [write_part(made, 0, values)]}, run)
    except OSError as error:
        raise unwritable(Path(error.filename or made), error) from None
    finally:
        shutil.rmtree(made, ignore_errors=True)  # it has another name if all went well


def show(found: dict[str, Any]) -> str:
    """In one line."""
    sizes = ", ".join(f"{name.replace('_', '-')} {found[name]:,}" for name in
                      (*SIZES, "vocab", "inputs", "classes") if name in found)
    return (f"wrote {found['folder']}: {found['model']}, {sizes}; {found['elements']:,} numbers of "
            f"{counted(found['parameters'], 'parameter')} from {found['file']}")
