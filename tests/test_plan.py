"""`python -m mpizero.plan` as a user meets it: commands as written, keys of the JSON, tables that fit, mistakes."""

from __future__ import annotations

import re

import pytest

LECTURE = "timeline --units 4 --forward 2 --backward 4 --all-gather 1.5 --reduce-scatter 1.5"


# -- memory ------------------------------------------------------------------------------------------------------------


def test_memory_of_a_bare_number(plan):
    found, out = plan("memory --params 7.5e9 --ranks 64 --stage 2")
    assert found["after_backward"] == found["formula"] == found["formula_without_padding"] == 16_640_625_000
    assert found["at_rest"] == 16_640_625_000 - 2 * 7_500_000_000 // 64
    # while the last unit is reduced: its whole gradient
    assert found["peak"] == found["after_backward"] + 2 * 234_375_168
    assert found["by_kind"]["param"] == {"at_rest": 15 * 10**9, "after_backward": 15 * 10**9, "peak": 15 * 10**9}
    assert set(found["by_kind"]) == {"param", "grad", "optim", "unsharded_param", "unsharded_grad", "grad_fp32"}
    assert "16,640,625,000" in out and "2 psi + 14 psi/N" in out and "16.6 GB" in out
    assert all(isinstance(value, int) for moments in found["by_kind"].values() for value in moments.values())


@pytest.mark.parametrize("stage, gb", [("0", 208), ("1", 54.4375), ("2", 28.84375), ("3", 3.25)])
def test_memory_of_13b_on_64_ranks(plan, stage, gb):
    assert plan(f"memory --params 13e9 --ranks 64 --stage {stage}")[0]["after_backward"] == gb * 10**9


def test_memory_of_tiles(plan):
    """A tile of the widest matrix, and the block's vectors, in place of a block; beside its gradient that of the tied
    embedding, from the head on."""
    embedding = (50 + 32) * 64
    for tiles, matrices in ((1, 12), (2, 4 / 2), (16, 4 / 16)):
        asked = f"memory --gpt 2,64,4,50 --context 32 --ranks 2 --stage 3 --tiles {tiles} --batch-size 1"
        found, out = plan(asked)
        params, grads = (found["by_kind"][kind]["peak"] for kind in ("unsharded_param", "unsharded_grad"))
        block = int(matrices * 64 * 64) + 13 * 64
        assert (params, grads) == (2 * max(block, embedding + 2 * 64), 2 * (block + embedding))
        assert ("matrices in" in out) == (tiles > 1)


@pytest.mark.parametrize("command, said", [
    ("memory --params 1e6 --ranks 2 --tiles 2", "--tiles 2 cuts matrices, whose shapes --gpt or --model mlp name"),
    ("memory --gpt 1,8,2,9 --ranks 2 --tiles 9", "tiles 9 is more than the 8 rows of h.0.attn.c_attn.weight"),
    (f"{LECTURE} --tiles 2", "--tiles is of a model, and none is named")])
def test_tiles_that_cannot_be(capsys, command, said):
    from mpizero.plan.__main__ import main
    assert main(command.split()) == 2
    assert said in capsys.readouterr().err


def test_memory_of_gpt2_medium(plan):
    found, out = plan("memory --gpt 24,1024,16,50257 --ranks 64 --stage 2 --batch-size 4")
    assert (found["psi"], found["units"]) == (354_823_168, 26)
    assert found["after_backward"] == found["formula"] == 2 * found["padded_psi"] + 14 * found["padded_psi"] // 64
    activations = found["activations"]
    assert activations["formula"] == 2 * 12 * 1024 * 4 * 1024 * 24
    assert activations["recompute_formula"] == 2 * 4 * 1024 * 1024 * 24
    assert activations["after_forward"] <= activations["peak"] and f"{activations['peak']:,}" in out


