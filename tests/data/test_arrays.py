from __future__ import annotations

import os
import tracemalloc
import zipfile

import numpy as np
import pytest

from mpizero.data import IGNORE, ArrayData, load
from mpizero.data.arrays import _row_keys
from mpizero.errors import ConfigError, DataError


def stored(path, n=23, inputs=4, classes=3, **changes):
    rng = np.random.default_rng(0)
    arrays = {"x": rng.standard_normal((n, inputs)), "y": np.arange(n) % classes} | changes
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})
    return arrays


@pytest.fixture
def path(tmp_path):
    return tmp_path / "data.npz"


def rows_of(arrays, x):
    """Which stored row each row of x is."""
    return [int(np.flatnonzero((arrays["x"].astype(np.float32) == row).all(axis=1))[0]) for row in x]


def sides(data, arrays):
    """Rows that are trained on in an epoch, in its order, and rows that are held out."""
    return (rows_of(arrays, data.train_batch(np.arange(data.epoch_size)).inputs),
            rows_of(arrays, data.eval_batch(np.arange(data.eval_size)).inputs))


@pytest.mark.parametrize("x_dtype", [np.float64, np.float32, np.float16, np.int64, ">f4"])
@pytest.mark.parametrize("y_dtype", [np.int64, np.uint8, ">i2"])
@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_types(path, x_dtype, y_dtype, save):
    x, y = np.arange(40).reshape(10, 4).astype(x_dtype), (np.arange(10) % 3).astype(y_dtype)
    save(path, x=x, y=y)
    data = ArrayData(path)
    there, labels = data.eval_batch(np.arange(data.eval_size))
    assert (there.dtype, labels.dtype, data.inputs, data.classes, data.eval_size) == (np.float32, np.int64, 4, 3, 1)
    (row,) = rows_of({"x": x}, there)
    assert labels.tolist() == [y[row]] and there.flags.c_contiguous and there.flags.writeable
    assert ("held in memory" in data.describe()) == (save is np.savez_compressed)


