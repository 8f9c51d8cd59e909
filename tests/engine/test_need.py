"""A run fits under exactly what its plan says that it needs, and dies one byte below."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mpizero.checkpoint.run import begin_checkpoints
from mpizero.checkpoint.save import save
from mpizero.engine.fill import drawing_bytes, initialise
from mpizero.engine.job import prepare
from mpizero.engine.need import run_need, tables
from mpizero.engine.resolve import resolve
from mpizero.engine.summary import summarise
from mpizero.engine.task import built_in_task
from mpizero.engine.trainer import run_steps
from mpizero.errors import CheckpointError, OutOfDeviceMemory
from mpizero.nn.init import Constant
from mpizero.schedule import STRATEGIES, set_up
from tests.engine.plans import follows_its_plan
from tests.engine.runs import GPT, MLP, dealt

pytestmark = pytest.mark.usefixtures("few_held_out")

LARGE_MLP = replace(MLP, hidden=200, batch_size=40, steps=2)
SMALL_GPT = replace(GPT, d_model=32, context=20, batch_size=4, steps=2)
VARIED = {
    "evaluating": replace(LARGE_MLP, dtype="float32", eval_every=1, check_replicas=1),
    "nothing trained": replace(LARGE_MLP, steps=0),
    "nothing trained, small": replace(MLP, steps=0, batch_size=1),
    "wire": replace(LARGE_MLP, reduce_dtype="float32", accumulation=2, stage="3"),
    "sums": replace(LARGE_MLP, sum_dtype="float32", accumulation=2, no_sync=True),
    "sums of owners": replace(LARGE_MLP, sum_dtype="float32", accumulation=2, stage="3-broadcast"),
    "hybrid": replace(LARGE_MLP, sum_dtype="float32", shard_size=1, stage="3", wrap="1MB"),
    "no master weights": replace(LARGE_MLP, no_master_weights=True, optimizer="sgd", stage="1"),
    "embedding frozen": replace(SMALL_GPT, freeze=("w?e.*", "h.0.*"), stage="3", dtype="float16"),
    "prefetched": replace(SMALL_GPT, stage="3", backward_prefetch=2, forward_prefetch=1, overlap="on", wrap="layer"),
    "limited": replace(SMALL_GPT, stage="3", backward_prefetch=2, limit_all_gathers=2, overlap="on", accumulation=2),
    "debugged": replace(SMALL_GPT, debug=True, clip=0.1, optimizer="lion"),
}


def fits_exactly(config, group):
    """Returns the job that had exactly enough, and its summary."""
    need = prepare(config, group).need
    job = prepare(replace(config, device_memory=f"{need.nbytes}B"), group)
    summary = summarise(job, run_steps(job))
    for rank in summary["memory"]:
        assert (rank["device_peak"], rank["device_peak_action"]) == (
            rank["planned_device_peak"], rank["planned_device_peak_action"])
    with pytest.raises(OutOfDeviceMemory, match=rf"needs {need.nbytes:,} bytes on a rank \(at .*\), and `device_memo"):
        prepare(replace(config, device_memory=f"{need.nbytes - 1}B"), group)
    if need.during != "init":
        assert max(rank["device_peak"] for rank in summary["memory"]) == need.nbytes
    return need


def dies_below(config, group, need):
    """The ledger of a job that nobody has refused: at the very allocation. Of ranks that all die there."""
    job = prepare(config, group)
    job.ledger.capacity = need.nbytes - 1
    with pytest.raises(OutOfDeviceMemory, match="out of device memory at"):
        summarise(job, run_steps(job))
    assert job.ledger.action == need.during


@dealt("stage, config", list(STRATEGIES), [LARGE_MLP, SMALL_GPT])
def test_at_every_stage(group, stage, config):
    config = replace(config, stage=stage)
    need = fits_exactly(config, group)
    if stage != "3-broadcast" or group.size == 1:  # of owners one dies, and the others wait for it
        dies_below(config, group, need)


@dealt("name", list(VARIED))
def test_whatever_is_set(group, name):
    fits_exactly(VARIED[name], group)


def need_of(config, ranks):
    """Without ranks: what `prepare` would refuse to run below."""
    settings = resolve(config, ranks=ranks)
    task = built_in_task(settings, epochs=False)
    made = set_up(task.model.spec, ranks, settings.step, dtype=settings.dtype, optimizer=settings.optim.spec)
    return run_need(made.lists, made.geometry, task, settings, tables(task, settings, ranks)).nbytes


@pytest.mark.parametrize("size, context, batch", [("1,32,2,256", 20, 4), ("4,128,4,256", 128, 16)])
def test_a_fit_says_what_train_needs_with_its_flags(plan, size, context, batch):
    """The second once fitted into 28 MB by its plan, and its run did not."""
    asked = f"fit --gpt {size} --context {context} --ranks 4 --batch-size {batch} --tensor-size 1 "
    asked += "--activations-of mpizero"
    found, out = plan(f"{asked} --device-memory 28MB")
    words = " ".join(out.split())
    assert found["exact"] and "no margin is kept free" in words
    assert f"--batch-size {batch} --backward-prefetch 1 --forward-prefetch 1 --overlap on --optimizer adam and" in words
    assert "--offload params=nvme,optimizer=nvme --nvme DIR" in words
    layers, width, heads, _ = map(int, size.split(","))
    for row in (row for row in found["rows"] if row["offload"] == "none"):
        config = replace(GPT, layers=layers, d_model=width, heads=heads, context=context, batch_size=batch,
                         dtype="float16", stage=row["stage"], shard_size=row["shard_size"], overlap="on",
                         backward_prefetch=1, forward_prefetch=1)
        assert row["device_bytes"] == need_of(config, 4)
        assert row["fits"] == (row["device_bytes"] <= 28_000_000)
    best, shards = min((row["device_bytes"], row["shard_size"]) for row in found["rows"]
                       if (row["stage"], row["offload"]) == ("3", "none"))
    for memory, fits in ((best, True), (best - 1, False)):
        rows = plan(f"{asked} --device-memory {memory}B --shard-size {shards}")[0]["rows"]
        assert next(row for row in rows if (row["stage"], row["offload"]) == ("3", "none"))["fits"] is fits


def test_plan_memory_tells_it_too(plan):
    for stage in STRATEGIES:
        found, out = plan(f"memory --gpt 2,32,2,256 --context 20 --ranks 4 --stage {stage} --batch-size 4")
        config = replace(GPT, d_model=32, context=20, batch_size=4, dtype="float16", stage=stage)
        assert found["activations"]["device_peak"] == need_of(config, 4)
        assert "device, all kinds: mpizero's own, exact" in out


@dealt("stage, dtype", list(STRATEGIES), ["float16", "bfloat16", "float32"])
def test_every_action_of_a_gpt_is_planned(group, stage, dtype):
    """Model states, activations, and what lives within an action: by kind afterwards, and in all meanwhile."""
    if dtype == "bfloat16":
        pytest.importorskip("ml_dtypes")
    job = prepare(replace(SMALL_GPT, stage=stage, dtype=dtype, accumulation=2, overlap="on",
                          no_sync=stage == "2"), group)
    for _ in range(2):
        follows_its_plan(job)


@pytest.mark.parametrize("stage, during", [("2", "digest"), ("0", "init")])
def test_what_is_most_without_steps(group, stage, during):
    """A digest of a whole state where ranks keep parts, else drawing the initial values."""
    config = replace(MLP, hidden=200, dtype="float32", batch_size=1, steps=0, stage=stage)
    need = fits_exactly(config, group)
    assert need.during == during
    assert during == "digest" or prepare(config, group).ledger.peak_bytes == need.nbytes


@pytest.mark.parametrize(("dtype", "stage"), [("float16", "3"), ("float32", "0")])
def test_reading_a_checkpoint_is_part_of_it(group, shared_path, dtype, stage):
    """Of a small model whose ranks keep all, and train nothing, it is the most."""
    config = replace(MLP, hidden=40, batch_size=1, dtype=dtype, steps=0, stage=stage)
    save(prepare(config, group), shared_path)
    config = replace(config, resume=str(shared_path))
    need = prepare(config, group).need
    assert (need.during == "load") == (stage == "0")
    job = begin_checkpoints(prepare(replace(config, device_memory=f"{need.nbytes}B"), group), "run").job
    summarise(job, run_steps(job))
    if need.during == "load":
        job = prepare(config, group)
        job.ledger.capacity = need.nbytes - 1
        with pytest.raises(CheckpointError, match="out of device memory at load"):
            begin_checkpoints(job, "run")


def test_initial_values_take_what_they_say(group):
    job = prepare(replace(MLP, hidden=300, stage="3"), group)
    rest, ledger = job.ledger.live_bytes, job.ledger
    for unit in job.state.units:
        said = drawing_bytes(unit.layout, unit.range_of(unit.placement.params), job.task.model)
        initialise(unit, job.task.model, 3)
        assert ledger.action_peak_bytes == rest + said and said > 0


def test_values_of_ones_own_say_nothing():
    assert Constant(1.0).workspace(3, 100) == 0
