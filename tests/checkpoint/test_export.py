"""Weights leave as a safetensors file and come back, bit for bit; the library reads what we write, and we what it
writes."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace

import numpy as np
import pytest

from mpizero.checkpoint.__main__ import main
from mpizero.checkpoint.export import export
from mpizero.checkpoint.imported import import_weights
from mpizero.checkpoint.read import open_checkpoint
from mpizero.checkpoint.resume import resume
from mpizero.checkpoint.tensors import Tensors
from mpizero.checkpoint.verify import verify
from mpizero.engine.job import prepare
from mpizero.errors import CheckpointError
from tests.checkpoint.jobs import begin, first, numbers, save
from tests.checkpoint.test_command import small_disk
from tests.engine.runs import GPT, MLP

safetensors = pytest.importorskip("safetensors")
numpy_files = pytest.importorskip("safetensors.numpy")


def masters(job) -> dict[str, bytes]:
    """Parameter -> its master weights. Collective."""
    return {key[1]: value for key, value in numbers(job).items() if isinstance(key, tuple) and key[0] == "master"}


def as_float32(job) -> dict[str, np.ndarray]:
    shapes = {param.name: param.shape for param in job.task.model.spec.params}
    dtypes = {param.name: unit.states["master"].dtype for unit in job.state.units for param in unit.layout.params}
    return {name: np.frombuffer(data, dtypes[name]).astype(np.float32).reshape(shapes[name])
            for name, data in masters(job).items()}


@pytest.mark.parametrize("config", [
    MLP, GPT, replace(GPT, dtype="bfloat16", no_master_weights=True), replace(GPT, dtype="float16", freeze=("h.0.*",))])
def test_the_library_reads_it_and_it_comes_back(world, shared_path, config):
    group = first(world, min(world.size, 3))
    if group is None:
        return
    job = begin(replace(config, stage="3"), group, 2)
    save(job, shared_path / "D")
    expected = as_float32(job)
    if group.rank:
        return
    out = shared_path / "out.safetensors"
    found = export(shared_path / "D", out)
    assert found["elements"] == sum(value.size for value in expected.values()) and found["step"] == 2
    assert sorted(os.listdir(shared_path)) == ["D", "out.safetensors"] and found["bytes"] == out.stat().st_size
    read = numpy_files.load_file(out)
    assert read.keys() == expected.keys()
    for name, values in expected.items():
        assert read[name].dtype == np.float32 and read[name].shape == values.shape
        assert read[name].tobytes() == values.tobytes()
    with safetensors.safe_open(out, framework="np") as file:
        assert file.metadata()["format"] == "pt"  # or transformers does not take it
    told = import_weights(out, shared_path / "E")
    assert told["folder"] == f"{shared_path}/E/step-00000000" and verify(shared_path / "E")["whole"]
    back = open_checkpoint(shared_path / "E/latest")
    assert back.about["settings"].items() >= {"model": config.model, "dtype": "float32"}.items()
    for name, values in expected.items():
        assert back.params[name] == values.shape and back.read("master", name).tobytes() == values.tobytes()
    if config.model == "gpt":
        assert back.about["settings"]["heads"] == config.heads == Tensors(out).heads


@pytest.fixture
def saved(world, tmp_path):
    """A checkpoint of the GPT, on rank 0."""
    group = first(world, 1)
    if group is not None:
        save(prepare(GPT, group), tmp_path / "D")
        return tmp_path / "D"


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_other_dtypes(saved, dtype, tmp_path):
    if saved is None:
        return
    export(saved, tmp_path / "out", dtype=dtype)
    checkpoint, read = open_checkpoint(saved), numpy_files.load_file(tmp_path / "out")
    for name, values in read.items():
        assert values.dtype.name == dtype
        assert values.tobytes() == checkpoint.read("master", name).astype(values.dtype).tobytes()


def test_float16_has_an_end(world, tmp_path):
    group = first(world, 1)
    if group is None:
        return
    job = prepare(GPT, group)
    job.state.units[1].states["master"][3] = 7e4
    save(job, tmp_path / "D")
    with pytest.raises(CheckpointError, match=r"h\.0\.\S+ of .* holds numbers beyond 65,504.* use `dtype` bfloat16"):
        export(tmp_path / "D", tmp_path / "out", dtype="float16")
    assert os.listdir(tmp_path) == ["D"]


def test_what_is_there_stays(saved, tmp_path):
    if saved is None:
        return
    out, folder = tmp_path / "out", tmp_path / "folder"
    out.write_text("mine")
    folder.mkdir()
    with pytest.raises(CheckpointError, match="out exists: give `force` to replace it"):
        export(saved, out)
    assert out.read_text() == "mine"
    (tmp_path / "link").symlink_to(out)
    for other in (folder, tmp_path / "link"):
        with pytest.raises(CheckpointError, match="is no regular file, so it is not replaced"):
            export(saved, other, force=True)
    assert out.read_text() == "mine" and not os.listdir(folder)
    with pytest.raises(CheckpointError, match="nowhere/.* cannot be written: No such file or directory: m.*nowhere"):
        export(saved, tmp_path / "nowhere" / "out")
    export(saved, out, force=True)
    assert len(numpy_files.load_file(out)) == 28
    assert sorted(os.listdir(tmp_path)) == ["D", "folder", "link", "out"]
    assert main(["export", str(saved), str(tmp_path / "new")]) == 0
    assert oct(out.stat().st_mode) == oct((saved / "latest").stat().st_mode)  # as any file of the user's


def test_a_damaged_checkpoint_leaves_nothing(saved, tmp_path):
    if saved is None:
        return
    part = saved / "step-00000000" / "part-0000.bin"
    data = bytearray(part.read_bytes())
    data[5] ^= 1
    part.write_bytes(data)
    with pytest.raises(CheckpointError, match=r"part-0000\.bin is damaged"):
        export(saved, tmp_path / "out")
    assert os.listdir(tmp_path) == ["D"]


def test_a_full_disk(saved, tmp_path):
    if saved is None:
        return
    with small_disk(tmp_path / "disk", "16k") as disk:
        with pytest.raises(CheckpointError, match="cannot be written: No space left on device: make room"):
            export(saved, disk / "out")
        assert os.listdir(disk) == []
        with pytest.raises(CheckpointError, match="cannot be written: No space left on device: make room"):
            export(saved, tmp_path / "out")
            import_weights(tmp_path / "out", disk / "E")
        assert [name for name in os.listdir(disk / "E") if not name.startswith(".mpizero")] == []


def test_without_the_library(saved, tmp_path, monkeypatch):
    if saved is None:
        return
    monkeypatch.setitem(sys.modules, "safetensors", None)
    (tmp_path / "in").write_bytes(b"anything")
    for act in (lambda: export(saved, tmp_path / "out"), lambda: import_weights(tmp_path / "in", tmp_path / "E")):
        with pytest.raises(CheckpointError, match="need the package safetensors: pip install safetensors$"):
            act()
    assert sorted(os.listdir(tmp_path)) == ["D", "in"]


def test_import_into_a_folder_in_use(saved, tmp_path):
    if saved is None:
        return
    export(saved, tmp_path / "out")
    with pytest.raises(CheckpointError, match="holds step-00000000 already: name another folder"):
        import_weights(tmp_path / "out", saved)
    assert verify(saved)["whole"]


def test_an_import_cannot_be_gone_on_with(world, saved, tmp_path):
    group = first(world, 1)
    if group is None:
        return
    export(saved, tmp_path / "out")
    import_weights(tmp_path / "out", tmp_path / "E")
    with pytest.raises(CheckpointError, match="holds weights alone, .* start from them with `init`, not `resume`"):
        resume(prepare(GPT, group), tmp_path / "E")


TEN = {"wte.weight": (9, 10), "wpe.weight": (5, 10), "h.0.x": (1,)}
GPT_FILE = {"wte.weight": (256, 64), "wpe.weight": (5, 64), "h.0.ln_1.weight": (64,)}


@pytest.mark.parametrize("tensors, heads, said", [
    ({"encoder.weight": (2, 3)}, None, "holds neither a GPT-2 nor an MLP of ours: its parameters are encoder.weight"),
    ({}, None, "its parameters are none"),
    ({"wte.weight": (9, 10), "wpe.weight": (5, 10)}, None, "its parameters are wpe.weight, wte.weight$"),
    (TEN, None, "does not say how many heads its 10 features .* `heads`"),
    (TEN, 3, "in has 10 features, which cannot be divided into `heads` 3"),
    (GPT_FILE, 0, "cannot be divided into `heads` 0"),
    (GPT_FILE, None, r"parameter h\.0\.ln_1\.bias has shape \(64,\) in this model, but does not exist in"),
    ({"layers.0.weight": (2, 3), "layers.1.weight": (3, 4)}, None, r"layers\.0\.bias has shape \(3,\) in this model")])
def test_import_of_what_is_no_model_of_ours(tmp_path, tensors, heads, said):
    numpy_files.save_file({name: np.zeros(shape, np.float32) for name, shape in tensors.items()}, tmp_path / "in")
    with pytest.raises(CheckpointError, match=said):
        import_weights(tmp_path / "in", tmp_path / "E", heads=heads)
    assert os.listdir(tmp_path) == ["in"]


def test_a_config_beside_that_computes_something_else(tmp_path):
    numpy_files.save_file({"x": np.zeros(3, np.float32)}, tmp_path / "in")
    beside = tmp_path / "config.json"
    for config, heads in (({"n_head": 12}, 12), ({"n_head": "x"}, None), ([], None), ({"n_head": True}, None)):
        beside.write_text(json.dumps(config))
        assert Tensors(tmp_path / "in").heads == heads
    beside.write_text("no JSON")
    assert Tensors(tmp_path / "in").heads is None
    beside.write_text(json.dumps({"activation_function": "relu", "n_head": 12}))
    with pytest.raises(CheckpointError, match="config.json says activation_function 'relu', but mpizero computes"):
        Tensors(tmp_path / "in")
