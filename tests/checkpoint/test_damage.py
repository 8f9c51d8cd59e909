"""Whatever is wrong with a checkpoint on disk is said with the file's name, by `resume` and by `verify`, and the last
good one is named and loads."""

from __future__ import annotations

import json
import os
import random
import re

import pytest

from mpizero.checkpoint import inspect, verify
from mpizero.checkpoint.__main__ import main
from mpizero.checkpoint.contents import read_contents
from mpizero.checkpoint.format import CHECKPOINT, decode, encode
from mpizero.checkpoint.read import open_checkpoint
from mpizero.checkpoint.resume import resume
from mpizero.checkpoint.weights import SavedWeights
from mpizero.checkpoint.save import save
from mpizero.comm import TrafficLog
from mpizero.engine.job import prepare
from mpizero.engine.trainer import run_steps
from mpizero.errors import CheckpointError
from tests.engine.runs import MLP

FILES = ("checkpoint.json", "part-0000.json", "part-0000.bin")


@pytest.fixture
def group(world):
    """Rank 0 alone."""
    return world.subgroup([0], "rank 0", log=TrafficLog())


@pytest.fixture
def folder(group, tmp_path, _saved={}):
    """Steps 1 and 2 of a run, in a folder of the test's own."""
    if group is None:
        return None
    if not _saved:
        job, path = prepare(MLP, group), tmp_path / "original"
        job.state.scaler.scale = 8.0  # so that no step is skipped, and each has other numbers
        for _ in range(2):
            run_steps(job, steps=1)
            save(job, path, run="one")
        _saved.update({file.relative_to(path): file.read_bytes() for file in path.rglob("*") if file.is_file()})
    for name, data in _saved.items():
        (tmp_path / "D" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "D" / name).write_bytes(data)
    return tmp_path / "D"


def refused(group, path, *said):
    """The sentence of `resume`, which `verify` shares."""
    job = prepare(MLP, group)
    with pytest.raises(CheckpointError) as caught:
        resume(job, path)
    assert all(text in str(caught.value) for text in said), str(caught.value)
    found = verify.verify(path)
    assert not found["whole"] and len(found["problems"]) >= 1 and str(caught.value).startswith(found["problems"][0])
    return str(caught.value)


def test_it_is_whole(group, folder):
    for path in (folder, folder / "latest", folder / "step-00000002"):
        assert verify.verify(path)["whole"] and inspect.inspect(path)["step"] == 2
        assert resume(prepare(MLP, group), path).job.state.step == 2
    assert resume(prepare(MLP, group), folder / "step-00000001").job.state.step == 1


def test_a_file_that_belongs_to_nothing(group, folder):
    """`verify` names it; a run that goes on reads none of it."""
    path = folder / "step-00000002" / "part-0007.bin"
    path.write_bytes(b"left over")
    (problem,) = verify.verify(folder)["problems"]
    assert problem == f"{path} is no file of this checkpoint: take it away"
    assert resume(prepare(MLP, group), folder).job.state.step == 2