def test_an_epoch_sees_every_training_row_once_and_none_that_is_held_out(path):
    arrays = stored(path)
    data = ArrayData(path, seed=1)
    assert (data.epoch_size, data.eval_size) == (20, 3)
    x, y = data.train_batch(np.arange(3 * 20))
    epochs = [rows_of(arrays, x[start : start + 20]) for start in (0, 20, 40)]
    _, held_out = sides(data, arrays)
    assert all(sorted(epoch + held_out) == list(range(23)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2] and epochs[0] != sorted(epochs[0])
    assert np.array_equal(y, arrays["y"][np.concatenate(epochs)])


def test_the_order_of_rows_is_no_matter_and_equal_rows_stand_on_one_side(tmp_path):
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((400, 4)), rng.integers(0, 5, 400)
    x[200:300], y[200:300] = x[:100], y[:100]  # twice there
    found = []
    for name, order in (("a", rng.permutation(400)), ("b", rng.permutation(400)), ("sorted", np.argsort(y))):
        np.savez(tmp_path / f"{name}.npz", x=x[order], y=y[order])
        data = ArrayData(tmp_path / f"{name}.npz")
        train, held_out = (set(rows) for rows in sides(data, {"x": x}))
        assert train.isdisjoint(held_out) and 40 <= data.eval_size <= 41
        found.append(held_out)
    assert found[0] == found[1] == found[2] and len(set(y[list(found[0])])) == 5


def test_what_one_row_is(path):
    """The label is part of it, and so is the column of a number; the sign of a zero is not."""
    x = np.array([[0.0, 1], [-0.0, 1], [1, 0.0], [1, -0.0]] * 5, np.float32)
    keys = _row_keys(x + np.float32(0), np.zeros(20, int))
    assert len(set(keys)) == 2 and len(set(_row_keys(x, np.arange(20) % 2))) == 4
    np.savez(path, x=np.zeros((20, 3)), y=np.arange(20) % 2)
    data = ArrayData(path)
    assert set(data.train_batch(np.arange(10)).targets) != set(data.eval_batch(np.arange(data.eval_size)).targets)


def test_rows_that_are_all_equal(path):
    np.savez(path, x=np.ones((5, 3)), y=np.ones(5, int))
    with pytest.raises(DataError, match=r"data\.npz: all 5 rows are equal, so none can be held out"):
        ArrayData(path)
    np.savez(path, x=np.eye(2), y=np.ones(2, int))
    data = ArrayData(path)
    assert (data.epoch_size, data.eval_size) == (1, 1)


def test_sample_depends_on_seed_and_number_only(path):
    stored(path)
    x, y = ArrayData(path, seed=1).train_batch(np.arange(100))
    order = np.random.default_rng(0).permutation(100)
    data = ArrayData(path, seed=1)
    for start in range(0, 100, 7):
        xs, ys = data.train_batch(order[start : start + 7])
        assert np.array_equal(xs, x[order[start : start + 7]]) and np.array_equal(ys, y[order[start : start + 7]])
    other = ArrayData(path, seed=2)
    assert not np.array_equal(other.train_batch(np.arange(100))[0], x)
    assert np.array_equal(other.eval_batch(np.arange(3))[0], data.eval_batch(np.arange(3))[0])


def test_pads_do_not_touch_the_stored_labels(path):
    stored(path)
    data = ArrayData(path)
    assert data.train_batch(np.array([-1, 2]))[1][0] == IGNORE == data.eval_batch(np.array([-1]))[1][0]
    assert np.array_equal(data.train_batch(np.arange(20))[1], ArrayData(path).train_batch(np.arange(20))[1])


def test_fingerprint_sees_every_number(path):
    arrays = stored(path)
    one = ArrayData(path).fingerprint
    assert one == ArrayData(path).fingerprint and 0 < one < 2**53
    np.savez_compressed(path, **arrays)
    assert one == ArrayData(path).fingerprint
    stored(path, x=arrays["x"] + np.eye(23, 4) * 1e-3)
    two = ArrayData(path).fingerprint
    stored(path, y=arrays["y"][::-1])
    assert len({one, two, ArrayData(path).fingerprint}) == 3


def test_arrays_are_not_held_in_memory(tmp_path):
    x, y = np.random.default_rng(0).standard_normal((50_000, 64)).astype(np.float32), np.arange(50_000) % 7
    np.savez(tmp_path / "plain.npz", x=x, y=y)
    np.savez_compressed(tmp_path / "small.npz", x=x, y=y)
    batches = []
    for name, bound in (("plain", 2_000_000), ("small", 15_000_000)):  # x has 12.8 MB, the rows' numbers 0.4 MB
        tracemalloc.start()
        data = ArrayData(tmp_path / f"{name}.npz")
        kept = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        batches.append(data.train_batch(np.arange(100)))
        assert kept < bound
    assert all(np.array_equal(a, b) for a, b in zip(*batches, strict=True))


def bad_x(row, value):
    x = np.zeros((23, 4))
    x[row:, 2] = value
    return x


def bad_y(row, value):
    y = np.zeros(23, int)
    y[row:] = value
    return y


@pytest.mark.parametrize(("changes", "says"), [
    ({"x": bad_x(17, np.nan)}, "row 17 of x is the first of 6 .*NaN"),
    ({"x": bad_x(22, -np.inf)}, "row 22 of x"),
    ({"x": bad_x(3, 1e300)}, "row 3 of x .*beyond float32"),
    ({"y": bad_y(5, 3)}, "row 5 has label 3, but labels must be from 0 to 2"),
    ({"y": bad_y(22, -1)}, "row 22 has label -1"),
    ({"x": np.zeros((23, 5))}, "x has 5 features, but the model reads 4"),
    ({"x": np.zeros((22, 4))}, r"x is float64 \(22, 4\)"),
    ({"x": np.zeros(23)}, "x must be numbers"),
    ({"x": np.array([["a"] * 4] * 23)}, "x must be numbers"),
    ({"y": np.zeros(23)}, "y integers"),
    ({"y": np.zeros((23, 1), int)}, "y integers"),
    ({"x": np.zeros((1, 4)), "y": np.zeros(1, int)}, "has 1 rows"),
    ({"x": np.zeros((0, 4)), "y": np.zeros(0, int)}, "has 0 rows"),
    ({"y": None}, r"lacks y \(it holds x\)"),
    ({"x": None, "y": None}, r"lacks x and y \(it holds nothing\)"),
    ({"y": np.array([object()] * 23)}, "cannot be read"),
])  # fmt: skip
@pytest.mark.filterwarnings("error")
def test_unusable_arrays(path, changes, says):
    stored(path, **changes)
    with pytest.raises(DataError, match=rf"data\.npz.*{says}") as caught:
        ArrayData(path, inputs=4, classes=3)
    assert "\n" not in str(caught.value)


def test_negative_label_without_known_classes(path):
    stored(path, y=bad_y(4, -2))
    with pytest.raises(DataError, match="row 4 has label -2, but labels must be at least 0"):
        ArrayData(path)


@pytest.mark.parametrize("content", [b"", b"not a zip", b"PK\x03\x04 truncated", b"\x93NUMPY"])
def test_damaged_files(path, content):
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"data\.npz cannot be read"):
        ArrayData(path)