@pytest.mark.parametrize("dtype, size", [("float16", 2), ("float32", 4)])
def test_memory_with_recompute(plan, dtype, size):
    """The inputs that blocks keep are the formula's, in the size of the parameters' numbers; mpizero's own are planned
    from the list."""
    asked = f"memory --gpt 4,64,4,500 --context 32 --ranks 4 --stage 3 --batch-size 8 --dtype {dtype}"
    plain, out = plan(asked)
    assert plain["activations"]["kept_inputs"] == 0 and "recompute keeps" not in out
    for interval in (1, 2):
        found, out = plan(f"{asked} --recompute --recompute-interval {interval}")
        again, kept = found["activations"], size * 8 * 32 * 64 * 4 // interval
        assert again["kept_inputs"] == again["recompute_formula"] == kept and f"{kept:,}" in out
        # of a block it leaves its input, which was counted before, and of `interval` blocks even that of one alone
        saved = 8 * 32 * (9 * 64 * size + (4 + 4) * 4)
        inputs = 4 - 4 // interval
        less = 4 * saved + inputs * 8 * 32 * 64 * size
        assert again["after_forward"] == plain["activations"]["after_forward"] - less
        assert (found["peak"] == plain["peak"]) == (interval == 1)  # two whole units together
        assert ("recompute interval 2" in out) == (interval == 2) and "recompute" in out


def test_memory_of_the_mlp_is_what_a_run_counts(plan):
    found, out = plan("memory --model mlp --ranks 4 --stage 3 --actions")
    assert (found["after_backward"], found["peak"], found["peak_action"]) == (130_624, 161_632, "Backward(1, mb=0)")
    assert max(row["peak"] for row in found["actions"]) == 161_632 and "Unshard(4)" in out
    assert found["actions"][-1]["live"] == found["at_rest"] == 114_296
    assert [row["action"] for row in found["actions"][:3]] == ["-- forward mb=0", "LoadBatch(mb=0)", "Unshard(0)"]


def test_memory_pads(plan):
    found, out = plan("memory --model mlp --ranks 3 --stage 1")
    assert (found["padded_psi"], found["after_backward"], found["formula"]) == (32_658, 261_264, 261_264)
    assert found["formula_without_padding"] == 4 * 32_656 + 12 * 32_656 / 3 and "without padding" in out


def test_memory_of_owners(plan):
    """The table is of the rank that keeps most; what the other end keeps is said."""
    found, out = plan("memory --model mlp --ranks 4 --stage 3-broadcast")
    assert (found["at_rest"], found["after_backward"], found["peak"]) == (14 * 9312, 16 * 9312, 186_240)
    assert found["formula"] == found["formula_without_padding"] == 16 * 9312
    assert found["places"] == {"fullest": 1, "emptiest": 0} and found["emptiest"]["after_backward"] == 16 * 4720
    assert "number 0, has 66,080 at rest, 75,520 after backward" in " ".join(out.split())
    assert "16 psi/N on average and 16 psi of the 9,312 that this rank owns" in " ".join(out.split())
    padded, _ = plan("memory --model mlp --ranks 3 --stage 3-broadcast --freeze layers.4.*")
    assert padded["places"] == {"fullest": 0, "emptiest": 2}  # units 0 and 3; 2
    assert padded["formula"] == 16 * (3168 + 9312) and padded["formula_without_padding"] == padded["formula"]
    alike, _ = plan("memory --model mlp --ranks 4 --stage 3")
    assert "emptiest" not in alike


