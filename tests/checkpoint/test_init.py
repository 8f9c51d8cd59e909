"""A run starts from given weights: each rank takes its own ranges, at any stage, and next to no memory."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mpizero.checkpoint.export import export
from mpizero.checkpoint.init import init_weights
from mpizero.checkpoint.run import begin_checkpoints
from mpizero.checkpoint.tensors import PROBES, Tensors
from mpizero.checkpoint.weights import fill_as, open_weights
from mpizero.dtypes import numpy_dtype
from mpizero.engine.gather import gather_data
from mpizero.engine.job import prepare
from mpizero.engine.replicas import compare_replicas
from mpizero.engine.resolve import resolve
from mpizero.engine.trainer import run_steps
from mpizero.errors import CheckpointError, ConfigError
from mpizero.planner import plan_memory
from mpizero.planner.need import loading_bytes
from tests.checkpoint.jobs import begin, first, save
from tests.checkpoint.test_export import as_float32
from tests.engine.runs import GPT, MLP

numpy_files = pytest.importorskip("safetensors.numpy")
OTHER = {"seed": 5}  # other weights to begin with, so that nothing is right by chance


def given(group, folder, config):
    """A checkpoint of a run's, and the file that was made from it; and the weights. Collective."""
    job = begin(config, group, 2)
    path = save(job, folder)
    if group.rank == 0:
        export(path, folder / "out.safetensors", force=True)
    gather_data(group, None)
    return path, folder / "out.safetensors", as_float32(job)


@pytest.mark.parametrize("config, stage", [
    (MLP, "2"), (GPT, "0"), (GPT, "3"), (replace(GPT, dtype="float16"), "1"), (replace(GPT, dtype="float16"), "3"),
    (replace(GPT, dtype="bfloat16", no_master_weights=True), "2"),
    (replace(GPT, dtype="float16", freeze=("wte.*", "h.1.ln_1.*")), "2")])
def test_from_a_file_and_from_a_checkpoint(group, shared_path, config, stage):
    saved, file, weights = given(group, shared_path / f"n{group.size}", replace(config, freeze=(), stage="3"))
    for path in (saved, file):
        job = begin_checkpoints(prepare(replace(config, stage=stage, init=str(path), **OTHER), group), "run").job
        rest = plan_memory([], job.geometry).at_rest_bytes
        most = max(unit.layout.padded_numel * unit.param.itemsize for unit in job.state.units)
        assert job.ledger.action_peak_bytes == rest + loading_bytes(job.geometry) <= rest + most
        assert job.ledger.model_state_bytes == job.ledger.live_bytes == rest
        masters = {param.name: unit.states["master"].dtype for unit in job.state.units for param in unit.layout.params}
        for name, values in as_float32(job).items():
            assert values.tobytes() == weights[name].astype(masters[name]).astype(np.float32).tobytes()
        assert (job.state.step, job.state.updates, job.state.position) == (0, 0, 0)
        for unit in job.state.units:
            kept = unit.range_of(unit.placement.params)
            numel = max(min(unit.layout.numel - kept.start, kept.stop - kept.start), 0)
            assert unit.updated_param.tobytes() == unit.states["master"].astype(unit.dtype).tobytes()
            assert np.isfinite(unit.param[:numel].astype(np.float32)).all()
            assert not any(np.any(buffer) for name, buffer in unit.states.items() if name != "master")
        assert compare_replicas(group, job.state.units) == []
        run_steps(job, steps=1)


def test_the_same_run_from_wherever_the_weights_come(world, shared_path):
    """Also from files of 16 bits, which hold what float16 does."""
    group = first(world, min(2, world.size))
    if group is None:
        return
    config = replace(GPT, dtype="float16", no_master_weights=True, loss_scale=1.0)
    saved, file, _ = given(group, shared_path, config)
    if group.rank == 0:
        export(saved, shared_path / "half", dtype="float16")
    gather_data(group, None)
    losses = []
    for path in (saved, saved.parent, file, shared_path / "half"):
        job = prepare(replace(config, **OTHER), group)
        assert init_weights(job, path).startswith("started from the weights of ")
        losses.append([record.loss for record in run_steps(job).records])
    assert losses == [losses[0]] * 4 and losses[0][0] != run_steps(prepare(config, group), steps=1).records[0].loss


@pytest.fixture
def file(world, tmp_path):
    """A GPT's; on rank 0 alone."""
    group = first(world, 1)
    return given(group, tmp_path / "D", GPT)[1] if group is not None else None


@pytest.mark.parametrize("change, said", [
    ({"d_model": 16},
     r"wte\.weight has shape \(256, 16\) in this model, but has shape \(256, 8\) in .*: use `d_model` 8$"),
    ({"layers": 1, "context": 7},
     r"\(7, 8\) in this model, but has shape \(6, 8\) in .*: use `layers` 2, `context` 6$"),
    ({"layers": 3}, r"h\.2\.\S+ has shape \(8,\) in this model, but does not exist in .*: use `layers` 2$"),
    ({"heads": 4}, r"`heads` is 4, but .* was trained with 2: use `heads` 2$"),
    ({"model": "mlp", "layers": None, "d_model": None, "heads": None, "context": None, "data": None},
     r"does not exist in .*: use `model` gpt$")])
def test_other_sizes(world, file, change, said):
    if file is not None:
        with pytest.raises(CheckpointError, match=said):
            init_weights(prepare(replace(GPT, **change), first(world, 1)), file)
    else:
        first(world, 1)


