"""Tensor sizes that `plan fit` tries: rows are those of a run with that size, compared by samples, and chosen for a
reason."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mpizero.machine import Machine
from mpizero.plan.__main__ import main
from mpizero.planner.candidate import Candidate
from mpizero.planner.costs import machine_costs
from mpizero.planner.fit import best_size, preferred, rows
from mpizero.planner.model import OURS, flat, gpt, mlp
from mpizero.planner.need import step_peak
from mpizero.planner.question import SETTINGS, Question
from mpizero.planner.recommend import recommend
from mpizero.planner.tiers import NONE
from mpizero.planner.timeline import simulate
from mpizero.planner.traffic import plan_traffic, sent_bytes
from mpizero.schedule import StepSettings, set_up

GB = 10**9
ASK = Question(gpt(4, 64, 8, 1000, context=64), ranks=16, ranks_per_host=8, device_memory=GB, host_memory=None,
               nvme=None, machine=Machine(), tokens=128, batch_size=2)
LARGE = replace(ASK, model=gpt(40, 5120, 40, 32_000, context=4096), ranks=64, device_memory=80 * GB).batch(1)


def test_which_sizes_are_tried():
    """Divisors of ranks and of the model, inside a host; of a shard size only those that leave it whole."""
    def sizes(question):
        return [part.tensor_size for part in question.parts]

    assert sizes(ASK) == [1, 2, 4, 8] and sizes(replace(ASK, ranks_per_host=4)) == [1, 2, 4]
    assert sizes(replace(ASK, ranks=6)) == [1, 2] and sizes(replace(ASK, model=gpt(1, 12, 3, 9))) == [1]
    assert sizes(replace(ASK, shard_size=8)) == [1, 2] and sizes(replace(ASK, tensor_size=4)) == [4]
    assert sizes(replace(ASK, ranks_per_host=2, tensor_size=8)) == [8]
    assert sizes(replace(ASK, model=flat(10**6))) == sizes(replace(ASK, activations=5)) == [1]
    assert sizes(replace(ASK, model=mlp())) == [1, 2, 4, 8]


@pytest.mark.parametrize("size, shards, stage, more", [
    (2, 4, "3", {}), (4, 2, "1", {"recompute": True, "partition_activations": True}), (8, 2, "3", {"recompute": True}),
    (2, 1, "0", {"accumulation": 2}), (4, 4, "2", {"bucket_size": "64KiB"})])
def test_a_row_is_of_the_run_with_these_settings(size, shards, stage, more):
    """Bytes and what is sent: of lists that are made anew, with its own sizes."""
    ask = replace(ASK, program=OURS, tensor_size=size, **more).parts[0]
    found = Candidate(ask, stage, NONE, shards)
    settings = StepSettings(stage, shards if stage != "0" else None, tensor_size=size, **more, **SETTINGS)
    made, table = set_up(ask.model.spec, 16, settings), ask.model.activations(OURS, 2, "float16")
    assert found.settings == settings and found.mesh == made.geometry.mesh
    assert found.needs["device"] == step_peak(made, table).nbytes
    assert sent_bytes(sent for phase in found.sends for sent in phase) == sent_bytes(
        plan_traffic(made.lists.step(), made.geometry, table))


@pytest.mark.parametrize("size", [2, 8])
@pytest.mark.parametrize("stage", ["1", "3"])
def test_seconds_as_the_timeline_has_them(size, stage):
    """The same costs, action by action, in one shard group: within 5 %. Sums of activations are hidden by nothing."""
    ask = replace(LARGE, tensor_size=size, shard_size=64 // size, device_memory=10**13).batch(4).parts[0]
    row = best_size(ask, stage, NONE)
    settings = StepSettings(stage, row.shard_size, tensor_size=size, **SETTINGS)
    made, table = set_up(ask.model.spec, 64, settings), ask.model.activations(OURS, 4, "float16")
    costs = machine_costs(ask.model, made.geometry, ask.machine, 4 * 4096, 8, table)
    assert row.seconds == pytest.approx(simulate(made.lists.step(), made.geometry, costs).finish, rel=0.05)
    shared = sum(costs.all_reduce_activation) + sum(costs.all_reduce_input_grad)
    assert row.exposed_seconds > 0.99 * shared > 0.01 * row.seconds


def test_a_rank_computes_its_part():
    whole, *parts = (best_size(part, "3", NONE) for part in LARGE.parts)
    for row in parts:
        assert row.by_resource["compute"] * row.tensor_size == pytest.approx(whole.by_resource["compute"], rel=0.02)


def test_rows_are_compared_by_samples():
    """Two ranks that have a batch together take half as many samples a step; among equals those without come first."""
    row = best_size(replace(LARGE, tensor_size=1), "3", NONE)
    half = replace(row, tensor_size=2, seconds=row.seconds / 2, shard_size=32, sent_bytes=0)
    assert preferred([half, row], 64) is row
    assert preferred([replace(half, seconds=0.49 * row.seconds), row], 64).tensor_size == 2
    assert preferred([replace(half, seconds=0.51 * row.seconds), row], 64) is row


def test_the_reason_says_what_other_sizes_come_to():
    """Where a rank has room for the activations of long texts, and where it has not."""
    room = replace(LARGE, model=gpt(4, 5120, 40, 32_000, context=16_384), device_memory=1000 * GB).batch(1)
    advice = recommend(room, rows(room))
    tried = advice.row.by_tensor_size
    assert advice.row.tensor_size == 1 and tried[2].paced > advice.row.paced
    assert "With `tensor_size` 2, the next best, as many samples would take" in advice.reason
    small = replace(room, device_memory=(tried[1].device_bytes + tried[2].device_bytes) // 2)
    advice = recommend(small, rows(small))
    row = advice.row
    assert row.tensor_size > 1 and not row.by_tensor_size[1].fits
    assert f"`tensor_size` {row.tensor_size}" in advice.reason and "and with that a rank would need " in advice.reason


def test_the_command(plan):
    """Rows carry the flags of the run."""
    asked = "fit --gpt 2,64,4,256 --context 64 --ranks 4 --batch-size 2 --device-memory 1GB --activations-of mpizero"
    found, out = plan(f"{asked} --tensor-size 2 --recompute --partition-activations")
    assert {row["tensor_size"] for row in found["rows"]} == {2} and found["recommended"]["tensor_size"] == 2
    for row in found["rows"]:
        assert "--tensor-size 2 --recompute --partition-activations" in row["train"]
        assert row["paced"] == 2 * row["seconds"] and set(row["by_tensor_size"]) == {"2"}
    assert "with T 2 2 blocks keep an input" in " ".join(out.split())
    memory, _ = plan("memory --gpt 2,64,4,256 --context 64 --ranks 4 --batch-size 2 --stage 3 --shard-size 2 "
                     "--tensor-size 2 --recompute --partition-activations --overlap on --backward-prefetch 1 "
                     "--forward-prefetch 1")
    row = next(row for row in found["rows"] if (row["stage"], row["offload"]) == ("3", "none"))
    assert row["device_bytes"] == memory["activations"]["device_peak"] and row["shard_size"] == 2
    every, out = plan(asked)
    assert all(set(row["by_tensor_size"]) == {"1", "2", "4"} for row in every["rows"]) and "x T" in out


def test_better_than_one_shard_group_over_a_slow_link(plan):
    """Stage 2 among all 64 ranks takes 5 s."""
    found, out = plan("fit --params 13e9 --ranks 64 --device-memory 80GB --inter-bandwidth 12.5GB")
    assert found["recommended"]["shard_size"] == 8
    row = next(row for row in found["rows"] if (row["stage"], row["offload"]) == ("2", "none"))
    assert round(row["seconds_by_size"]["64"]) == 5 and round(row["seconds"], 1) == 2.6
    assert "In one shard group of all 64 ranks a step would take 5 s" in found["reason"] and "x T" not in out


@pytest.mark.parametrize("flags, words", [
    ("--params 1e6 --ranks 4 --tensor-size 2", "divides heads, columns and vocabulary"),
    ("--gpt 2,64,4,256 --ranks 4 --tensor-size 8", "--tensor-size 8 does not divide heads 4"),
    ("--gpt 2,64,4,256 --ranks 6 --tensor-size 4", "tensor(4) = 6 ranks has no solution"),
    ("--gpt 2,64,4,256 --ranks 4 --recompute --partition-activations", "add --recompute and --tensor-size 2"),
])
def test_sentences(capsys, flags, words):
    assert main(["fit", "--device-memory", "1GB", *flags.split()]) == 2
    out, err = capsys.readouterr()
    assert not out and words in err and err.count("\n") == 1
