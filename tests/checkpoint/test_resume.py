"""A run goes on from a checkpoint as if nothing had happened: on as many ranks bit for bit, on others with the same
numbers; and neither takes memory."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from mpizero.checkpoint.read import open_checkpoint
from mpizero.checkpoint.resume import resume
from mpizero.checkpoint.run import begin_checkpoints
from mpizero.checkpoint.save import save
from mpizero.engine.job import prepare
from mpizero.engine.replicas import compare_replicas
from mpizero.engine.trainer import run_steps
from mpizero.planner import plan_memory
from mpizero.planner.need import loading_bytes
from tests.checkpoint.jobs import CONFIGS, begin, first, go_on, kept, numbers
from tests.engine.runs import GPT, MLP, outcome
from tests.engine.test_device import traced_peak
from tests.engine.test_state import untimed


def by_name(name: str) -> str:
    return name


@pytest.mark.parametrize("name, stage", [
    *(("mlp-float16", stage) for stage in "0123"), ("mlp-float32", "1"), ("mlp-float32", "3"), ("mlp-bfloat16", "2"),
    ("gpt", "0"), ("gpt", "3"), ("mlp-float16", "3-broadcast")])
def test_same_bits_as_the_run_that_was_not_interrupted(group, shared_path, name, stage):
    config = replace(CONFIGS[name], stage=stage)
    whole = prepare(config, group)
    records = run_steps(whole).records
    early = begin(config, group, 2)
    path = save(early, shared_path / f"n{group.size}")
    late = go_on(config, group, path).job
    assert kept(late) == kept(early) and numbers(late) == numbers(early)
    assert [untimed(record) for record in run_steps(late).records] == [untimed(record) for record in records[2:]]
    assert outcome(late, []) == outcome(whole, []) and kept(late) == kept(whole)
    assert compare_replicas(group, late.state.units) == []


@pytest.mark.parametrize("name", ["mlp-float16", "mlp-float32"])
def test_hybrid_meshes(world, shared_path, name):
    group = first(world, 4)
    for size in (1, 2, 4):
        config = replace(CONFIGS[name], stage="2", shard_size=size)
        early = begin(config, group, 2)
        path = save(early, shared_path / str(size))
        for stage, other in (("2", size), ("3", 2), ("3-broadcast", 2), ("1", 4), ("0", None)):
            late = go_on(replace(config, stage=stage, shard_size=other), group, path).job
            assert numbers(late) == numbers(early) and compare_replicas(group, late.state.units) == []


@pytest.mark.parametrize("hidden, dtype", [(1, "float16"), (2, "bfloat16"), (13, "float32")])
def test_other_ranks_stages_and_wrapping(world, shared_path, hidden, dtype):
    """4 -> 3 -> 2 -> 1 -> 4 ... ranks; parameters of 1 to 416 elements, most of them primes or less than one a rank."""
    ways = [(4, "3", by_name), (3, "2", None), (2, "1", by_name), (1, "0", None), (4, "1", None), (3, "3", by_name),
            (4, "3-broadcast", by_name), (2, "2", None), (3, "3-broadcast", None)]
    for number, (ranks, stage, policy) in enumerate(ways):
        group = first(world, ranks)
        if group is None:
            continue
        config = replace(MLP, hidden=hidden, dtype=dtype, stage=stage, steps=len(ways))
        if number == 0:
            job = begin(config, group, 1, policy=policy)
        else:
            job = go_on(config, group, shared_path / str(number - 1), policy=policy).job
            assert numbers(job) == saved_of(shared_path / str(number - 1), job)
            run_steps(job, steps=1)
        assert save(job, shared_path / str(number)).name == f"step-0000000{number + 1}"


def saved_of(path, job):
    """What `numbers` would give, from the files alone."""
    checkpoint = open_checkpoint(path)
    about = checkpoint.about
    return {"step": about["step"], "updates": about["updates"], "position": about["position"],
            "scaler": about["scaler"],
            **{(state, param): checkpoint.read(state, param).tobytes() for unit in job.state.units
               for state in unit.states for param in (spec.name for spec in unit.layout.params)}}


@pytest.mark.parametrize("stage", ["1", "3"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_units_without_master_weights_or_moments(group, shared_path, dtype, stage):
    """16-bit weights that are their own master weights, and a frozen unit."""
    early, late = (prepare(replace(MLP, dtype=dtype, stage=stage, seed=seed), group) for seed in (0, 1))
    for job in (early, late):
        for number, unit in enumerate(job.state.units):
            unit.states["master"] = unit.updated_param
            if number == 1:
                del unit.states["exp_avg"], unit.states["exp_avg_sq"]
    path = save(early, shared_path / f"n{group.size}")
    resume(replace(late, settings=early.settings, task=early.task), path)
    assert kept(late) == kept(early)
    kept_of = [open_checkpoint(path).kept[unit.layout.params[0].name] for unit in early.state.units[:2]]
    assert kept_of == [{"master": dtype, "exp_avg": "float32", "exp_avg_sq": "float32"}, {"master": dtype}]


def test_on_other_ranks_it_learns_the_same(world, shared_path):
    """One global batch of 12: float32 on 4, 3, 2 and 1 ranks in turn against one uninterrupted run on 4."""
    config = replace(MLP, dtype="float32", steps=8)
    whole, losses = prepare(config, first(world, 4)), []
    expected = [record.loss for record in run_steps(whole).records]
    for number, ranks in enumerate((4, 3, 2, 1)):
        group = first(world, ranks)
        if group is not None:
            here = replace(config, batch_size=12 // ranks, stage=str(number))
            job = prepare(here, group)
            job = job if number == 0 else resume(job, shared_path / "c").job
            losses += [record.loss for record in run_steps(job, steps=2).records]
            save(job, shared_path / "c")
    if world.rank == 0:
        assert losses == pytest.approx(expected, rel=1e-6) and len(losses) == 8


def test_the_loss_scale_goes_on_after_skipped_steps(group, shared_path):
    config = replace(MLP, stage="2", steps=40)
    job = prepare(config, group)
    job.state.scaler.scale, job.state.scaler.growth_interval = 2.0**40, 9
    run_steps(job, steps=30)
    assert 0 < job.state.updates < 30 == job.state.step
    assert 0 < job.state.scaler.state_dict()["_growth_tracker"] < 9
    path = save(job, shared_path / f"n{group.size}")
    late = go_on(config, group, path).job
    assert numbers(late) == numbers(job)
    assert [untimed(a) for a in run_steps(late).records] == [untimed(b) for b in run_steps(job).records]


def test_step_10_001(group, shared_path):
    config = replace(MLP, dtype="float32", steps=20_000)
    job = begin(config, group, 1)
    job.state.step, job.state.updates, job.state.position = 10_001, 9_876, 2**40 + 3
    path = save(job, shared_path / f"n{group.size}")
    assert path.name == "step-00010001"
    late = go_on(config, group, path)
    assert "at step 10,001 of 20,000" in late.said
    state = late.job.state
    assert (state.step, state.updates, state.position) == (10_001, 9_876, 2**40 + 3)
    here, there = run_steps(late.job, steps=2).records, run_steps(job, steps=2).records
    assert [untimed(a) for a in here] == [untimed(b) for b in there] and here[-1].step == 10_002


def test_epochs_end_where_they_would_have(world, shared_path, tmp_path):
    """Every window is seen once in all, though ranks and batches change on the way."""
    config = replace(GPT, steps=None, epochs=0.002, stage="2")
    group, seen = first(world, 4), []
    job = prepare(config, group)
    run_steps(job, steps=2)
    save(job, shared_path)
    end, position = job.settings.end, job.state.position
    group = first(world, 3)
    if group is not None:
        late = resume(prepare(replace(config, batch_size=1), group), shared_path).job
        assert late.settings.steps == 2 + math.ceil((end - position) / 3)
        for _ in range(late.settings.steps - 2):
            seen.append(late.count_targets() // GPT.context)
            run_steps(late, steps=1)
        assert sum(seen) == end - position and run_steps(late).records == []


@pytest.mark.parametrize("stage", ["0", "2", "3", "3-broadcast"])
@pytest.mark.parametrize("config", [replace(MLP, hidden=2), GPT], ids=["2", "gpt"])
def test_neither_saving_nor_loading_takes_memory(group, shared_path, config, stage):
    """Planned and counted: saving takes nothing, loading less than a unit."""
    config = replace(config, stage=stage)
    job = begin(config, group, 1)
    rest, unit = books(job)
    job.ledger.reset_peaks()
    save(job, shared_path / f"n{group.size}")
    assert job.ledger.peak_bytes == rest
    late = prepare(config, group)
    late.ledger.reset_peaks()
    resume(late, shared_path / f"n{group.size}")
    assert 0 < late.ledger.peak_bytes - rest == loading_bytes(late.geometry) <= unit and late.ledger.live_bytes == rest


def books(job):
    """Bytes at rest, and of one unit's model states, as planned."""
    rest = plan_memory([], job.geometry).at_rest_bytes
    assert job.ledger.live_bytes == rest
    itemsize = job.geometry.itemsize + job.geometry.optimizer_bytes
    return rest, itemsize * max(unit.layout.padded_numel for unit in job.state.units)


