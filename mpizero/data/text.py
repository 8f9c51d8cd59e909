"""Byte-level text: the bytes of a file or folder, cut into windows."""

from __future__ import annotations

import stat
import sysconfig
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from mpizero.data.counter import hash64, permuted
from mpizero.data.dataset import Batch, Dataset
from mpizero.data.files import File, Found, file, find, status
from mpizero.data.split import hold_out
from mpizero.data.windows import Runs, Windows, cut
from mpizero.errors import DataError
from mpizero.text import counted

SHARE = 1 / 20  # of the bytes is held out
EVAL_WINDOWS = 128
_TRAIN, _ORDER, _SHIFT = 4, 6, 7  # streams
_CURE = "give `data` a text file or a folder of them, or leave `data` away for the standard library's source"


class Text(Dataset):
    """Windows of `context` tokens and, as targets, the token that follows each. x, y int64 (n, context), values 0..255.

    Each file is cut into chunks where its content says so, and a hash of the 64 bytes at a chunk's end says whether it
    is held out (see `chunks`, `split`). Promised: no held-out chunk is a training chunk as well, in any file at any
    place; so what is held out of a file is held out of its copies too, also where they are shifted. Not promised: that
    no part of a held-out chunk is repeated within another training chunk, as around an edit, or at the ends of a text
    that is embedded in another. A text that is too short or too repetitive for that has its end held out, by position.

    A window lies inside one run of neighbouring training chunks of one file, or inside one held-out chunk, and so does
    the token after it. Training sample i is the window numbered hash(seed, i) among all. With `epochs` it is one of
    those that cover each run without overlap, each once an epoch, in an order by (seed, epoch); what a whole number of
    windows leaves over, fewer than `context` bytes of a run, is divided anew between its two ends in each epoch.
    Held-out samples are `EVAL_WINDOWS` windows spread evenly over all held-out ones, whatever the seed.

    Nothing of the text stays in memory: windows are read from the files when they are needed.
    """

    def __init__(self, found: Found, context: int, seed: int, *, epochs: bool = False):
        self.found, self.context, self.seed, self.targets_per_sample = found, context, seed, context
        runs, keys, self._fingerprint = cut(found.files, context)
        held_out = hold_out(keys, runs.size, SHARE, runs.size > context)
        self.by_content = _both_sides(runs, held_out, context)
        if not self.by_content:
            runs, held_out = _by_position(found.files, context)
        self.held_out_bytes = int(runs.size[held_out].sum())
        self._train_windows = Windows(runs.only(~held_out).merged(), context, stride=context if epochs else 1)
        self._eval_windows = Windows(runs.only(held_out), context)
        self.eval_size = min(EVAL_WINDOWS, self._eval_windows.count)
        self.epoch_size = self._train_windows.count if epochs else None

    @property
    def fingerprint(self) -> int:
        return self._fingerprint

    @property
    def files(self) -> list[str]:
        return [file.path for file in self.found.files]

    def describe(self) -> str:
        skipped = ", ".join(counted(number, what) for number, what in ((self.found.skipped_folders, "folder"),
                                                                       (self.found.skipped_files, "file")) if number)
        how = "by content" if self.by_content else "by position, which copies may undo"
        return (f"text: {_size(self.found.files):,} bytes of {counted(len(self.found.files), 'file')}"
                f"{f' (skipped {skipped})' if skipped else ''}, {self.held_out_bytes:,} of them held out {how}, "
                f"evaluated on {counted(self.eval_size, 'window')} of {self.context} tokens")

    def train(self, samples: np.ndarray) -> Batch:
        windows = self._train_windows
        if self.epoch_size is None:  # the bias, count / 2^64, is beyond notice
            numbers = (hash64(self.seed, _TRAIN, samples) % np.uint64(windows.count)).astype(np.int64)
            return self._read(windows, *windows.places(numbers))
        epochs, places = np.divmod(samples, windows.count)
        run, start = windows.places(permuted(self.seed, _ORDER, epochs, places, windows.count))
        draws = hash64(self.seed, _SHIFT, epochs * windows.shifts.size + run)
        return self._read(windows, run, start + (draws % windows.shifts[run].astype(np.uint64)).astype(np.int64))

    def held_out(self, samples: np.ndarray) -> Batch:
        windows = self._eval_windows
        return self._read(windows, *windows.places((2 * samples + 1) * windows.count // (2 * self.eval_size)))

    def _read(self, windows: Windows, run: np.ndarray, start: np.ndarray) -> Batch:
        """Runs and places in their files, int64 (n,) -> x, y (n, context)."""
        files = (self.found.files[number] for number in windows.runs.file[run])
        data = b"".join(file.read([place], self.context + 1) for file, place in zip(files, start.tolist(), strict=True))
        tokens = np.frombuffer(data, np.uint8).reshape(start.size, self.context + 1)
        return Batch(tokens[:, :-1].astype(np.int64), tokens[:, 1:].astype(np.int64))


def _size(files: Iterable[File]) -> int:
    return sum(file.size for file in files)


def _both_sides(runs: Runs, held_out: np.ndarray, context: int) -> bool:
    """Whether there is a window to train on and one to evaluate."""
    return min(Windows(side, context).count for side in (runs.only(~held_out).merged(), runs.only(held_out))) > 0


def _by_position(files: list[File], context: int) -> tuple[Runs, np.ndarray]:
    """A run for each file, but two of the longest, of which the second is held out."""
    number, window = max(range(len(files)), key=lambda number: files[number].size), context + 1
    longest = files[number].size
    if longest < 2 * window:
        where = f", {longest:,} of them in the longest file" if len(files) > 1 else ""
        raise DataError(f"the text has {_size(files):,} bytes{where}, but windows of {context} tokens need at least "
                        f"{2 * window:,} of one file: {window:,} to train on and {window:,} held out; use longer texts "
                        "or a smaller `context`")
    stop = np.array([file.size for file in files])
    runs = Runs(np.arange(len(files)), np.zeros_like(stop), stop)
    held_out = longest - max(window, int(SHARE * longest))
    runs = Runs(*(np.insert(column, number + where, value) for column, where, value in
                  zip(runs, (0, 1, 0), (number, held_out, held_out), strict=True)))
    return runs, np.arange(len(files) + 1) == number + 1


def find_text(path: str | Path | None = None, outputs: Iterable[str | Path] = ()) -> Found:
    """A file, or the files below a folder: see `files.find`, also for `outputs`.

    None: the *.py files of the running interpreter's standard library, without site-packages.
    """
    if path is None:
        return _standard_library()
    there = status(path)
    if there is None:
        raise DataError(f"`data` {path} does not exist: {_CURE}")
    if stat.S_ISDIR(there.st_mode):
        found = find(Path(path), outputs)
    elif stat.S_ISREG(there.st_mode):
        found = Found([file(path)])
    else:
        raise DataError(f"`data` {path} is neither a file nor a folder, so its bytes cannot be numbered: {_CURE}")
    if not _size(found.files):
        skipped = found.skipped_files + found.skipped_folders
        but = " but for what is skipped: hidden, generated, a run's log or no regular file" if skipped else ""
        raise DataError(f"`data` {path} is empty{but}: {_CURE}")
    return found


def _standard_library() -> Found:
    root = Path(sysconfig.get_path("stdlib"))
    found = find(root, others=("site-packages", "dist-packages"))
    files = [file for file in found.files if file.path.endswith(".py")]
    if not files:
        raise DataError(f"the standard library at {root} holds no source, so there is no default text: give `data` a "
                        "text file or a folder")
    return Found(files)
