"""What is wrong with a run is found, and said with rank, kind, count and plan; a right run has nothing."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest

from mpizero.engine.job import prepare
from mpizero.engine.summary import summarise
from mpizero.engine.trainer import run_steps
from mpizero.engine.verdict import verdict
from tests.engine.runs import GPT, MLP

pytestmark = pytest.mark.usefixtures("few_held_out")

TWO = replace(MLP, steps=2)
GRID = [replace(config, stage=stage, **more) for config, stage, more in [
    (TWO, "0", {}), (TWO, "1", {"accumulation": 2}), (TWO, "1-allreduce", {}),
    (TWO, "2", {"accumulation": 2, "no_sync": True}), (TWO, "3", {"backward_prefetch": 1}), (TWO, "3", {"steps": 0}),
    (replace(GPT, steps=1), "2", {}), (replace(GPT, steps=1), "3", {"keep_last_unit": True, "dtype": "bfloat16"})]]


@pytest.mark.parametrize("config", GRID, ids=lambda config: f"{config.model} {config.stage} {config.dtype}")
def test_a_right_run(group, config):
    """Kind by kind too, and on hybrid meshes."""
    for shards in {None, 2} if group.size == 4 and config.stage != "0" else {None}:
        job = prepare(replace(config, shard_size=shards), group)
        summary = summarise(job, run_steps(job))
        assert verdict(summary) == "" and (summary["interrupted"], summary["signal"]) == (False, None)


def summary_of(group):
    job = prepare(replace(MLP, steps=2), group)
    return copy.deepcopy(summarise(job, run_steps(job)))  # whose ranks may share an entry


def test_the_sentence_names_rank_kind_count_and_plan(group):
    summary = summary_of(group)
    rank, row = group.size - 1, summary["memory"][-1]
    grad = row["by_kind"]["grad"]["after_backward"]
    row["by_kind"]["grad"]["planned_after_backward"] -= 1
    assert verdict(summary) == (f"rank {rank} held {grad:,} bytes of grad after backward, but {grad - 1:,} were "
                                "planned")
    row["by_kind"]["grad"]["planned_after_backward"] += 1
    for moment, words in (("at_rest", "at rest"), ("after_backward", "after backward"), ("peak", "at their peak")):
        row[f"planned_{moment}"] += 2
        assert f"rank {rank} held {row[moment]:,} bytes of all model states {words}" in verdict(summary)
        row[f"planned_{moment}"] -= 2
    assert row["planned_device_peak"] == row["device_peak"] and verdict(summary) == ""
    row["planned_device_peak"] += 4
    assert f"rank {rank} held {row['device_peak']:,} bytes of all kinds at {row['device_peak_action']}, but" in (
        verdict(summary))
    row["planned_device_peak"] = None  # not known
    assert verdict(summary) == ""
    traffic = summary["traffic"][-1]
    traffic["steps_off_plan"] = 1
    assert f"rank {rank} sent other bytes than the {traffic['sent_bytes_per_step']:,} that were" in verdict(summary)
    traffic["planned_by_op"]["reduce_scatter"] = traffic["by_op"].get("reduce_scatter", 0) + 3
    assert f"rank {rank} sent {traffic['by_op'].get('reduce_scatter', 0):,} bytes of reduce_scatter" in verdict(summary)


def test_peaks_of_checkpoints():
    row = {"saving_peak": 1000, "planned_saving_peak": 1000}
    quiet = {"mismatches": [], "memory": [], "traffic": [], "losses": [], "skipped_steps": 0, "eval_loss": None}
    assert verdict(quiet | {"checkpoints": {"memory": [row, row]}}) == ""
    assert verdict(quiet | {"checkpoints": {"memory": [row, row | {"planned_saving_peak": 998}]}}) == (
        "rank 1 held 1,000 bytes while saving a checkpoint, but 998 were planned")


def test_training_that_went_wrong(group):
    summary = summary_of(group)
    assert verdict(summary | {"skipped_steps": 2}).startswith("all 2 steps were skipped")
    assert verdict(summary | {"skipped_steps": 1}) == ""
    assert verdict(summary | {"skipped_steps": 2, "interrupted": True, "eval_loss": None}) == ""
    assert verdict(summary | {"losses": [1.0, float("inf")]}).startswith("the last loss is inf")
    assert verdict(summary | {"losses": [float("nan"), 1.0]}) == ""
    assert verdict(summary | {"eval_loss": float("nan")}).startswith("the held-out loss is nan")


def test_replicas_that_differ_come_first(group):
    summary = summary_of(group)
    summary["memory"][0]["planned_peak"] += 1
    summary["mismatches"] = ["master of unit layers.0 differs (rank 0: 1, rank 1: 2)"]
    assert verdict(summary) == f"replicas differ: {summary['mismatches'][0]}; and 1 more, see the tables"


@pytest.mark.parametrize("steps", [0, 1])
@pytest.mark.parametrize("config", [replace(MLP, hidden=96, batch_size=16), GPT], ids=["mlp", "gpt"])
def test_the_peak_that_is_told_is_the_capacity_that_is_needed(group, config, steps):
    """By all together: setting up, steps, evaluation and digests."""
    config = replace(config, stage="3", steps=steps)

    def run(memory):
        job = prepare(replace(config, device_memory=memory), group)
        return max(row["device_peak"] for row in summarise(job, run_steps(job))["memory"])

    needed = run(None)
    assert run(f"{needed}B") == needed
    with pytest.raises(MemoryError, match="out of device memory"):
        run(f"{needed - 1}B")


@pytest.mark.parametrize("rank", [0, -1])
def test_all_ranks_stop_where_one_is_asked_to(group, rank):
    """After the step, each with the same signal; no message more, and the weights of a run of so many steps."""
    job, plain = prepare(replace(MLP, stage="2"), group), prepare(replace(MLP, stage="2", steps=4), group)
    asked = [0, 0] + [15 if group.rank == rank % group.size else 0]
    progress = run_steps(job, stop=lambda: asked.pop(0))
    assert (len(progress.records), progress.signal, job.state.step) == (3, 15, 3)
    agreements = [record for record in job.log.records if record.op == "agree"]
    assert len(agreements) == 1
    run_steps(plain, steps=3)
    for here, there in zip(job.state.units, plain.state.units, strict=True):
        assert np.array_equal(here.param, there.param)
    summary = summarise(job, progress)
    assert (summary["interrupted"], summary["signal"], summary["eval_loss"]) == (True, "SIGTERM", None)
    assert len(summary["losses"]) == 3 and verdict(summary) == ""