def test_traffic_of_owners(plan):
    """Beside stage 3 all ranks together send as much to gather, and a fourth more to sum."""
    owners, out = plan("traffic --model mlp --ranks 4 --stage 3-broadcast")
    shards, _ = plan("traffic --model mlp --ranks 4 --stage 3")
    psi = 32_656
    assert shards["all_ranks_bytes"] == 4 * shards["sent_bytes"] == 2 * 9 * psi
    assert owners["all_ranks_bytes"] == 2 * (6 * psi + 3 * psi + 3 * psi // 4)
    assert owners["sent_bytes"] == owners["formulas"]["a step"]["bytes"] == 172_400 and owners["messages"] == 25
    assert "sent by the rank that sends most" in out and "sent by every rank" not in out


def test_timeline_of_owners(plan):
    """The same computation; collectives of more passes."""
    owners, shards = (plan(f"timeline --gpt 4,256,4,1000 --ranks 8 --stage {stage}")[0]
                      for stage in ("3-broadcast", "3"))
    assert owners["finish"] > shards["finish"] and "Broadcast(1)" in {event["action"] for event in owners["events"]}


def test_memory_with_passes_and_accumulation(plan):
    plain, _ = plan("memory --params 1e6 --units 8 --ranks 4 --stage 3")
    ahead, out = plan("memory --params 1e6 --units 8 --ranks 4 --stage 3 --backward-prefetch 2 --keep-last-unit")
    assert ahead["peak"] > plain["peak"] and ahead["after_backward"] == plain["after_backward"]
    assert "backward prefetch 2, keep last unit" in out
    held, _ = plan("memory --params 1e6 --units 8 --ranks 4 --stage 3 --backward-prefetch 2 --limit-all-gathers 1")
    assert held["peak"] == plain["peak"]
    once, out = plan("memory --params 1e6 --ranks 4 --stage 1 --accumulation 2")
    assert once["after_backward"] > once["formula"] and "NOT equal" in out


def test_memory_compared(plan):
    found, out = plan("memory --params 13e9 --ranks 64 --stage 1 --compare")
    sizes = {estimate["source"]: estimate["device_bytes"] for estimate in found["compare"]}
    assert sizes["DeepSpeed, stages 1 and 2"] == 2 * 13 * 10**9 + 18 * 13 * 10**9 // 64
    assert sizes["ZeRO, table 1"] == found["after_backward"] == 54_437_500_000
    assert sizes["accelerate estimate-memory"] == 8 * 13 * 10**9 and "float32 gradient" in out and "0.54" in out
    assert len([source for source in sizes if "Megatron" in source]) == 2


# -- traffic -----------------------------------------------------------------------------------------------------------


def test_traffic_of_hybrid_sharding(plan):
    found, out = plan("traffic --params 13e9 --ranks 64 --shard-size 8 --ranks-per-host 8 --stage 3")
    model = 26 * 10**9
    formula = found["formulas"]["hybrid sharding in hosts, between them"]
    assert found["inter_host_bytes"] == 2 * 7 * model // 64 == formula["bytes"]
    assert found["sent_bytes"] == 3 * 7 * model // 8 + found["inter_host_bytes"] == sum(found["by_op"].values())
    assert found["host_bytes"] == 8 * found["inter_host_bytes"] and found["hosts"] == 8
    assert found["formulas"]["the same as the FSDP paper prints it"]["bytes"] == 2 * model * 63 / (8 * 64)
    assert f"{found['sent_bytes']:,}" in out


def test_traffic_of_the_lectures_13b(plan):
    hybrid, _ = plan("traffic --model 13b --ranks 64 --shard-size 8 --ranks-per-host 8 --stage 3")
    full, _ = plan("traffic --model 13b --ranks 64 --ranks-per-host 8 --stage 3")
    assert [round(found["inter_host_bytes"] / 1e9, 2) for found in (hybrid, full)] == [5.58, 75.29]
    assert full["inter_host_bytes"] / hybrid["inter_host_bytes"] == 13.5


@pytest.mark.parametrize("stage, volume", [("0", 2), ("1", 2), ("1-allreduce", 3), ("2", 2), ("3", 3)])
def test_traffic_is_the_closed_form(plan, stage, volume):
    found, _ = plan(f"traffic --model mlp --ranks 4 --stage {stage}")
    assert found["sent_bytes"] == found["formulas"]["a step"]["bytes"] == volume * 3 * 32_656 // 4 * 2
    assert found["inter_host_bytes"] == 0 and found["messages"] == volume * 3 * 5


@pytest.mark.parametrize("flags", [
    "--gpt 2,8,2,12 --ranks 4 --stage 3", "--gpt 2,8,2,12 --ranks 4 --stage 3 --shard-size 2",
    "--model mlp --ranks 6 --stage 1 --shard-size 3", "--model mlp --ranks 4 --stage 2 --shard-size 1"])
def test_closed_form_of_tied_units_and_replicas(plan, flags):
    found, _ = plan(f"traffic {flags}")
    assert found["sent_bytes"] == found["formulas"]["a step"]["bytes"]


# -- units, timeline, offload ------------------------------------------------------------------------------------------


def test_units(plan):
    found, out = plan("units --model 13b --ranks 64")
    row = next(row for row in found["rows"] if row["label"] == "a stage")
    assert row["peak_elements"] == 12_746_752_000 // 64 + 314_572_800
    assert (row["collectives"], row["units"]) == (123, 41)
    assert "\na segment " in out and "\n1/2 of a segment " in out and "stage" not in out  # a stage is ZeRO's
    assert row["peak_bytes"] == 2 * row["peak_elements"]
    plan("units --params 128e9 --ranks 1000 --dtype float32")
    plan("units --gpt 24,1024,16,50257 --ranks 64 --shard-size 8")


@pytest.mark.parametrize("flags, finish", [("--no-overlap", 40.5), ("--no-backward-prefetch", 36.0), ("", 27.0)])
def test_timeline(plan, flags, finish):
    found, out = plan(f"{LECTURE} {flags} --limit 2")
    assert (found["finish"], found["compute"], found["peak_gathered"]) == (finish, 24, 2)
    assert {"action", "stream", "issue", "start", "end"} == set(found["events"][0])
    assert all(row in out for row in found["gantt"]) and f"finish {finish:g} s" in out
    assert "counted from the issue of a gather: 2\n" in out
    assert plan(f"{LECTURE} {flags}")[0]["events"] == found["events"]  # FSDP limits, so a plan does unless told
    unlimited, out = plan(f"{LECTURE} {flags} --limit 0")
    assert unlimited["finish"] == finish and unlimited["peak_gathered"] == 7  # 4 forward, 3 backward
    assert "counted from the issue of a gather: 7 of 4 units, so some are there twice" in " ".join(out.split())


def test_a_timeline_with_recompute(plan):
    """Two of four segments compute a forward more."""
    plain, again = (plan(f"timeline --units 4 --no-overlap{flags}")[0] for flags in ("", " --recompute"))
    assert again["compute"] == plain["compute"] + 2 * 2 and again["finish"] == plain["finish"] + 2 * 2
    found, out = plan("timeline --units 6 --recompute --recompute-interval 2 --limit 0")
    assert [event["action"] for event in found["events"] if event["action"].startswith("Recompute")] == [
        f"Recompute({segment}, mb=0{onward})"
        for segment, onward in ((3, ", onward=True"), (4, ""), (1, ", onward=True"), (2, ""))]
    assert "C3CC" in out and "C computed again" in out and "recompute of 2 segments at a time" in out


def test_a_timeline_of_whoever_computes_is_synchronous(plan):
    """No gather of forward is hidden then: nobody issues it before there is time."""
    assert plan(f"{LECTURE} --synchronous")[0]["finish"] == 31.5
    assert plan(f"{LECTURE} --synchronous --forward-prefetch 1")[0]["finish"] == 27.0


def test_timeline_of_a_model(plan):
    found, out = plan("timeline --model 13b --ranks 64 --limit 2")
    slow, _ = plan("timeline --model 13b --ranks 64 --limit 2 --no-backward-prefetch")
    assert round(found["compute"], 2) == 2.53 and 1.39 < slow["finish"] / found["finish"] < 1.42
    compute = "".join(row[9:-1] for row in found["gantt"] if row.startswith("compute |"))
    labels = set(re.findall(r"[FB]\d+", compute))
    assert {f"{letter}{i}" for letter in "FB" for i in range(41)} - labels <= {"F0", "B0"}  # the embedding is brief
    assert len(found["gantt"]) < 48


def test_a_charts_axis(plan):
    """A number stands where its second begins, also beyond a fold."""
    found, _ = plan("timeline --units 20")
    assert found["gantt"][0].startswith("compute |") and found["gantt"][2].startswith("seconds |0 ")
    folds = [row for row in found["gantt"] if row.startswith("seconds |")]
    whole = "".join(row[9:].ljust(88) for row in folds)
    ticks = [(match.start(), float(match[0])) for match in re.finditer(r"[\d.]+", whole)]
    columns = len("".join(row[9:-1] for row in found["gantt"] if row.startswith("compute |")))
    assert len(folds) > 1 and len(ticks) > 10
    assert all(abs(column - second * columns / found["finish"]) <= 1 for column, second in ticks)
    starts = [event["start"] for event in found["events"] if event["action"] == "Backward(19, mb=0)"]
    row = "".join(row[9:-1] for row in found["gantt"] if row.startswith("compute |"))
    assert abs(row.index("B19") - starts[0] * columns / found["finish"]) <= 1


def test_a_very_long_chart_shows_its_ends(plan):
    found, out = plan("timeline --units 400")
    assert "rows; --plot draws them, --json lists every action" in out and len(found["gantt"]) < 60
    plan("timeline --forward 1e-9 --backward 1e9")


@pytest.mark.parametrize("ending, first", [("png", b"\x89PNG"), ("svg", b"<?xml")])
def test_timeline_as_a_picture(plan, tmp_path, monkeypatch, ending, first):
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    found, out = plan(f"{LECTURE} --plot step.{ending}")
    assert (tmp_path / f"step.{ending}").read_bytes().startswith(first) and f"drawn in {found['plot']}" in out


def test_timeline_of_many_units_fits(plan):
    plan("timeline --units 12")
    plan("timeline --units 1 --forward 0 --backward 0 --all-gather 0 --reduce-scatter 0")


def test_offload_partitions(plan):
    found, out = plan("offload --partitions")
    rows = found["partitions"]
    assert len(rows) == 128 and set(rows[0]) == {"traffic", "device_bytes", "host"}
    few = [(row["traffic"], row["device_bytes"]) for row in rows if row["traffic"] <= 4]
    assert sorted(few) == [(0, 16), (4, 2), (4, 4), (4, 14)] and sum(row["traffic"] == 6 for row in rows) == 6
    assert set(found) == {"params", "partitions", "optimum", "infinity"}
    assert "unique optimum" in out and "ZeRO-Infinity's" in out
    large, _ = plan("offload --partitions --params 13e9")
    assert min(row["traffic"] for row in large["partitions"][1:]) == 4 * 13 * 10**9


def test_offload_in_all(plan):
    found, out = plan("offload")
    assert [f"{row['bandwidth'] / 1e9:.0f} {100 * row['efficiency']:.1f}" for row in found["bandwidth"]] == \
        ["70 50.6", "308 90.0", "1230 90.0", "1500 91.6", "2 58.4"]
    assert {row["ranks"]: row["cpu"] for row in found["loading"]} == {1: 3e9, 4: 12e9, 8: 24e9, 16: 48e9, 64: 70e9}
    assert [row["bound"] for row in found["largest"]] == [1.75e9, 14e9, 75e9, 1.4e12]
    published = {"CPU-Adam": 2.57, "PyTorch's Adam on the CPU": 14.76, "Adam on a GPU": 1.0}
    assert found["published_update_seconds"] == published
    assert found["published_delayed_gain"] == [1.12, 1.59]
    assert all(words in " ".join(out.split()) for words in ("308 GB/s", "91.6 %", "70B to 100B", "1.12 to 1.59"))


# -- what flags say ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype, size, states", [("float16", 2, 12), ("bfloat16", 2, 12), ("float32", 4, 8)])
def test_a_plan_is_of_its_dtype(plan, dtype, size, states):
    memory, out = plan(f"memory --model mlp --ranks 4 --stage 1 --dtype {dtype}")
    assert memory["at_rest"] == size * 32_656 + states * 32_656 // 4 and f"stage 1 in {dtype}" in out
    assert plan(f"traffic --model mlp --ranks 4 --dtype {dtype}")[0]["sent_bytes"] == size * 2 * 3 * 32_656 // 4


def test_a_step_of_offload_is_the_sum_of_its_parts(plan):
    rows, _ = plan("offload --step --params 13e9")
    for row in rows["step"]:
        gpu, cpu = row["forward"] + max(row["backward"], row["down"]), max(row["update"], row["up"])
        assert (row["seconds"], row["delayed_seconds"]) == (gpu + cpu, max(gpu, cpu))
        assert row["gain"] == row["seconds"] / row["delayed_seconds"]


def test_gradients_sent_and_summed_in_other_dtypes(plan):
    """Counted by the same walk as a run's; psi = 32,656 on 4 ranks, nothing padded."""
    memory, out = plan("memory --model mlp --ranks 4 --stage 3 --sum-dtype float32")
    assert memory["after_backward"] == memory["formula"] == 18 * 32_656 // 4 and "18 psi/N" in out
    assert "float16, gradients sent as float16 and summed in float32" in " ".join(out.split())
    for more, each, words in (("--sum-dtype float32", 2 + 2, "straight to the ranks that sum"),
                              ("--reduce-dtype float32", 4 + 2, "4+2 psi (F-1)/F + 4+4 psi/F (R-1)/R")):
        traffic, out = plan(f"traffic --model mlp --ranks 4 {more}")
        assert traffic["sent_bytes"] == traffic["formulas"]["a step"]["bytes"] == each * 32_656 * 3 // 4
        assert words in " ".join(out.split())
    asked = "fit --model mlp --ranks 4 --device-memory 1GB --shard-size 4"
    (half, _), (wide, out) = plan(asked), plan(f"{asked} --reduce-dtype float32")
    more = {row["stage"]: wide_row["peak"]["device"] - row["peak"]["device"]
            for row, wide_row in zip(half["rows"], wide["rows"], strict=True) if row["offload"] == "none"}
    assert more["0"] == 2 * 32_656 and more["3"] <= 2 * 32_656 // 4
    assert "float16, gradients sent as float32 and summed in float32" in " ".join(out.split())
