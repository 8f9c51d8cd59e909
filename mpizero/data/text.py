"""Byte-level text: the bytes of a file or folder, cut into windows."""

from __future__ import annotations

import os
import sysconfig
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from mpizero.data.counter import hash64
from mpizero.data.dataset import Batch, Dataset
from mpizero.errors import DataError

CHUNK = 64 * 1024  # bytes of a chunk; every EVERY-th chunk is held out
EVERY = 20
EVAL_WINDOWS = 128
_TRAIN = 4  # stream
_GRANT = "grant read permission, or give `data` another path"
_CURE = "give `data` a text file or a folder of them, or leave `data` away for the standard library's source"


class Text(Dataset):
    """Windows of `context` tokens and, as targets, the token that follows each. x, y int64 (n, context), values 0..255.

    The text is cut into chunks and every 20th is held out, so both splits cover all of it. A window lies inside one run
    of training text or inside one held-out chunk, and so does the token after it: nothing held out is ever trained on.
    Training sample i is the window numbered hash(seed, i) among all training windows; held-out samples are
    `EVAL_WINDOWS` windows spread evenly over all held-out windows, whatever the seed.
    """

    def __init__(self, tokens: np.ndarray, context: int, seed: int):
        assert tokens.dtype == np.uint8 and tokens.ndim == 1
        self.tokens, self.context, self.seed, self.targets_per_sample = tokens, context, seed, context
        train, held_out = split(tokens.size, context)
        self._train_windows, self._eval_windows = _Windows(train, context), _Windows(held_out, context)
        if not (self._train_windows.count and self._eval_windows.count):
            raise DataError(f"the text has {tokens.size:,} bytes, but windows of {context} tokens need at least "
                            f"{2 * (context + 1):,}: {context + 1:,} to train on and {context + 1:,} held out; use "
                            "more text or a smaller `context`")
        self.eval_size = min(EVAL_WINDOWS, self._eval_windows.count)

    @property
    def fingerprint(self) -> int:
        return zlib.crc32(self.tokens.data) << 21 | self.tokens.size % (1 << 21)

    def describe(self) -> str:
        held_out = sum(stop - start for start, stop in split(self.tokens.size, self.context)[1])
        return (f"text: {self.tokens.size:,} bytes, {held_out:,} of them held out, evaluated on {self.eval_size} "
                f"windows of {self.context} tokens")

    def train(self, samples: np.ndarray) -> Batch:
        # the bias, count / 2^64, is beyond notice
        window = hash64(self.seed, _TRAIN, samples) % np.uint64(self._train_windows.count)
        return self._cut(self._train_windows.starts(window.astype(np.int64)))

    def held_out(self, samples: np.ndarray) -> Batch:
        window = (2 * samples + 1) * self._eval_windows.count // (2 * self.eval_size)
        return self._cut(self._eval_windows.starts(window))

    def _cut(self, starts: np.ndarray) -> Batch:
        """starts int64 (n,) -> x, y (n, context)."""
        windows = self.tokens[starts[:, None] + np.arange(self.context + 1)].astype(np.int64)
        return Batch(windows[:, :-1].copy(), windows[:, 1:].copy())


class _Windows:
    """All windows of context + 1 tokens inside given runs of text, numbered through."""

    def __init__(self, runs: list[tuple[int, int]], context: int):
        self._first = np.array([start for start, _ in runs], np.int64)
        counts = np.array([max(0, stop - start - context) for start, stop in runs], np.int64)
        self._after = np.cumsum(counts)  # number of windows up to and including each run
        self._before = self._after - counts
        self.count = int(self._after[-1]) if runs else 0

    def starts(self, window: np.ndarray) -> np.ndarray:
        """Window numbers int64 (n,) -> positions of their first tokens."""
        run = np.searchsorted(self._after, window, side="right")
        return self._first[run] + (window - self._before[run])


def split(size: int, context: int) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Runs (start, stop) of training text and of held-out text that together cover `size` bytes.

    Chunks of 64 KiB, less where the text is too short for 20 of them, but never too short for a window. With fewer than
    20 chunks the last one is held out.
    """
    chunk = max(min(CHUNK, size // EVERY), context + 1)
    every = min(EVERY, size // chunk)
    if every < 2:
        return [(0, size)], []
    held_out = [(start, min(start + chunk, size)) for start in range((every - 1) * chunk, size, every * chunk)]
    edges = [0, *(edge for run in held_out for edge in run), size]
    train = [(start, stop) for start, stop in zip(edges[::2], edges[1::2], strict=True) if start < stop]
    return train, held_out


def load_text(path: str | Path | None = None) -> np.ndarray:
    """All bytes of a file, or of every regular file below a folder in the order of their paths: uint8 (n,).

    None: the *.py files of the running interpreter's standard library, without site-packages. Symbolic links to folders
    are not followed.
    """
    if path is None:
        return _join(_standard_library())
    source = Path(path)
    if source.is_dir():
        tokens = _join(_files(source))
    elif source.is_file():
        tokens = _join([source])
    elif source.exists():
        raise DataError(f"`data` {path} is neither a file nor a folder, so its bytes cannot be numbered: {_CURE}")
    else:
        raise DataError(f"`data` {path} does not exist: {_CURE}")
    if not tokens.size:
        raise DataError(f"`data` {path} is empty: {_CURE}")
    return tokens


def _standard_library() -> list[Path]:
    root = Path(sysconfig.get_path("stdlib"))
    files = [file for file in _files(root, skip=("site-packages", "dist-packages", "__pycache__"))
             if file.suffix == ".py"]
    if not files:
        raise DataError(f"the standard library at {root} holds no source, so there is no default text: give `data` a "
                        "text file or a folder")
    return files


def _files(root: Path, skip: tuple[str, ...] = ()) -> list[Path]:
    """Regular files below `root`, by path.

    Sorted by parts, so that the order is that of the names and not of the file system.
    """
    return sorted(_walk(root, skip), key=lambda file: file.parts)


def _walk(root: Path, skip: tuple[str, ...]) -> Iterator[Path]:
    def unreadable(error: OSError) -> None:
        raise DataError(f"the folder {error.filename} cannot be read ({error.strerror}): {_GRANT}") from None

    for folder, folders, names in os.walk(root, onerror=unreadable):
        folders[:] = [name for name in folders if name not in skip]
        yield from (file for name in names if (file := Path(folder, name)).is_file())


def _join(files: list[Path]) -> np.ndarray:
    parts = []
    for file in files:
        try:
            parts.append(np.frombuffer(file.read_bytes(), np.uint8))
        except OSError as error:
            raise DataError(f"the file {file} cannot be read ({error.strerror}): {_GRANT}") from None
        except MemoryError:
            raise DataError(f"the file {file} does not fit into memory: {_CURE}") from None
    return parts[0] if len(parts) == 1 else np.concatenate([np.empty(0, np.uint8), *parts])
