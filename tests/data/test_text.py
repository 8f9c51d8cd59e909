from __future__ import annotations

import os
import stat

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpizero.data import IGNORE, Text, load, load_text
from mpizero.data.text import CHUNK, EVAL_WINDOWS, split
from mpizero.errors import DataError


def numbered(n):
    """Tokens that say where they are: any two neighbours differ by 1 modulo 251."""
    return (np.arange(n) % 251).astype(np.uint8)


@given(st.integers(0, 5000), st.integers(1, 300))
def test_split_is_a_partition(size, context):
    train, held_out = split(size, context)
    runs = sorted(train + held_out)
    assert [start for start, _ in runs] == [0, *(stop for _, stop in runs[:-1])] and runs[-1][1] == size
    assert all(start < stop for start, stop in held_out)
    if size >= 2 * (context + 1):
        assert held_out and max(b - a for a, b in train) > context and max(b - a for a, b in held_out) > context


def test_split_of_a_large_text_is_every_twentieth_chunk():
    size = 100 * CHUNK + 17
    train, held_out = split(size, 128)
    assert held_out == [(k * CHUNK, (k + 1) * CHUNK) for k in (19, 39, 59, 79, 99)]
    assert len(train) == 6 and sum(b - a for a, b in train) == 95 * CHUNK + 17


@given(st.integers(2, 3000), st.integers(1, 100), st.integers(0, 2**40))
def test_windows_are_shifted_by_one_and_stay_in_their_split(size, context, first):
    if size < 2 * (context + 1):
        return
    where = np.arange(size)
    text = Text(numbered(size), context, seed=1)
    held_out = np.zeros(size, bool)
    for start, stop in split(size, context)[1]:
        held_out[start:stop] = True
    for starts, inside in ((text._train_windows, ~held_out), (text._eval_windows, held_out)):
        positions = starts.starts(np.arange(starts.count))
        windows = where[positions[:, None] + np.arange(context + 1)]
        assert inside[windows].all() and np.unique(positions).size == starts.count
        all_such = [a for a in range(size - context) if inside[a : a + context + 1].all()]
        assert positions.tolist() == all_such
    for x, y in (text.train_batch(first + np.arange(5)), text.eval_batch(np.arange(text.eval_size))):
        assert x.dtype == y.dtype == np.int64 and x.shape == y.shape and x.shape[1] == context
        assert ((x + 1) % 251 == y).all() and (x[:, 1:] == y[:, :-1]).all()
        assert x.flags.c_contiguous and y.flags.c_contiguous


def test_every_training_window_is_equally_likely():
    text = Text(numbered(40), 3, seed=0)
    n = 100_000
    x, _ = text.train_batch(np.arange(n))
    counts = np.bincount(x[:, 0], minlength=40)
    expected = n / text._train_windows.count
    assert (counts > 0).sum() == text._train_windows.count
    assert np.abs(counts[counts > 0] - expected).max() < 5 * np.sqrt(expected)


def test_sample_depends_on_seed_and_number_only():
    tokens = np.random.default_rng(0).integers(0, 256, 5000).astype(np.uint8)
    x, y = Text(tokens, 16, seed=4).train_batch(np.arange(200))
    order = np.random.default_rng(1).permutation(200)
    xs, ys = Text(tokens, 16, seed=4).train_batch(order)
    assert np.array_equal(xs, x[order]) and np.array_equal(ys, y[order])
    assert not np.array_equal(Text(tokens, 16, seed=5).train_batch(np.arange(200))[0], x)
    # held-out windows are the same for every seed, so evaluation losses of runs compare
    assert np.array_equal(*(Text(tokens, 16, seed=s).eval_batch(np.arange(20))[0] for s in (4, 5)))


