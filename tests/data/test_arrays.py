from __future__ import annotations

import os
import zipfile

import numpy as np
import pytest

from mpizero.data import IGNORE, ArrayData, load
from mpizero.errors import ConfigError, DataError


def stored(path, n=23, inputs=4, classes=3, **changes):
    rng = np.random.default_rng(0)
    arrays = {"x": rng.standard_normal((n, inputs)), "y": np.arange(n) % classes} | changes
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})
    return arrays


@pytest.fixture
def path(tmp_path):
    return tmp_path / "data.npz"


def rows_of(data, x):
    """Which stored row each row of x is."""
    both = np.concatenate([data.x[: data._train_size], data.x[data._train_size :]])
    return [int(np.flatnonzero((both == row).all(axis=1))[0]) for row in x]


@pytest.mark.parametrize("x_dtype", [np.float64, np.float32, np.float16, np.int64])
@pytest.mark.parametrize("y_dtype", [np.int64, np.uint8])
def test_types(path, x_dtype, y_dtype):
    arrays = stored(path, x=np.arange(40).reshape(10, 4).astype(x_dtype), y=(np.arange(10) % 3).astype(y_dtype))
    data = ArrayData(path)
    x, y = data.eval_batch(np.arange(data.eval_size))
    assert (x.dtype, y.dtype, data.inputs, data.classes, data.eval_size) == (np.float32, np.int64, 4, 3, 1)
    assert np.array_equal(x, arrays["x"][-1:]) and np.array_equal(y, arrays["y"][-1:])


def test_an_epoch_sees_every_training_row_once_and_never_the_tail(path):
    stored(path)
    data = ArrayData(path, seed=1)
    assert data.eval_size == 2
    x, y = data.train_batch(np.arange(3 * 21))
    epochs = [rows_of(data, x[start : start + 21]) for start in (0, 21, 42)]
    assert all(sorted(epoch) == list(range(21)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2] and epochs[0] != sorted(epochs[0])
    assert np.array_equal(y, data.y[np.concatenate(epochs)])


def test_sample_depends_on_seed_and_number_only(path):
    stored(path)
    x, y = ArrayData(path, seed=1).train_batch(np.arange(100))
    order = np.random.default_rng(0).permutation(100)
    data = ArrayData(path, seed=1)
    for start in range(0, 100, 7):
        xs, ys = data.train_batch(order[start : start + 7])
        assert np.array_equal(xs, x[order[start : start + 7]]) and np.array_equal(ys, y[order[start : start + 7]])
    assert not np.array_equal(ArrayData(path, seed=2).train_batch(np.arange(100))[0], x)


def test_pads_do_not_touch_the_stored_labels(path):
    stored(path)
    data = ArrayData(path)
    before = data.y.copy()
    assert data.train_batch(np.array([-1, 2]))[1][0] == IGNORE == data.eval_batch(np.array([-1]))[1][0]
    assert np.array_equal(data.y, before)


def test_fingerprint_sees_every_number(path):
    arrays = stored(path)
    one = ArrayData(path).fingerprint
    assert one == ArrayData(path).fingerprint and 0 < one < 2**53
    stored(path, x=arrays["x"] + np.eye(23, 4) * 1e-3)
    two = ArrayData(path).fingerprint
    stored(path, y=arrays["y"][::-1])
    assert len({one, two, ArrayData(path).fingerprint}) == 3


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
    assert "23" not in data.describe() and "21 rows" in data.describe()


def test_any_memory_order(tmp_path):
    x, y = np.random.default_rng(0).standard_normal((40, 32)), np.arange(80)[::2] % 16
    for name, stored in (("c", x), ("fortran", np.asfortranarray(x))):
        np.savez(tmp_path / f"{name}.npz", x=stored, y=y)
    first, second = (ArrayData(tmp_path / f"{name}.npz", seed=1) for name in ("c", "fortran"))
    assert first.fingerprint == second.fingerprint and np.array_equal(first.x, second.x)


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