def test_truncated_and_corrupted_files(path):
    stored(path, n=500)
    whole = path.read_bytes()
    for broken in (whole[: len(whole) // 2], whole[:1000] + b"\x7f" * 100 + whole[1100:]):
        path.write_bytes(broken)
        with pytest.raises(DataError, match=r"data\.npz cannot be read"):
            ArrayData(path)


def test_a_plain_array_and_other_paths(path, tmp_path):
    with open(path, "wb") as file:
        np.save(file, np.zeros(3))
    with pytest.raises(DataError, match="cannot be read"):
        ArrayData(path)
    with pytest.raises(DataError, match="does not exist"):
        load("mlp", tmp_path / "none.npz", seed=0)
    (tmp_path / "text.txt").write_text("x")
    with pytest.raises(DataError, match=r"text\.txt is not a \.npz file"):
        load("mlp", tmp_path / "text.txt", seed=0)
    for model in ("mlp", "gpt"):  # not the current folder
        with pytest.raises(DataError, match="`data` is empty"):
            load(model, "", seed=0)
    with pytest.raises(ConfigError, match="`model`"):
        load("cnn", None, seed=0)


def test_load(path):
    stored(path, inputs=32, classes=16)
    data = load("mlp", path, seed=5)
    assert isinstance(data, ArrayData) and data.seed == 5
    assert "23" not in data.describe() and "20 rows" in data.describe()


def test_any_memory_order(tmp_path):
    x, y = np.random.default_rng(0).standard_normal((40, 32)), np.arange(80)[::2] % 16
    for name, stored in (("c", x), ("fortran", np.asfortranarray(x))):
        np.savez(tmp_path / f"{name}.npz", x=stored, y=y)
    first, second = (ArrayData(tmp_path / f"{name}.npz", seed=1) for name in ("c", "fortran"))
    assert first.fingerprint == second.fingerprint
    assert np.array_equal(first.train_batch(np.arange(36))[0], second.train_batch(np.arange(36))[0])


def test_not_a_regular_file(tmp_path):
    os.mkfifo(tmp_path / "pipe.npz")
    for path in (tmp_path / "pipe.npz", tmp_path):
        with pytest.raises(DataError, match="is not a regular file"):
            ArrayData(path)


def test_members_that_are_no_arrays(tmp_path):
    """A member that is no array, and a header that promises more than there is."""
    with zipfile.ZipFile(tmp_path / "raw.npz", "w") as archive:
        archive.writestr("x.npy", b"no magic")
        archive.writestr("y.npy", b"no magic")
    with zipfile.ZipFile(tmp_path / "huge.npz", "w") as archive:
        header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (10000000000000000000000, 32), }"
        header = header.ljust(117) + b"\n"
        archive.writestr("x.npy", b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
        archive.writestr("y.npy", b"no magic")
    for name in ("raw", "huge"):
        with pytest.raises(DataError, match=f"{name}.npz"):
            ArrayData(tmp_path / f"{name}.npz")