def test_held_out_windows_spread_over_all_held_out_chunks():
    size = 60 * CHUNK
    where = np.arange(size)
    text = Text((where // CHUNK).astype(np.uint8), 64, seed=0)
    assert text.eval_size == EVAL_WINDOWS
    x, _ = text.eval_batch(np.arange(EVAL_WINDOWS))
    chunks, counts = np.unique(x, return_counts=True)
    assert chunks.tolist() == [19, 39, 59] and counts.min() >= 42 * 64 and counts.sum() == 128 * 64
    # and over a chunk's inside: the position within 256 bytes takes many values
    x, _ = Text((where % 251).astype(np.uint8), 64, seed=0).eval_batch(np.arange(EVAL_WINDOWS))
    assert np.unique(x[:, 0]).size > 60


def test_few_held_out_windows_are_not_repeated():
    text = Text(numbered(30), 9, seed=0)
    x, _ = text.eval_batch(np.arange(text.eval_size))
    assert text.eval_size == np.unique(x[:, 0]).size == 1
    with pytest.raises(AssertionError):
        text.eval_batch(np.array([1]))


def test_pads_have_no_target():
    x, y = Text(numbered(100), 4, seed=0).train_batch(np.array([5, -1]))
    assert (y[1] == IGNORE).all() and (y[0] >= 0).all() and (x >= 0).all()


@pytest.mark.parametrize("size", [1, 4, 5, 9])
def test_text_shorter_than_two_windows(size):
    with pytest.raises(DataError, match=rf"{size} bytes.*at least 10.*`context`"):
        Text(numbered(size), 4, seed=0)
    Text(numbered(10), 4, seed=0)


# -- loading ----------------------------------------------------------------------------------------------------------


def test_file_and_folder_are_bytes_in_order_of_path(tmp_path):
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "x.bin").write_bytes(bytes(range(256)))
    (tmp_path / "b.txt").write_bytes(b"b.txt")
    (tmp_path / "a.txt").write_bytes("ä".encode("latin-1"))
    (tmp_path / "a.txt.empty").write_bytes(b"")
    os.mkfifo(tmp_path / "aa.fifo")  # reading it would hang
    (tmp_path / "zz").symlink_to(tmp_path)  # nor is a loop followed
    assert load_text(tmp_path / "a.txt").tobytes() == b"\xe4"
    assert load_text(str(tmp_path)).tobytes() == b"\xe4" + bytes(range(256)) + b"b.txt"
    assert isinstance(load("gpt", tmp_path, seed=0, context=8), Text)


def test_standard_library_is_there_and_the_same_every_time():
    tokens = load_text(None)
    assert tokens.size > 2_000_000
    assert tokens.tobytes() == load_text(None).tobytes()
    assert bytes(tokens).find(b"class JSONDecoder") > 0 and bytes(tokens).find(b"pytest.raises(DataError") < 0
    assert f"{tokens.size:,} bytes" in Text(tokens, 128, seed=0).describe()


def test_fingerprint_sees_every_byte_and_the_size():
    tokens = numbered(1000)
    other = tokens.copy()
    other[500] ^= 1
    prints = [Text(text, 8, seed=0).fingerprint for text in (tokens, other, tokens[:-1], np.append(tokens, tokens[:1]))]
    assert len(set(prints)) == 4 and all(0 < number < 2**53 for number in prints)
    assert Text(tokens, 8, seed=1).fingerprint == prints[0]


@pytest.mark.parametrize(("make", "says"), [
    (lambda path: None, "does not exist"),
    (lambda path: path.write_bytes(b""), "is empty"),
    (lambda path: path.mkdir(), "is empty"),
    (lambda path: os.mkfifo(path), "is neither a file nor a folder"),
])  # fmt: skip
def test_unusable_paths(tmp_path, make, says):
    make(tmp_path / "data")
    with pytest.raises(DataError, match=f"data {says}.*give `data`") as caught:
        load_text(tmp_path / "data")
    assert "\n" not in str(caught.value)


def test_unreadable_folder_names_itself(tmp_path, monkeypatch):
    (tmp_path / "locked").mkdir()
    (tmp_path / "a.txt").write_bytes(b"x")
    scandir = os.scandir

    def denied(path):  # as for a user who is not root
        if str(path).endswith("locked"):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", denied)
    with pytest.raises(DataError, match=r"folder .*locked cannot be read \(Permission denied\): grant"):
        load_text(tmp_path)


def test_unreadable_file_names_itself(tmp_path, monkeypatch):
    (tmp_path / "secret.txt").write_bytes(b"x")
    (tmp_path / "secret.txt").chmod(0)

    def denied(self):
        raise PermissionError(13, "Permission denied")

    if os.geteuid() == 0:  # root reads everything
        monkeypatch.setattr("pathlib.Path.read_bytes", denied)
    with pytest.raises(DataError, match=r"secret\.txt cannot be read \(Permission denied\)"):
        load_text(tmp_path)
    (tmp_path / "secret.txt").chmod(stat.S_IRUSR)