@pytest.mark.parametrize("change, said", [
    ({"wte.weight": np.zeros((300, 8), np.float32)}, "its vocabulary has 300 tokens, but training is on bytes, 256"),
    ({"score.weight": np.zeros((8, 2), np.float32)}, r"parameter score\.weight does not exist in this model, but has "),
    ({"lm_head.weight": np.ones((256, 8), np.float32)}, r"parameter lm_head\.weight does not exist in this model"),
    ({"ln_f.bias": np.zeros(8, np.int32)}, "holds ln_f.bias as I32, of which no parameter can be made"),
    ({"h.0.attn.bias": np.zeros((1, 1, 6, 6), bool)}, None), ({"lm_head.weight": None}, None)])
def test_other_files(world, file, change, said):
    group = first(world, 1)
    if file is None:
        return
    tensors = numpy_files.load_file(file)
    numpy_files.save_file({name: tensors["wte.weight"] if value is None else value
                           for name, value in (tensors | change).items()}, file)
    if said is None:
        init_weights(prepare(GPT, group), file)
    else:
        with pytest.raises(CheckpointError, match=said):
            init_weights(prepare(GPT, group), file)


@pytest.mark.parametrize("damage", [
    lambda data: data[:-1], lambda data: data[:100], lambda data: b"", lambda data: data + b"x",
    lambda data: b"x" * 500, lambda data: data[:40] + b"\0" + data[41:],
    lambda data: (2**62).to_bytes(8, "little") + data[8:]])
def test_damaged_files(world, file, damage):
    group = first(world, 1)
    if file is None:
        return
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(CheckpointError, match=r"out\.safetensors is no safetensors file, or it is damaged or trunc"):
        init_weights(prepare(GPT, group), file)


def test_missing_files(world, file):
    group = first(world, 1)
    if file is None:
        return
    for path, said in ((file.parent / "none", "none does not exist"), (file.parent.parent, "is no checkpoint"),
                       (file.parent / "step-00000002/part-0000.bin", r"part-0000\.bin is no safetensors file")):
        with pytest.raises(CheckpointError, match=said):
            init_weights(prepare(GPT, group), path)
    (link := file.with_name("link")).symlink_to(file)  # as in Hugging Face's cache
    init_weights(prepare(GPT, group), link)


def test_hosts_with_different_files(world, shared_path):
    """Of the same header: another training of the same model."""
    group = first(world, min(2, world.size))
    if group is None:
        return
    given(group, shared_path, GPT)
    mine = shared_path / "out.safetensors"
    if group.rank:
        tensors = numpy_files.load_file(mine)
        mine = shared_path / "other"
        numpy_files.save_file({name: value + np.float32(1e-6) for name, value in tensors.items()}, mine,
                              metadata={"format": "pt"})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mpizero.checkpoint.init.open_weights", lambda path: open_weights(mine))
        if group.size == 1:
            return
        with pytest.raises(CheckpointError, match="does not hold the same weights on all ranks: give all hosts the"):
            init_weights(prepare(GPT, group), mine)


def test_a_file_that_one_rank_cannot_read(world, shared_path):
    group = first(world, min(2, world.size))
    if group is None:
        return
    _, file, _ = given(group, shared_path, GPT)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mpizero.checkpoint.init.open_weights",
                      lambda path: open_weights(path if group.rank < group.size - 1 else "/nowhere"))
        with pytest.raises(CheckpointError, match="/nowhere does not exist"):
            init_weights(prepare(GPT, group), file)


def test_a_digest_sees_every_training(tmp_path):
    """What differs at one place alone is not promised; what differs everywhere is."""
    values = np.arange(2**20, dtype=np.float32)
    digests = set()
    for number, changed in enumerate((values, values + 1, values.reshape(2, -1), values[:-1])):
        numpy_files.save_file({"x": changed}, tmp_path / f"{number}")
        digests.add(Tensors(tmp_path / f"{number}").digest)
    numpy_files.save_file({"x": values}, tmp_path / "again")
    assert len(digests) == 4 and Tensors(tmp_path / "again").digest in digests and PROBES * 4096 < values.nbytes


@pytest.mark.parametrize("stored", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("wanted", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("scratch", [16, 56, 16384])
def test_any_range_as_any_dtype(tmp_path, stored, wanted, scratch):
    values = np.random.default_rng(1).normal(size=(7, 11)).astype(numpy_dtype(stored))
    numpy_files.save_file({"before": np.ones(3, np.float16), "x": values}, tmp_path / "in")
    weights = open_weights(tmp_path / "in")
    for low, high in ((0, 77), (0, 0), (5, 6), (10, 61), (76, 77)):
        out = np.full(high - low + 2, 9, numpy_dtype(wanted))
        fill_as(weights, "x", low, out[1:-1], np.empty(scratch, np.uint8))
        assert out[1:-1].tobytes() == values.reshape(-1)[low:high].astype(out.dtype).tobytes()
        assert out[0] == out[-1] == 9


def test_flags():
    with pytest.raises(ConfigError, match="`resume` and `init` both say where weights come from"):
        resolve(replace(GPT, init="a", resume="b"))
    with pytest.raises(ConfigError, match="`init` is empty: name a checkpoint or a file of weights"):
        resolve(replace(GPT, init=""))
