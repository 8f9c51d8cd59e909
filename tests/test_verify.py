"""The proof holds; and it says so only because it can also fail."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from mpizero import proof, rows, verify
from mpizero.comm import Collective, begin_reduce_scatter
from mpizero.comm.channel import Channel
from mpizero.engine.config import TrainConfig
from mpizero.engine.unit import Unit
from mpizero.errors import MpizeroError
from mpizero.memory.regions import make_lanes
from mpizero.report.compare import compare, verdicts
from mpizero.report.log import read_log
from mpizero.rows import OFFLOADS
from mpizero.schedule import STRATEGIES, Schedule

# the GPT on one file, which is read for each of 30 runs, not on all of the standard library
VERIFY = """
import argparse
from dataclasses import replace
from mpizero import verify
from mpizero.comm import run_main
verify.MODELS["gpt"] = replace(verify.MODELS["gpt"], data=argparse.__file__)
run_main(verify.main)
"""
pytestmark = pytest.mark.usefixtures("few_held_out")


def test_the_whole_proof(world):
    if world.size != 4:
        pytest.skip(f"needs 4 ranks, there are {world.size}")
    config = verify.MODELS["mlp"]
    proof = verify.prove(replace(config, steps=3), world)  # .ci/run proves all 50
    assert proof["holds"] and proof["rows"][-1]["row"] == "fault"
    check_fault(verify._fault_row(replace(config, steps=12), world))
    if world.rank == 0:  # it alone is in every group
        check_groups(proof["rows"])


def check_groups(rows):
    proven = {(row["ranks"], row["stage"]) for row in rows if row["row"] == "stage"}
    assert proven == {(ranks, stage) for ranks in (1, 2, 3, 4)
                      for stage in ("0", "1", "1-allreduce", "2", "3", "3-broadcast")}
    (hybrid,) = [row for row in rows if row["row"] == "hybrid"
                 and (row["ranks"], row["stage"], row["shard_size"]) == (4, "3", 2)]
    assert (hybrid["sent"], hybrid["after_backward"]) == (130_624, 8 * 32_656)
    again = {(row["ranks"], row["interval"]): row for row in rows if row["row"] == "recompute"}
    assert set(again) == {(ranks, interval) for ranks in (1, 2, 3, 4) for interval in (1, 2)}
    flow = 16 * 96 * 2  # float16 outputs of a hidden layer, of which three are inputs of those in the middle
    assert [again[4, interval]["kept_inputs"] for interval in (1, 2)] == [3 * flow, 2 * flow]
    (stage3,) = [row for row in rows if (row["row"], row["ranks"], row["stage"]) == ("stage", 4, "3")]
    # two together: the peak is one backward earlier, with one more whole unit and one reduced shard less
    for interval, more in ((1, 0), (2, 2 * 9312 - 2 * 9312 // 4)):
        row = again[4, interval]
        assert (row["sent"], row["messages"]) == (stage3["sent"], stage3["messages"])
        assert row["peak"] == stage3["peak"] + more
    pair = [row for row in rows if row.get("tensor_size") == 2]
    assert [(row["row"], row["stage"], row["ranks"], row["shard_size"]) for row in pair] == [
        ("tensor", "0", 4, 1), ("tensor", "3", 4, 2), *[("kept inputs", "3", 4, 2)] * 2,
        ("one process", "0", 4, 1), ("one process", "3", 4, 2)]
    # one of the three is a sum, and alike on both; of the others each has half anyway
    assert [row["kept_inputs"] for row in rows if row["row"] == "kept inputs"] == [3 * flow, 2 * flow, 3 * flow // 2]
    away = {(row["ranks"], row["offload"]): row for row in rows if row["row"] == "offload"}
    assert set(away) == {(ranks, offload) for ranks in (1, 2, 3, 4) for offload in OFFLOADS}
    part = 2 * 32_656 // 4  # bytes of a rank's parameters
    assert [list(away[4, offload]["moved"].values()) for offload in OFFLOADS] == [
        [2 * part, 0], [3 * part, 0], [3 * part, 18 * part], [2 * 3 * flow, 0]]
    assert [away[4, offload]["nvme_peak"] for offload in OFFLOADS] == [0, 0, 8 * part, 0]


def check_fault(fault):
    assert fault["checksums_detect_it"] and fault["validator_refuses"]
    assert fault["loss"] > 1.1 * fault["right_loss"] and fault["largest_difference"] > 0.03


TWO_RANKS = pytest.mark.parametrize("group", [2], ids=["n=2"], indirect=True)


@pytest.fixture
def quick(group):
    return replace(verify.MODELS["mlp"], steps=3, hidden=8), group


def broken(proof):
    """The claims that are false in some row."""
    return {claim for row in proof["rows"] for claim, holds in row.items() if holds is False}


@TWO_RANKS
def test_a_stage_that_forgets_to_reduce_does_not_pass(quick, monkeypatch, group):
    def forgetful(ring, flat, out, *, unit, **more):
        if unit == "layers.2":
            out.fill(0)
            return Collective(Channel(ring, "reduce_scatter", unit), iter(()))
        return begin_reduce_scatter(ring, flat, out, unit=unit, **more)

    monkeypatch.setattr("mpizero.engine.collectives.begin_reduce_scatter", forgetful)
    proof = verify.prove(*quick)
    assert not proof["holds"]
    if group.rank == 0:
        assert broken(proof) >= {"weights_equal_dp", "losses_equal_dp", "traffic_equals_plan"}


@TWO_RANKS
def test_a_buffer_that_is_not_freed_does_not_pass(quick, monkeypatch, group):
    kept = []
    reshard = Unit.reshard

    def leaky(unit):
        kept.append(unit.whole_param)
        reshard(unit)

    monkeypatch.setattr(Unit, "reshard", leaky)
    proof = verify.prove(*quick)
    assert not proof["holds"]
    if group.rank == 0:
        assert "bytes_equal_plan" in broken(proof) and "weights_equal_dp" not in broken(proof)


@pytest.mark.parametrize("loss, weight", [(1.001, 1.0), (1.0, 1.001), (np.nan, 1.0), (1.0, np.nan)])
def test_another_loss_or_state_is_not_equal_to_rounding(loss, weight):
    """Whatever the type of the numbers: a NumPy bool would count for nothing, as it is no `bool`."""
    row = rows.distance(([np.float64(loss)], [np.array([weight])]), ([np.float64(1.0)], [np.array([1.0])]))
    assert row["equal_to_rounding"] is False and not verify._all_true(row)


@TWO_RANKS
def test_an_input_that_is_not_kept_where_it_says_does_not_pass(quick, monkeypatch, group):
    monkeypatch.setattr("mpizero.engine.computation.KEPT_INPUT", "activation")
    proof = verify.prove(*quick)
    assert not proof["holds"]
    if group.rank == 0:
        assert broken(proof) == {"kept_inputs_equal_plan", "keeps_its_share"}


@TWO_RANKS
def test_a_move_that_nobody_counts_and_a_tier_that_holds_more_do_not_pass(quick, monkeypatch, group):
    monkeypatch.setattr("mpizero.memory.links.Link.note", lambda link, *move: None)
    monkeypatch.setattr("mpizero.engine.storage.make_lanes",
                        lambda sizes, ledger: make_lanes({**sizes, "more": 4096}, ledger))
    proof = verify.prove(*quick)
    assert not proof["holds"]
    if group.rank == 0:  # each step counts its moves too
        assert broken(proof) == {"moves_equal_plan", "tiers_equal_plan", "traffic_equals_plan"}


@pytest.mark.parametrize("group", [4], ids=["n=4"], indirect=True)
def test_tensor_parallel_ranks_alone(group):
    """At every number of ranks that they divide, every stage, and every mesh."""
    proof = verify.prove(replace(verify.MODELS["mlp"], dtype="float32", steps=1, hidden=8, tensor_size=2), group)
    assert proof["holds"]
    if group.rank == 0:
        rows = proof["rows"]
        meshes, again = ([(row["ranks"], row["stage"], row["shard_size"]) for row in rows if row["row"] == kind]
                         for kind in ("tensor", "one process"))
        sharded = [*STRATEGIES][1:]
        assert meshes == [(2, stage, 1) for stage in STRATEGIES] + [
            (4, "0", 1), *((4, stage, 2) for stage in sharded), *((4, stage, 1) for stage in "123")]
        assert again == meshes and all(row["weights_equal_dp"] for row in rows if row["row"] == "tensor")


@TWO_RANKS
@pytest.mark.parametrize("fault", ["no sum", "no part"])
def test_tensor_parallel_ranks_that_err_do_not_pass(quick, monkeypatch, group, fault):
    if fault == "no sum":  # alike at every stage
        monkeypatch.setattr("mpizero.engine.sharing.begin_all_reduce",
                            lambda ring, flat, **more: Collective(Channel(ring, "all_reduce", ""), iter(())))
        expected = {"traffic_equals_plan", "equal_to_rounding"}
    else:
        monkeypatch.setattr(verify, "KEEPS", [*verify.KEEPS[:2], {}])
        expected = {"keeps_its_share"}
    proof = verify.prove(replace(quick[0], tensor_size=2), group)
    assert not proof["holds"]
    if group.rank == 0:
        assert broken(proof) >= expected


@pytest.mark.parametrize("words, sentence", [
    (["--tensor-size", "3"], "--tensor-size 3 "), (["--tensor-size", "1"], "--tensor-size 1 cannot be tried on"),
    (["--tensor-size", "2", "--log", "x"], "--tensor-size")])
def test_tensor_parallel_ranks_that_cannot_be(world, words, sentence):
    with pytest.raises(MpizeroError, match=sentence):
        verify.main(words)


@TWO_RANKS
def test_a_fault_that_is_not_injected_is_not_found(quick, monkeypatch, group):
    def replaced(thing, **changes):
        return thing if isinstance(changes.get("lists"), Schedule) else replace(thing, **changes)

    monkeypatch.setattr(verify, "replace", replaced)
    proof = verify.prove(*quick)
    assert not proof["holds"]
    if group.rank == 0:
        assert "checksums_detect_it" in broken(proof)


@pytest.mark.parametrize("holds", [True, False])
def test_the_verdict_is_the_exit_status(monkeypatch, world, holds):
    monkeypatch.setattr(verify, "prove", lambda config, world, logs: {"holds": holds})
    assert verify.main([]) == (0 if holds else 1)


@pytest.mark.parametrize("other", ["weights", "moments", "losses"])
def test_whatever_differs_from_data_parallelism_is_said(other):
    dp = {"weights": "a", "moments": "b", "losses": [1.0]}
    row = dp | {other: "c"}
    rows.compare([row], dp)
    assert {what: row[f"{what}_equal_dp"] for what in dp} == {what: what != other for what in dp}


def test_a_row_tells_of_the_rank_that_has_most(monkeypatch):
    """Ranks differ where units have owners; each is held against its own formula."""
    def rank(count):
        keys = ("after_backward", "peak", "at_rest", "sent_bytes_per_step")
        return {**dict.fromkeys(keys, count), **{f"planned_{key}": count for key in keys}, "messages_per_step": count,
                "by_op": {}, "planned_by_op": {}, "steps_off_plan": 0, "formula_after_backward": count,
                "formula_sent_bytes_per_step": count}

    summary = {"memory": [rank(1), rank(2)], "traffic": [rank(3), rank(4)], "replicas_equal": True, "losses": [],
               "weights_sha256": "", "exp_avg_sha256": "", "exp_avg_sq_sha256": ""}
    job = SimpleNamespace(geometry=SimpleNamespace(shards=2, tensors=1), world=SimpleNamespace(size=2),
                          settings=SimpleNamespace(step=SimpleNamespace(stage="3-broadcast")))
    monkeypatch.setattr(rows, "run", lambda *_: (job, summary))
    row = rows.stage_row("stage", TrainConfig(stage="3-broadcast"), SimpleNamespace(size=2), lambda what: None)
    assert [row[key] for key in ("after_backward", "peak", "sent", "messages", "formula_sent")] == [2, 2, 4, 4, 4]
    assert row["bytes_equal_formula"] and row["traffic_equals_formula"]
    summary["traffic"][0]["formula_sent_bytes_per_step"] = 4
    row = rows.stage_row("stage", TrainConfig(stage="3-broadcast"), SimpleNamespace(size=2), lambda what: None)
    assert not row["traffic_equals_formula"]


def test_tables_fit_a_terminal():
    """Rows that differ in their stage alone are one; what is not equal is named."""
    row = {"row": "stage", "ranks": 4, "shard_size": 4, "tensor_size": 1, "weights_equal_dp": True,
           "moments_equal_dp": True, "losses_equal_dp": True, "after_backward": 228_592, "peak": 230_920,
           "sent": 97_968, "messages": 30, "bytes_equal_plan": True, "bytes_equal_formula": True,
           "traffic_equals_plan": True,
           "traffic_equals_formula": True, "replicas_equal": True}
    rows = [row | {"stage": stage} for stage in ("0", "1", "1-allreduce", "2", "3", "3-broadcast")]
    one = proof.show_stages(rows).split("\n")
    assert len(one) == 5 and one[-1].split()[:2] == ["all", "yes"] and max(map(len, one)) <= proof.COLUMNS
    del rows[5]
    rows[2] |= {"moments_equal_dp": False, "bytes_equal_formula": False}
    rows[3] |= {"peak": 5}
    shown = proof.show_stages(rows).split("\n")
    assert [line.split()[0] for line in shown[4:]] == ["0,", "1-allreduce", "2"] and max(map(len, shown)) <= 100
    assert shown[5].split()[1:6] == ["NO:", "moments", "228,592", "NO", "230,920"]
    hybrid = proof.show_hybrids([row | {"stage": "2", "shard_size": 2}, {**rows[0], "weights_equal_dp": False}])
    assert "2 x 2" in hybrid and "NO: weights" in hybrid and max(map(len, hybrid.split("\n"))) <= 100
    large = dict.fromkeys(("device_peak", "host_peak", "nvme_peak"), 999_999)
    moved = {"device-host": 999_999, "host-nvme": 999_999}
    large |= {"stage": "3", "moved": moved, "tiers_equal_plan": True}
    away = proof.show_offload([row | large | {"offload": offload, "moves_equal_plan": offload != OFFLOADS[1]}
                               for offload in OFFLOADS])
    assert [" ".join(line.split()[:4]) for line in away.split("\n")[4:]] == [
        "3 optimizer: cpu yes", "3 all states: cpu", "3 all states: nvme", "3 kept inputs: cpu"]
    assert [line.split()[-2] for line in away.split("\n")[4:]] == ["yes", "NO", "yes", "yes"]
    assert max(map(len, away.split("\n"))) <= 100
    rows[1] |= {"moments_equal_dp": False, "losses_equal_dp": False}
    rows[4] |= dict.fromkeys(proof.DP.values(), False)
    shown = proof.show_stages(rows).split("\n")
    assert "NO: moments, losses" in shown[5] and shown[8].split()[:2] == ["3", "NO"] and max(map(len, shown)) <= 100
    assert [part.strip() for part in re.split("  +", shown[1])] == [
        "", "same bits", "after", "= plan,", "sent in", "= plan,", "replicas"]


def test_the_fault_is_told_in_lines_that_fit():
    told = proof.show_fault({"ranks": 4, "validator_says": "word " * 40, "loss": 1.0, "right_loss": 0.5, "eval_loss": 1,
                             "right_eval_loss": 0.5, "largest_difference": 0.25, "checksums_detect_it": True,
                             "mismatches": ["param of unit x differs " + "(rank 0: 12345678), " * 9]})
    assert max(map(len, told.split("\n"))) <= 100 and "largest difference between replicas 0.2500" in told.replace(
        "\n    ", " ")


@TWO_RANKS
def test_a_terminal_sees_how_far_it_is(quick, monkeypatch, capsys, group):
    """Each run has its number; the last one has that of all."""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    assert verify.prove(*quick)["holds"]
    told = re.findall(r"run (\d+) of (\d+)", capsys.readouterr().err)
    numbers = [int(number) for number, _ in told]
    assert numbers == ([] if group.rank else list(range(1, int(told[-1][1]) + 1)))


def test_elsewhere_it_says_so_in_lines_now_and_then(monkeypatch, capsys):
    times = iter([0.0, 3.0, 9.99, 10.0, 12.0, 20.0])
    monkeypatch.setattr("time.monotonic", lambda: next(times))
    step = proof.progress(5, 0)
    for what in ("a", "b", "", "c", "d", "e"):
        step(what)
    assert capsys.readouterr().err == "run 1 of 5: a\nrun 3 of 5: c\nrun 5 of 5: e\n"
    monkeypatch.undo()
    proof.progress(5, 1)("a")
    assert capsys.readouterr().err == ""


def test_one_rank_proves_little_and_says_so(launch):
    end = launch(None, "-m", "mpizero.verify")
    assert end.status == 0 and "fault:" not in end.stdout, end.output
    assert end.stdout.endswith("every claim holds: 12 of 12 rows, on 1 rank, where nothing is sharded or sent and the "
                               "fault is not\ntried: start several with mpirun -n 4 python -m mpizero.verify\n")


def test_logs_of_all_stages_become_one_picture(launch, tmp_path):
    """The command for a GPT. Logs are of the largest number of ranks; the command that draws them is told, and the
    verdict stays the last line."""
    end = launch(2, "-c", VERIFY, "--model", "gpt", "--log", tmp_path / "logs", "--json", tmp_path / "proof.json",
                 timeout=240)
    assert end.status == 0 and json.loads((tmp_path / "proof.json").read_text())["holds"], end.output
    *_, told, empty, last = end.stdout.splitlines()
    assert told == f"  python -m mpizero.report {tmp_path}/logs" and not empty and last.startswith("every claim holds")
    assert max(map(len, end.stdout.splitlines())) <= max(100, len(str(tmp_path)) + 80)
    assert end.stderr.startswith("run 1 of 43: 1 rank, stage 0\n")  # below mpirun nothing is a terminal
    logs = [read_log(folder) for folder in sorted((tmp_path / "logs").iterdir())]
    assert [log.run["stage"] for log in logs] == list(STRATEGIES)
    assert all(log.run["world_size"] == 2 and log.summary["run"] == log.run["run"] and log.trace and len(log.steps) == 6
               and log.run["command"].startswith("python -m mpizero.verify --model gpt --log") for log in logs)
    assert not list(tmp_path.glob("logs/*/older"))
    said = verdicts(compare(logs))
    assert said[0].startswith("stage 1, stage 1-allreduce, stage 2, stage 3 and stage 3-broadcast: all 6 losses are "
                              "those of stage 0")