@pytest.mark.parametrize("name", FILES)
def test_a_flipped_bit(group, folder, name):
    """Anywhere: some bits of each file, the first and the last among them."""
    path = folder / "step-00000002" / name
    whole, rng = path.read_bytes(), random.Random(0)
    job = prepare(MLP, group)
    bits = [0, 8 * len(whole) - 1, *(rng.randrange(8 * len(whole)) for _ in range(20))]
    for number, bit in enumerate(bits):
        wrong = bytearray(whole)
        wrong[bit // 8] ^= 1 << bit % 8
        path.write_bytes(wrong)
        with pytest.raises(CheckpointError, match=f"^{path} .*; the last good one is `resume` {folder}/step-00000001$"):
            resume(job, folder / "latest")
        if not number:
            assert str(path) in verify.verify(folder)["problems"][0]
    path.write_bytes(whole)
    assert resume(job, folder / "latest").job.state.step == 2


def test_a_flipped_bit_of_latest(group, folder):
    for bit in range(8 * 14):
        wrong = bytearray(b"step-00000002\n")
        wrong[bit // 8] ^= 1 << bit % 8
        (folder / "latest").write_bytes(wrong)
        with pytest.raises(CheckpointError, match=f"^{folder}/latest (is damaged|names)"):
            open_checkpoint(folder)


@pytest.mark.parametrize("name", FILES)
def test_truncated_missing_and_strange_files(group, folder, name, tmp_path):
    path = folder / "step-00000002" / name
    whole = path.read_bytes()
    for length in (0, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        refused(group, folder, str(path), "step-00000001")
    path.write_bytes(whole + b"\n")
    refused(group, folder, str(path), "step-00000001")
    path.unlink()
    refused(group, folder, str(path), "missing", f"the last good one is `resume` {folder}/step-00000001")
    os.mkfifo(path)
    refused(group, folder, str(path), "no regular file")
    path.unlink()
    (tmp_path / "elsewhere").write_bytes(whole)
    path.symlink_to(tmp_path / "elsewhere")
    refused(group, folder, str(path), "symbolic link, which is refused")


def test_a_part_of_another_checkpoint(group, folder):
    """Whole in itself, and yet not of this step."""
    for name in ("part-0000.json", "part-0000.bin"):
        (folder / "step-00000002" / name).write_bytes((folder / "step-00000001" / name).read_bytes())
    refused(group, folder, f"{folder}/step-00000002/part-0000.json is damaged, or of another checkpoint")


def rewritten(folder, **changes):
    """A checkpoint.json with a right checksum and other content."""
    path = folder / "step-00000002" / "checkpoint.json"
    data = decode(CHECKPOINT, path.read_bytes(), path)
    path.write_bytes(encode(CHECKPOINT, {**data, **changes}))
    return str(path)


@pytest.mark.parametrize("changes, said", [
    ({"parts": [{"name": "../../etc/passwd", "table_sha256": ""}]}, "which is refused"), ({"step": -1}, "step is -1"),
    ({"step": "2"}, "step is 2"), ({"params": []}, "knows nothing"), ({"parts": []}, "no part holds"),
    ({"parts": {}}, "list"),
    ({"scaler": {"scale": "x"}}, "scaler"), ({"scaler": {"scale": 10**400}}, "scaler"), ({"settings": []}, "settings"),
    ({"settings": {"batch_size": 2, "accumulation": "x"}}, "accumulation is x"),
    ({"settings": {"global_batch": [3]}}, "global_batch is"), ({"runs": [3]}, "which run"),
    ({"data": None}, "data")])
def test_forged_content(group, folder, changes, said):
    refused(group, folder, rewritten(folder, **changes), said)


def test_a_forged_dtype_is_none_to_compute_in(group, folder):
    rewritten(folder, settings={"dtype": ["float16"]})
    assert SavedWeights(folder).dtype == "float32"


def test_settings_that_lack_something(group, folder):
    """Nothing is told of what nobody wrote down."""
    rewritten(folder, settings={"batch_size": MLP.batch_size, "epochs": None})
    assert "samples a step" not in resume(prepare(MLP, group), folder).said


def test_a_forged_scale(group, folder):
    rewritten(folder, scaler={"scale": -1.0, "growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 2,
                              "_growth_tracker": 0})
    with pytest.raises(CheckpointError, match="scale = -1.0 cannot be used"):
        resume(prepare(MLP, group), folder)


@pytest.mark.parametrize("path, said", [
    ("nowhere", "nowhere does not exist"), ("", "neither a file `latest` nor checkpoint.json"),
    ("step-00000007", "no complete checkpoint"), ("notes.txt", "notes.txt is no checkpoint"),
    ("x" * 5000, "cannot be opened|too long")])
def test_paths_that_lead_nowhere(tmp_path, path, said):
    (tmp_path / "notes.txt").write_text("hello")
    (tmp_path / "step-00000007").mkdir()
    with pytest.raises(CheckpointError, match=said):
        open_checkpoint(tmp_path / path if path else tmp_path)


def test_latest_leads_nowhere_else(group, folder):
    for text in ("../D/step-00000001\n", "/etc\n", "step-00000001/../x\n", "", "step-00000003\n"):
        (folder / "latest").write_text(text)
        with pytest.raises(CheckpointError, match=f"^{folder}/latest "):
            read_contents(folder)


def test_one_of_two_damaged_checkpoints(group, folder):
    """No good one is left: none is named."""
    for name in ("step-00000001", "step-00000002"):
        part = folder / name / "part-0000.bin"
        data = part.read_bytes()
        part.write_bytes(bytes([data[0] ^ 0xFF]) + data[1:])
    with pytest.raises(CheckpointError, match=r"checksum of its bytes 0 to [\d,]+ is another$"):
        resume(prepare(MLP, group), folder)


def test_the_command(group, folder, tmp_path, capsys):
    assert main(["verify", str(folder / "latest"), "--json", str(tmp_path / "v.json")]) == 0
    assert "step-00000002: whole. Step 2, 1 part" in capsys.readouterr().out
    assert json.loads((tmp_path / "v.json").read_text())["whole"] is True
    assert main(["inspect", str(folder), "--json", str(tmp_path / "i.json")]) == 0
    out = capsys.readouterr().out
    assert re.search(r"^step +2$", out, re.M) and re.search(r"^exp_avg_sq +float32 +[\d,]+ +[\d,]+$", out, re.M)
    found = json.loads((tmp_path / "i.json").read_text())
    assert found["bytes"] == 12 * found["psi"] == sum(state["bytes"] for state in found["states"])
    assert found["settings"]["hidden"] == 10
    path = folder / "step-00000002" / "part-0000.bin"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(SystemExit, match=f"mpizero: error: {path} is truncated"):
        main(["verify", str(folder), "--json", str(tmp_path / "v.json")])
    assert json.loads((tmp_path / "v.json").read_text())["problems"][0].startswith(str(path))
    assert main(["inspect", str(folder)]) == 2 and f"mpizero: error: {path} is truncated" in capsys.readouterr().err
    assert main(["verify"]) == 2 and main([]) == 2