def test_tracemalloc_says_so_too(group, shared_path):
    """Python's own objects, texts of JSON among them, included: of 1.2 MB of states, less than one unit's 0.36 MB."""
    config = replace(MLP, hidden=160, stage="3")
    job, path = begin(config, group, 1), shared_path / f"n{group.size}"
    late, (_, unit) = prepare(config, group), books(job)
    saving, loading = traced_peak(lambda: save(job, path))[0], traced_peak(lambda: resume(late, path))[0]
    assert saving < unit and loading_bytes(late.geometry) - 1000 < loading < unit


def test_each_rank_reads_its_own_ranges(group, shared_path, monkeypatch):
    """And each element is stored once: the parts come to what the states have, without padding."""
    config = replace(MLP, hidden=13, stage="3", dtype="float32")
    job = begin(config, group, 1)
    path = save(job, shared_path / f"n{group.size}")
    psi = job.wrapping.numel
    sizes = [(path / f"part-{rank:04d}.bin").stat().st_size for rank in range(group.size)]
    assert sum(sizes) == 12 * psi and max(sizes) - min(sizes) <= 12 * group.size * len(job.state.units)
    asked = []
    fill = type(open_checkpoint(path)).fill
    monkeypatch.setattr("mpizero.checkpoint.read.Checkpoint.fill",
                        lambda *a: (asked.append(a[4].size), fill(*a)))
    go_on(config, group, path)
    assert sum(asked) == 3 * sum(min(unit.shard.stop, unit.layout.numel) - min(unit.shard.start, unit.layout.numel)
                                 for unit in job.state.units)


