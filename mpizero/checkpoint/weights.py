"""Weights by name, wherever they lie: a checkpoint of ours, or a safetensors file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Protocol, final

import numpy as np

from mpizero.checkpoint.format import LATEST
from mpizero.checkpoint.models import EMBEDDING, OUTPUT, Shape
from mpizero.checkpoint.read import open_checkpoint
from mpizero.checkpoint.tensors import Tensors
from mpizero.dtypes import ITEMSIZE, numpy_dtype
from mpizero.errors import CheckpointError
from mpizero.layout import MASTER, READ_BLOCK, Strided

BLOCK = 2**18  # elements that are read at once where nobody counts memory


class Weights(Protocol):
    """path: for messages. params: name -> shape. dtypes: as they are stored. dtype: to compute in. heads: of a GPT;
    None if nothing says. digest: the same on two hosts if the weights are."""

    path: Path
    params: dict[str, Shape]
    dtypes: dict[str, str]
    dtype: str
    heads: int | None
    digest: str

    def fill(self, name: str, begin: int, out: np.ndarray, scratch: np.ndarray) -> None:
        """Elements of a parameter from `begin` on into `out` (n,), of the stored dtype. scratch: bytes, destroyed."""


@final
class SavedWeights:
    """The master weights of a checkpoint."""

    def __init__(self, path: str | Path):
        self.checkpoint = open_checkpoint(path)
        self.path, self.params = self.checkpoint.folder, self.checkpoint.params
        for name, states in self.checkpoint.kept.items():
            if MASTER.name not in states:
                raise CheckpointError(f"{self.path} holds no weights of {name}")
        self.dtypes = {name: states[MASTER.name] for name, states in self.checkpoint.kept.items()}
        settings = self.checkpoint.about["settings"]
        dtype, heads = settings.get("dtype"), settings.get("heads")
        self.dtype: str = dtype if isinstance(dtype, str) and dtype in ITEMSIZE else "float32"
        self.heads: int | None = heads if type(heads) is int and heads > 0 else None
        self.digest: str = self.checkpoint.contents.digest

    def fill(self, name: str, begin: int, out: np.ndarray, scratch: np.ndarray) -> None:
        self.checkpoint.fill(MASTER.name, name, Strided(begin, out.size), out, scratch)


def open_weights(path: str | Path) -> Weights:
    """A checkpoint, named by D/latest, D or its own folder, or a safetensors file. CheckpointError names the file and
    what is wrong with it."""
    given = Path(path)
    return Tensors(given) if given.name != LATEST and given.is_file() else SavedWeights(path)


def fill_as(weights: Weights, name: str, begin: int, out: np.ndarray, scratch: np.ndarray) -> None:
    """Elements of a parameter from `begin` on into `out` (n,) of any floating dtype, rounded to it. scratch: bytes, 16
    or more, destroyed."""
    stored = numpy_dtype(weights.dtypes[name])
    if stored == out.dtype:
        weights.fill(name, begin, out, scratch)
        return
    half = scratch.size // 16 * 8
    block, rest = scratch[:half].view(stored), scratch[half:]
    for start in range(0, out.size, block.size):
        piece = block[: min(block.size, out.size - start)]
        weights.fill(name, begin + start, piece, rest)
        with np.errstate(over="ignore"):
            np.copyto(out[start : start + piece.size], piece, casting="unsafe")  # same_kind does not know bfloat16


def pieces(weights: Weights, name: str, dtype: str) -> Iterator[np.ndarray]:
    """All elements of a parameter, block by block, in a buffer that each block overwrites."""
    numel, scratch = int(np.prod(weights.params[name], dtype=np.int64)), np.empty(READ_BLOCK, np.uint8)
    buffer = np.empty(min(BLOCK, numel), numpy_dtype(dtype))
    for begin in range(0, numel, BLOCK):
        piece = buffer[: min(BLOCK, numel - begin)]
        fill_as(weights, name, begin, piece, scratch)
        yield piece


def is_tied(weights: Weights) -> bool:
    """Whether there is an output matrix that is the token embedding once more, as some libraries store it."""
    if weights.params.get(OUTPUT, ()) != weights.params.get(EMBEDDING):
        return False
    dtype = weights.dtypes[OUTPUT]
    return weights.dtypes[EMBEDDING] == dtype and all(
        one.tobytes() == other.tobytes()
        for one, other in zip(pieces(weights, OUTPUT, dtype), pieces(weights, EMBEDDING, dtype), strict=True))


def own_params(weights: Weights, tied: bool) -> Mapping[str, Shape]:
    """Names and shapes, a `tied` output matrix left out."""
    return {name: shape for name, shape in weights.params.items() if not (tied and name == OUTPUT)}
