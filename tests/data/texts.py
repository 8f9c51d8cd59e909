"""Texts for tests, and a search that knows nothing of how they are cut."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from mpizero.data import Text, find_text


def prose(size: int, seed: int = 0) -> bytes:
    """`size` bytes of lines of made-up words, no line like another."""
    rng = np.random.default_rng(seed)
    letters = rng.integers(97, 123, size, np.uint8)
    letters[rng.random(size) < 1 / 6], letters[rng.random(size) < 1 / 40] = 32, 10
    return letters.tobytes()


def opened(path: Path, context: int, seed: int = 0, epochs: bool = False) -> Text:
    return Text(find_text(path), context, seed, epochs=epochs)


def evaluated(text: Text) -> list[bytes]:
    """The windows that an evaluation sees, with the token that follows each."""
    x, y = text.eval_batch(np.arange(text.eval_size))
    return [bytes(row) for row in np.concatenate([x, y[:, -1:]], axis=1).astype(np.uint8)]


def training_text(text: Text, held_out: bool = False) -> list[bytes]:
    """All runs of bytes that training windows may lie in, or those that are held out."""
    runs = (text._eval_windows if held_out else text._train_windows).runs
    return [Path(text.files[file]).read_bytes()[start:stop] for file, start, stop in zip(*runs, strict=True)]


def leaked(text: Text) -> int:
    """How many evaluated windows stand somewhere in the training text."""
    there = training_text(text)
    return sum(any(window in run for run in there) for window in evaluated(text))
