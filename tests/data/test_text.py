from __future__ import annotations

import os
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from mpizero.data import IGNORE, Text, find_text, load
from mpizero.data.text import EVAL_WINDOWS
from mpizero.errors import DataError
from tests.data.texts import evaluated, leaked, opened, prose, training_text


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Files of several sizes, together 600 kB."""
    root = tmp_path_factory.mktemp("text")
    for number, size in enumerate((300_000, 200_000, 90_000, 9_000, 1_000, 50, 0)):
        (root / f"{number}.txt").write_bytes(prose(size, number))
    return root


def test_windows_stay_on_their_side(folder):
    text = opened(folder, 64)
    assert text.eval_size == EVAL_WINDOWS and 0.05 <= text.held_out_bytes / 600_050 < 0.07
    whole = [Path(file).read_bytes() for file in text.files]
    train = training_text(text)
    assert sum(map(len, train)) + text.held_out_bytes == sum(map(len, whole)) == 600_050
    assert all(any(run in file for file in whole) for run in train)  # each in one file
    assert text._train_windows.count == sum(max(0, len(run) - 64) for run in train)
    assert all(any(window in file for file in whole) for window in evaluated(text)) and leaked(text) == 0


def test_batches_are_windows_and_what_follows(folder):
    text = opened(folder, 64, seed=1)
    train = training_text(text)
    for x, y in (text.train_batch(np.arange(20)), text.eval_batch(np.arange(20))):
        assert x.dtype == y.dtype == np.int64 and x.shape == y.shape == (20, 64)
        assert (x[:, 1:] == y[:, :-1]).all() and x.flags.c_contiguous and y.flags.writeable
    x, y = text.train_batch(np.arange(20))
    assert all(any(bytes([*row, last]) in run for run in train) for row, last in zip(x.tolist(), y[:, -1].tolist()))
    assert text.count(np.arange(5)) == 5 * 64


# -- copies ------------------------------------------------------------------------------------------------------------


def copy(root):
    (root / "b.txt").write_bytes((root / "a.txt").read_bytes())


def shifted_copy(root):
    (root / "b.txt").write_bytes(b"# a line more\n" + (root / "a.txt").read_bytes())


def edited_copy(root):
    data = bytearray((root / "a.txt").read_bytes())
    data[70_000:70_000] = b"and here"
    (root / "b.txt").write_bytes(data + b"the end\n")


def many_short_copies(root):
    for number in range(300):
        (root / f"{number:03}.txt").write_bytes(b"= %d\n" % number * (number % 3) + prose(1_000, number // 3))


@pytest.mark.parametrize("copies", [copy, shifted_copy, many_short_copies], ids=lambda function: function.__name__)
@pytest.mark.parametrize("seed", range(3))
def test_nothing_held_out_stands_in_a_copy_that_is_trained_on(tmp_path, copies, seed):
    (tmp_path / "a.txt").write_bytes(prose(150_000, 1000 + seed))
    copies(tmp_path)
    text = opened(tmp_path, 128)
    assert text.by_content and text.eval_size == 128 and leaked(text) == 0


def test_an_edited_copy_differs_around_the_edit_only(tmp_path):
    """Not promised: but of 150 kB some two chunks are no longer the same."""
    (tmp_path / "a.txt").write_bytes(prose(150_000))
    edited_copy(tmp_path)
    assert leaked(opened(tmp_path, 128)) < 128 / 3


def test_a_copy_on_one_side_counts_as_leaked(tmp_path):
    """The search above would find one."""
    (tmp_path / "a.txt").write_bytes(prose(150_000))
    text = opened(tmp_path, 128)
    text._eval_windows = text._train_windows
    assert leaked(text) == 128


def test_the_order_of_files_and_other_files_leave_a_chunk_where_it_is(tmp_path):
    (tmp_path / "a.txt").write_bytes(prose(150_000))
    before = training_text(opened(tmp_path, 128), held_out=True)
    (tmp_path / "0").mkdir()
    (tmp_path / "a.txt").rename(tmp_path / "0" / "z.txt")
    (tmp_path / "b.txt").write_bytes(prose(2_000, 1))
    assert set(before) <= set(training_text(opened(tmp_path, 128), held_out=True))


# -- short texts -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [10, 11, 50, 200, 1000, 5000])
@pytest.mark.parametrize("data", [bytes(5000), (bytes(range(251)) * 20), prose(5000)], ids=["zeros", "cycle", "prose"])
def test_any_text_of_two_windows_has_both_sides(tmp_path, data, size):
    (tmp_path / "a").write_bytes(data[:size])
    text = opened(tmp_path / "a", 4)
    assert text.eval_size >= 1 and text.train_batch(np.arange(3)).inputs.shape == (3, 4)
    inside = sum(max(0, len(run) - 4) for run in training_text(text))
    assert inside == text._train_windows.count >= 1
    assert sum(map(len, training_text(text))) + text.held_out_bytes == size
    if not text.by_content:
        assert "by position" in text.describe() and evaluated(text)[-1] in data[size - max(5, size // 20):size]


@pytest.mark.parametrize("size", [1, 4, 5, 9])
def test_text_shorter_than_two_windows(tmp_path, size):
    (tmp_path / "a").write_bytes(prose(size))
    with pytest.raises(DataError, match=rf"{size} bytes, but .*at least 10.*`context`"):
        opened(tmp_path / "a", 4)


def test_an_empty_file_beside_a_text_that_is_cut_by_position(tmp_path):
    for name, data in (("a", b""), ("b", bytes(50)), ("c", b""), ("d", bytes(50))):
        (tmp_path / name).write_bytes(data)
    text = opened(tmp_path, 4)
    assert not text.by_content and training_text(text) == [b"", bytes(45), b"", bytes(50)]
    assert text.train_batch(np.arange(20)).inputs.shape == (20, 4) and text.eval_size == 1


def test_windows_do_not_reach_from_file_to_file(tmp_path):
    for number in range(50):
        (tmp_path / f"{number}").write_bytes(prose(60, number))
    with pytest.raises(DataError, match="3,000 bytes, 60 of them in the longest file, but windows of 64 tokens"):
        opened(tmp_path, 64)
    text = opened(tmp_path, 32)
    assert text.by_content and len(training_text(text)) + text.held_out_bytes // 60 == 50
    (tmp_path / "twice").mkdir()
    for number in range(2):  # too short for two windows each, and equal: one of them cannot be held out
        (tmp_path / "twice" / f"{number}").write_bytes(prose(60))
    with pytest.raises(DataError, match="at least 66 of one file"):
        opened(tmp_path / "twice", 32)


# -- samples -----------------------------------------------------------------------------------------------------------


def test_every_training_window_is_equally_likely(tmp_path):
    (tmp_path / "a").write_bytes(bytes(range(40)))
    text, n = opened(tmp_path / "a", 3), 100_000
    drawn = text._train_windows.places(np.arange(text._train_windows.count))
    assert drawn[1].tolist() == list(range(33))  # 36 bytes, the last 4 held out
    numbers = []
    text._read = lambda windows, run, start: numbers.append(start)  # type: ignore[method-assign]
    text.train(np.arange(n))
    counts = np.bincount(numbers[0])
    assert counts.size == 33 and np.abs(counts - n / 33).max() < 5 * np.sqrt(n / 33)


def test_sample_depends_on_seed_and_number_only(folder):
    for epochs in (False, True):
        x, y = opened(folder, 16, 4, epochs).train_batch(np.arange(200))
        order = np.random.default_rng(1).permutation(200)
        xs, ys = opened(folder, 16, 4, epochs).train_batch(order)
        assert np.array_equal(xs, x[order]) and np.array_equal(ys, y[order])
        assert not np.array_equal(opened(folder, 16, 5, epochs).train_batch(np.arange(200)).inputs, x)
    # held-out windows are the same for every seed, so evaluation losses of runs compare
    assert evaluated(opened(folder, 16, 4)) == evaluated(opened(folder, 16, 5, True))


def places(text, epoch):
    """File and place of each window of an epoch, in its order."""
    seen = []
    text._read = lambda windows, run, start: seen.append((windows.runs.file[run], start))
    text.train(np.arange(epoch * text.epoch_size, (epoch + 1) * text.epoch_size))
    del text._read
    return list(zip(*(column.tolist() for column in seen[0]), strict=True))


def test_an_epoch_has_each_window_once_and_covers_the_text(folder):
    context, text = 250, opened(folder, 250, epochs=True)
    runs = sorted(zip(*(column.tolist() for column in text._train_windows.runs), strict=True))
    assert text.epoch_size == sum((stop - start - 1) // context for _, start, stop in runs)
    epochs = [places(text, epoch) for epoch in range(3)]
    for epoch in epochs:
        file, start = np.array(epoch).T
        targets = np.unique((file << 32)[:, None] + start[:, None] + 1 + np.arange(context))
        assert targets.size == text.epoch_size * context  # each byte is taught once
        for file, start, stop in runs:  # all but fewer than a window
            begin, end = np.searchsorted(targets, [(file << 32) + start + 1, (file << 32) + stop])
            assert 0 <= stop - start - 1 - (end - begin) < context
    assert len({tuple(epoch) for epoch in epochs}) == len({tuple(sorted(epoch)) for epoch in epochs}) == 3
    assert epochs[0] != sorted(epochs[0])
    assert text.train_batch(np.array([3 * text.epoch_size])).inputs.shape == (1, 250)
    assert opened(folder, 64).epoch_size is None


def test_held_out_windows_spread_over_all_held_out_chunks(folder):
    text = opened(folder, 64)
    chunks = text._eval_windows.runs
    run, start = text._eval_windows.places((2 * np.arange(128) + 1) * text._eval_windows.count // 256)
    large = np.flatnonzero(chunks.size > 2 * 64 + text._eval_windows.count / 64)
    assert set(large) <= set(run) and np.unique(start - chunks.start[run]).size > 60


def test_few_held_out_windows_are_not_repeated(tmp_path):
    (tmp_path / "a").write_bytes(bytes(range(30)))
    text = opened(tmp_path / "a", 9)
    assert text.eval_size == 1 and evaluated(text) == [bytes(range(20, 30))]
    with pytest.raises(AssertionError):
        text.eval_batch(np.array([1]))


def test_pads_have_no_target(folder):
    x, y = opened(folder, 4).train_batch(np.array([5, -1]))
    assert (y[1] == IGNORE).all() and (y[0] >= 0).all() and (x >= 0).all()


# -- the whole ---------------------------------------------------------------------------------------------------------


def test_standard_library_is_there_and_the_same_every_time():
    text = load("gpt", None, seed=0)
    size = sum(map(os.path.getsize, text.files))
    assert size > 2_000_000 and all(file.endswith(".py") for file in text.files)
    assert any(file.endswith("json/decoder.py") for file in text.files)
    assert not any("site-packages" in file or "__pycache__" in file for file in text.files)
    assert load("gpt", None, seed=1).fingerprint == text.fingerprint
    assert f"{size:,} bytes of {len(text.files):,} files" in text.describe()
    assert 0.05 < text.held_out_bytes / size < 0.055


def test_fingerprint_sees_every_byte_and_the_size(tmp_path):
    data, prints = prose(1000), []
    for changed in (data, data[:500] + b"~" + data[501:], data[:-1], data + data[:1]):
        (tmp_path / "a").write_bytes(changed)
        prints.append(opened(tmp_path / "a", 8).fingerprint)
    (tmp_path / "a").write_bytes(data[:500])
    (tmp_path / "b").write_bytes(data[500:])
    prints.append(opened(tmp_path, 8).fingerprint)  # no window reaches from one to the other
    assert len(set(prints)) == 5 and all(0 < number < 2**53 for number in prints)


def test_nothing_of_the_text_stays_in_memory(tmp_path):
    (tmp_path / "a").write_bytes(prose(1_000_000) * 16)
    tracemalloc.start()
    text = opened(tmp_path / "a", 128)
    kept, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert isinstance(text, Text) and kept < 1_000_000 and peak < 8_000_000


def test_a_text_that_changes_while_it_is_read(tmp_path):
    (tmp_path / "a").write_bytes(prose(10_000))
    text = opened(tmp_path / "a", 8)
    (tmp_path / "a").write_bytes(prose(10_000, 1)[:9_000])
    with pytest.raises(DataError, match=r"the file .*a changed while the run read it: leave `data` alone"):
        text.train_batch(np.arange(4))
    (tmp_path / "a").unlink()
    with pytest.raises(DataError, match="cannot be read .No such file"):
        text.train_batch(np.arange(4))
    assert find_text(None).skipped_files == 0