def test_any_range_can_be_read(group, shared_path, monkeypatch):
    """Small blocks, so that ranges lie across them, and across parts."""
    for module in ("format", "contents", "read", "save"):
        monkeypatch.setattr(f"mpizero.checkpoint.{module}.BLOCK", 64)
    job = begin(replace(MLP, stage="1"), group, 2)
    path = save(job, shared_path / f"n{group.size}")
    checkpoint = open_checkpoint(path)
    assert list(checkpoint.params) == [param.name for param in job.task.model.spec.params]
    expected, rng = numbers(job), np.random.default_rng(0)
    for param, shape in checkpoint.params.items():
        assert checkpoint.kept[param] == {"master": "float32", "exp_avg": "float32", "exp_avg_sq": "float32"}
        for state in checkpoint.kept[param]:
            low, high = sorted(rng.integers(0, math.prod(shape) + 1, 2))
            want = np.frombuffer(expected[state, param], np.float32)
            fresh = open_checkpoint(path)
            assert fresh.read(state, param, low, high).tobytes() == want[low:high].tobytes()
            assert fresh.read(state, param).tobytes() == want.tobytes()


def test_what_a_run_keeps_books_about(group, shared_path):
    """Peaks as planned; the last save is not done twice; what was saved is known after resuming."""
    config = replace(MLP, stage="3", save=str(shared_path / f"n{group.size}"), save_every=2)
    run = begin_checkpoints(prepare(config, group), "first")
    said = []
    run_steps(run.job, lambda record: said.append(run.after_step()))
    assert [text.split(" in ")[0] for text in said if text] == [f"saved {config.save}/step-0000000{n}" for n in (2, 4)]
    assert run.save() == "" and run.last_words.endswith(f"go on with `resume` {config.save}/latest")
    if run.lock:
        run.lock.close()
    on = begin_checkpoints(prepare(replace(config, resume=config.save), group), "second")
    assert on.said[-1:] == [f"resumed from {config.save}/step-00000004 ({len(group.hosts)} "
                            f"rank{'s' * (group.size > 1)}, stage 3) at step 4 of 4; nothing is left to train: give "
                            "`steps` above 4 to go on"] and on.save() == ""
    for each in (run, on):
        for row in each.facts()["memory"]:
            assert row and all(row[what] == row[f"planned_{what}"] for what in row if not what.startswith("planned_"))
    if on.lock:
        on.lock.close()
