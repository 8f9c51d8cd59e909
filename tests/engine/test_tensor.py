"""Tensor parallel ranks: to rounding what one process computes, the same bits at every stage, planned to the byte."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from mpizero.checkpoint.export import export
from mpizero.checkpoint.resume import resume
from mpizero.checkpoint.save import save
from mpizero.console import header
from mpizero.engine.export import sha256
from mpizero.engine.job import prepare
from mpizero.engine.replicas import compare_replicas
from mpizero.engine.summary import summarise
from mpizero.engine.trainer import run_steps
from mpizero.engine.verdict import verdict
from mpizero.errors import ConfigError, ReplicaMismatch
from mpizero.layout import Axis
from mpizero.nn.mlp import DividedLinear
from mpizero.schedule import STRATEGIES
from mpizero.text import counted
from tests.engine.plans import follows_its_plan, run_as_planned
from tests.engine.runs import GPT, MLP
from tests.engine.test_need import dies_below, fits_exactly

TEXTS = replace(GPT, heads=4, steps=2)
LINEARS = replace(MLP, hidden=8, dtype="float32", steps=2)
ALL = {"recompute": True, "partition_activations": True}
OPTIONS: Mapping[str, Mapping] = {
    "plain": {"clip": 0.5, "accumulation": 2},
    "float16": {"dtype": "float16", "no_sync": True, "accumulation": 2},
    "bfloat16": {"dtype": "bfloat16", "sum_dtype": "float32", "overlap": "on", "backward_prefetch": 1},
    "bucket": {"bucket_size": "1KiB", "dtype": "float16", "accumulation": 2},
    "offload": {"offload": "optimizer=cpu", "accumulation": 2, "overlap": "on"},
    "parts": {**ALL, "recompute_interval": 2, "offload": "checkpoints=cpu", "dtype": "float16"},
    "in files": {**ALL, "offload": "optimizer=nvme,checkpoints=nvme", "accumulation": 3, "overlap": "on"},
    "frozen": {"freeze": ("h.0.*", "wpe*"), **ALL},
    "arena": {**ALL, "allocator": "arena", "device_memory": "1MiB"},
}


def trained(config, group):
    """Losses, norms and the digests of all states, of a run that does what is planned; alike on all ranks."""
    job = prepare(config, group)
    records = run_steps(job, steps=config.steps - 1).records + follows_its_plan(job).records
    assert compare_replicas(job.world, job.state.units) == []
    digests = [sha256(job.task.model.spec, job.state.units, name) for name in ("master", "exp_avg", "exp_avg_sq")]
    return [record.loss for record in records], [record.grad_norm for record in records], digests


def sizes(ranks):
    """Those that divide the ranks, and what the models have of everything: no 3."""
    return [size for size in (2, 4) if ranks % size == 0]


@pytest.mark.parametrize("group", [2, 4], ids="n={}".format, indirect=True)
@pytest.mark.parametrize("name", OPTIONS)
def test_same_bits_at_every_stage(group, name, tmp_path):
    options = OPTIONS[name]
    files = {"nvme": str(tmp_path)} if "nvme" in options.get("offload", "") else {}
    if "bfloat16" in options.values():
        pytest.importorskip("ml_dtypes")
    for size in sizes(group.size):
        config = replace(TEXTS, tensor_size=size, **options, **files)
        stages = [*STRATEGIES] if group.size == 2 else ["0", "2", "3"] if size == 2 else ["3", "3-broadcast"]
        stages = [stage for stage in stages if name != "bucket" or stage != "3-broadcast"]
        outcomes = [trained(replace(config, stage=stage), group) for stage in stages]
        assert all(outcome == outcomes[0] for outcome in outcomes)


@pytest.mark.parametrize("group", [2, 4], ids="n={}".format, indirect=True)
@pytest.mark.parametrize("config", [TEXTS, LINEARS], ids=["gpt", "mlp"])
def test_as_one_process_to_rounding(group, config):
    """Losses and norms of float32 within a few of its 6e-8 (seen: 2e-7), and what is drawn exactly."""
    with_one = trained(replace(config, batch_size=4), group.subgroup([0], "one")) if group.rank == 0 else (
        group.subgroup([0], "one"))
    for size in sizes(group.size):
        mine = replace(config, batch_size=4 // (group.size // size), tensor_size=size, stage="3")
        losses, norms, _ = trained(mine, group)
        if group.rank == 0:
            np.testing.assert_allclose([losses, norms], with_one[:2], rtol=2e-5)


@pytest.mark.parametrize("group", [2, 4], ids="n={}".format, indirect=True)
def test_all_start_from_slices_of_the_same_weights(group):
    for config in (TEXTS, LINEARS):
        digests = set()
        for size in (1, *sizes(group.size)):
            job = prepare(replace(config, tensor_size=size, stage="3"), group)
            digests.add(sha256(job.task.model.spec, job.state.units, "master"))
        assert len(digests) == 1


@pytest.mark.parametrize("group", [4], ids="n={}".format, indirect=True)
@pytest.mark.parametrize("stage, shard_size", [("3", 1), ("3", 2), ("1", 1), ("0", None)])
def test_every_mesh(group, stage, shard_size):
    """R x F x 2 of 4 ranks."""
    config = replace(TEXTS, tensor_size=2, stage=stage, shard_size=shard_size, accumulation=2, clip=1.0, **ALL)
    assert trained(config, group)[2] == trained(replace(config, stage="2", partition_activations=False), group)[2]


@pytest.mark.parametrize("group", [2, 4], ids="n={}".format, indirect=True)
def test_checkpoints_know_no_tensor_size(group, shared_path):
    """Saved by one size, gone on with by another: the same states, bit for bit."""
    folder, told = shared_path, {}
    files = []
    for size in (1, *sizes(group.size)):
        job = prepare(replace(TEXTS, tensor_size=size, stage="3", batch_size=2, steps=3), group)
        if told:
            before = told["at"]
            resume(job, before)
            assert digests(job) == told["digests"]
            again = save(job, folder / f"again{size}")  # what was read, saved by another size
            files.append([exported(path, folder, group) for path in (before, again)])
        run_steps(job, steps=1)
        told = {"digests": digests(job), "at": save(job, folder / str(size))}
    assert all(one == other for one, other in files) and files


def exported(path, folder, group):
    """The bytes of the safetensors file, on rank 0; "" elsewhere."""
    if group.rank:
        return b""
    export(path, folder / "out.safetensors", force=True)
    return (folder / "out.safetensors").read_bytes()


def digests(job):
    return [sha256(job.task.model.spec, job.state.units, name) for name in ("master", "exp_avg", "exp_avg_sq")]


@pytest.mark.parametrize("group", [2], ids="n={}".format, indirect=True)
@pytest.mark.parametrize("options", [{}, {"dtype": "float16"}, {**ALL, "dtype": "float16"}], ids=str)
def test_a_run_fits_under_exactly_its_plan(group, few_held_out, options):
    """The rank that adds what is added once needs most; it dies a byte below."""
    config = replace(TEXTS, tensor_size=2, stage="3", overlap="off", **options)
    need = fits_exactly(config, group)
    if group.rank == 0:
        assert need is not None
    dies_below(config, group.subgroup([0, 1], "again"), need)


@pytest.mark.parametrize("group", [2, 4], ids="n={}".format, indirect=True)
@pytest.mark.parametrize("stage", ["0", "2"])
def test_a_digest_is_most_without_steps(group, few_held_out, stage):
    """Of columns: the parts of all ranks, and the whole in the order of its elements."""
    config = replace(LINEARS, hidden=200, batch_size=1, steps=0, tensor_size=2, stage=stage)
    need = fits_exactly(config, group)
    assert need.during == "digest"


@pytest.mark.parametrize("group", [2, 4], ids="n={}".format, indirect=True)
def test_a_summary_is_as_planned(group, few_held_out):
    job = prepare(replace(TEXTS, tensor_size=2, stage="3", **ALL), group)
    summary = summarise(job, run_steps(job))
    assert verdict(summary) == "" and summary["tensor_size"] == 2
    whole = prepare(replace(TEXTS, stage="3"), group).wrapping.numel
    assert summary["psi"] == whole
    told = " ".join(header(job).split())
    assert f"psi = {whole:,} parameters, {job.wrapping.numel:,} of them a rank's part, in 7 units" in told
    assert f"1 replica x {counted(group.size // 2, 'shard')} x 2 tensor parallel ranks" in told
    assert f"x 1 microbatch = {group.size} a step" in told and "pad" not in told[told.index("a step"):]


@pytest.mark.parametrize("group", [4], ids="n={}".format, indirect=True)
def test_a_copy_that_drifts_is_found(group):
    job = prepare(replace(TEXTS, tensor_size=4, stage="0", check_replicas=1), group)
    unit = next(unit for unit in job.state.units if unit.layout.copied)
    if group.rank == 2:
        unit.param[0] += 1
    (found, *_) = compare_replicas(job.world, job.state.units)
    assert (found.unit, found.buffer, found.ranks) == (unit.layout.name, "param", (0, 1, 2, 3))
    with pytest.raises(ReplicaMismatch):
        run_steps(job, steps=1)


@pytest.mark.parametrize("group", [2, 3], ids="n={}".format, indirect=True)
def test_sentences(group):
    with pytest.raises(ConfigError, match="`tensor_size` 3 does not divide `heads` 4|tensor.3. = 2 ranks"):
        prepare(replace(TEXTS, tensor_size=3), group)
    with pytest.raises(ConfigError, match="both cut the same matrices|tensor.2. = 3 ranks"):
        prepare(replace(TEXTS, tensor_size=2, tiles=2), group)
    assert group.size == 3 or run_as_planned(replace(LINEARS, tensor_size=2), group)[0].mesh.group(
        Axis.TENSOR).size == 2


@pytest.mark.parametrize("group", [2], ids="n={}".format, indirect=True)
@pytest.mark.parametrize("way, value", [("forward", "summand"), ("backward", "dsummand")])
def test_a_summand_that_cannot_take_the_sum_is_said(group, monkeypatch, way, value):
    """Where a segment of a task's own gives a view of something else."""
    computed = getattr(DividedLinear, way)

    def turned(self, *arguments):
        result = computed(self, *arguments)
        if way == "forward":
            return np.asfortranarray(result[0]), result[1]
        return None if result is None else np.asfortranarray(result)

    monkeypatch.setattr(DividedLinear, way, turned)
    with pytest.raises(ConfigError, match=rf"^{value}\[\d, mb=0\] is no contiguous array, so ranks cannot sum it"):
        run_steps(prepare(replace(LINEARS, tensor_size=2), group))
