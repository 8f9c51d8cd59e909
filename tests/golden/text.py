"""A text for the GPT, the same on every machine: the standard library's source differs between interpreters."""

from __future__ import annotations

import numpy as np

from mpizero.data import Batch, Dataset
from mpizero.data.counter import hash64

WORDS = "the a rank shard gather scatter of and sum ring sends holds moment weight step is".split()
SIZE = 4000  # bytes
TRAIN = 3800  # of which these are trained on


def pseudo_text() -> bytes:
    """SIZE bytes of ASCII: words and full stops, picked by the linear congruential generator of the C standard."""
    text, state = "", 1
    while len(text) < SIZE:
        state = (1103515245 * state + 12345) % 2**31
        text += WORDS[(state >> 16) % len(WORDS)] + (".\n" if (state >> 20) % 8 == 0 else " ")
    return text[:SIZE].encode("ascii")


class FixedText(Dataset):
    """Windows of `context` bytes of `pseudo_text` and the byte that follows each, drawn by (seed, number): whatever
    becomes of `mpizero.data.Text`, the runs of golden.json see the same."""

    eval_size, fingerprint = 1, 1

    def __init__(self, context: int, seed: int):
        self.targets_per_sample, self.context, self.seed = context, context, seed
        self.tokens = np.frombuffer(pseudo_text(), np.uint8).astype(np.int64)

    def describe(self) -> str:
        return "a made-up text"

    def train(self, samples: np.ndarray) -> Batch:
        starts = (hash64(self.seed, 4, samples) % np.uint64(TRAIN - self.context)).astype(np.int64)
        windows = self.tokens[starts[:, None] + np.arange(self.context + 1)]
        return Batch(windows[:, :-1].copy(), windows[:, 1:].copy())

    def held_out(self, samples: np.ndarray) -> Batch:
        return Batch(self.tokens[None, TRAIN:][:, :self.context], self.tokens[None, TRAIN + 1:][:, :self.context])
