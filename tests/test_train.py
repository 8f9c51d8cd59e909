"""`python -m mpizero.train` as a user meets it: what it prints and writes."""

from __future__ import annotations

import json
from collections import defaultdict
from itertools import pairwise

import numpy as np
import pytest

from mpizero.cli import Parser, add_train_flags, train_config
from mpizero.console import header, proof
from mpizero.engine.config import TrainConfig
from mpizero.engine.job import prepare
from mpizero.output import check_writable, printer, write_json
from tests.report.sample import sample

TRAIN = ("-m", "mpizero.train")
QUICK = ("--steps", "3")


def test_summary_and_log(launch, tmp_path):
    end = launch(4, *TRAIN, "--stage", "3", *QUICK, "--json", tmp_path / "summary.json", "--log", tmp_path / "log",
                 "--check-replicas", "2", "--log-format", "kv")
    assert end.status == 0, end.output
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert (summary["world_size"], summary["stage"], summary["model"]) == (4, "3", "mlp")
    assert summary["psi"] == summary["padded_psi"] == 32_656
    assert len(summary["losses"]) == 3 and summary["replicas_equal"] is True and len(summary["weights_sha256"]) == 64
    assert np.isfinite(summary["eval_loss"])
    for rank in summary["memory"]:
        assert rank["after_backward"] == rank["planned_after_backward"] == 130_624
        assert rank["peak"] == rank["planned_peak"] == 161_632
        assert rank["at_rest"] == rank["planned_at_rest"] and rank["activation_peak"] > 0
        assert rank["by_kind"]["param"]["at_rest"] == 16_328
        assert sum(rank["device_peak_by_kind"].values()) == rank["device_peak"] and rank["device_peak_action"]
    for rank in summary["traffic"]:
        assert rank["sent_bytes_per_step"] == rank["planned_sent_bytes_per_step"] == 146_952
        assert rank["messages_per_step"] == 45 and rank["by_op"]["all_gather"] == 97_968 and "agree" in rank["by_op"]
    assert json.loads((tmp_path / "log" / "summary.json").read_text()) == summary
    about = json.loads((tmp_path / "log" / "run.json").read_text())
    assert about["hosts"] == [about["hosts"][0]] * 4 and about["mesh"] == {"replicate": 1, "shard": 4, "tensor": 1}
    known = {"hidden": 96, "stage": "3", "steps": 3, "lr": 0.01, "warmup": 0, "batch_size": 16, "dtype": "float16",
             "seed": 0, "check_replicas": 2, "device_memory": None}
    assert about["settings"] == summary["settings"] == summary["settings"] | known
    assert about["versions"]["numpy"] == np.__version__ and about["mpi"] in end.stdout
    assert about["command"].startswith("python -m mpizero.train --stage 3 --steps 3 --json /")
    lines = [json.loads(line) for line in (tmp_path / "log" / "steps.jsonl").read_text().splitlines()]
    assert {line["run"] for line in lines} == {about["run"]} == {summary["run"]}
    assert json.loads((tmp_path / "log" / "trace.json").read_text())["run"] == about["run"]
    assert [line["loss"] for line in lines] == summary["losses"] and [line["step"] for line in lines] == [0, 1, 2]
    check_trace(json.loads((tmp_path / "log" / "trace.json").read_text()))
    assert "psi = 32,656" in end.stdout and "4 ranks" in end.stdout
    steps = [line for line in end.stdout.splitlines() if line.startswith("step=")]
    assert len(steps) == 3
    assert all("loss=" in line and "sent_bytes=146952" in line and "skipped=0" in line for line in steps)
    assert "NO" not in end.stdout.split("model states, bytes")[1]


def check_trace(trace):
    """One timed step: bytes as planned after each action, messages that meet, times in order."""
    assert (trace["step"], trace["world_size"], len(trace["ranks"])) == (2, 4, 4)
    assert min(rank["actions"][0]["begin_s"] for rank in trace["ranks"]) == 0
    sent, arrived = defaultdict(list), defaultdict(list)  # number of the collective, from, to -> bytes and time of each
    for rank in trace["ranks"]:
        assert rank["groups"] == {"shard": [0, 1, 2, 3], "replicate": [rank["rank"]], "tensor": [rank["rank"]]}
        assert all(before["end_s"] <= after["begin_s"] for before, after in pairwise(rank["actions"]))
        for action in rank["actions"]:
            assert all(action["live"][kind] == size for kind, size in action["planned_live"].items())
            assert action["peak_bytes"] == action["planned_device_peak_bytes"]
        for number, row in enumerate(rank["collectives"]):
            assert row["begin_s"] <= row["end_s"] and row["bytes_sent"] == sum(send["bytes"] for send in row["sends"])
            for send in row["sends"]:
                sent[number, rank["rank"], send["to"]].append((send["bytes"], send["begin_s"]))
            for arrival in row["arrivals"]:
                arrived[number, arrival["from"], rank["rank"]].append((arrival["bytes"], arrival["end_s"]))
    assert sent.keys() == arrived.keys() and sum(map(len, sent.values())) > 4 * 45
    for way, messages in sent.items():
        assert all(size == other and begin < end
                   for (size, begin), (other, end) in zip(messages, arrived[way], strict=True))


def test_every_number_of_ranks_and_none(launch, tmp_path):
    digests = set()
    for n in (None, 1, 3):
        end = launch(n, *TRAIN, *QUICK, "--stage", "1", "--json", tmp_path / "s.json", env={"OMP_NUM_THREADS": "1"})
        assert end.status == 0, end.output
        summary = json.loads((tmp_path / "s.json").read_text())
        assert (summary["world_size"], summary["padded_psi"]) == ((3, 32_658) if n == 3 else (1, 32_656))
        digests.add(summary["weights_sha256"])
    assert len(digests) == 2  # without mpirun as with one rank


def test_gpt_on_the_users_text(launch, tmp_path):
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "a.txt").write_text("the quick brown fox jumps over the lazy dog. " * 400)
    end = launch(2, *TRAIN, "--model", "gpt", "--layers", "1", "--d-model", "16", "--heads", "2", "--context", "8",
                 "--data", tmp_path / "text", "--stage", "3", "--steps", "2", "--batch-size", "2", "--dtype", "float32",
                 "--json", tmp_path / "s.json")
    assert end.status == 0 and " tokens/s" in end.stdout, end.output
    summary = json.loads((tmp_path / "s.json").read_text())
    assert abs(summary["losses"][0] - np.log(256)) < 0.2
    assert summary["traffic"][0]["sent_bytes_per_step"] == summary["traffic"][1]["planned_sent_bytes_per_step"]


def test_config_file(launch, tmp_path):
    path = tmp_path / "run.toml"
    path.write_text('stage = "3"\nsteps = 7\nbatch-size = 2\nno-sync = true\naccumulation = 2\nlr = 1e-3\n')
    end = launch(None, *TRAIN, "--config", path, "--steps", "2", "--json", tmp_path / "s.json")
    assert end.status == 0, end.output
    summary = json.loads((tmp_path / "s.json").read_text())
    assert (summary["stage"], summary["no_sync"], summary["accumulation"]) == ("3", True, 2)
    assert len(summary["losses"]) == 2  # flags win


def test_json_has_no_nan(launch, tmp_path):
    """Diverged: not a number is null, and the file is whole."""
    end = launch(None, *TRAIN, "--steps", "4", "--lr", "1e9", "--json", tmp_path / "s.json", "--log", tmp_path)
    assert end.status == 1 and end.stderr == ("mpizero: error: the last loss is nan, so training has diverged: lower "
                                              "--lr, lengthen --warmup, or set --clip\n"), end.output
    for text in ((tmp_path / "s.json").read_text(), *(tmp_path / "steps.jsonl").read_text().splitlines()):
        json.loads(text, parse_constant=pytest.fail)
    summary = json.loads((tmp_path / "s.json").read_text())
    assert None in [*summary["losses"], summary["eval_loss"]]


def test_a_second_run_moves_the_first_and_logs_every_third_step(launch, tmp_path):
    ids = []
    for every, told in ((1, [0, 1, 2, 3, 4]), (3, [0, 3, 4])):
        end = launch(None, *TRAIN, "--steps", "5", "--log-every", str(every), "--log", tmp_path)
        assert end.status == 0, end.output
        lines = [json.loads(line) for line in (tmp_path / "steps.jsonl").read_text().splitlines()]
        assert [line["step"] for line in lines] == told
        assert [line.split("  ")[0] for line in end.stdout.splitlines() if line.startswith("step ")] == [
            f"step {step + 1}/5" for step in told]
        assert f"\nreport: python -m mpizero.report {tmp_path}\n" in end.stdout
        ids.append(lines[0]["run"])
    assert end.stdout.startswith(f"results of an older run moved to {tmp_path}/older/{ids[0]}\n")
    assert len((tmp_path / "older" / ids[0] / "steps.jsonl").read_text().splitlines()) == 5
    assert len(json.loads((tmp_path / "summary.json").read_text())["losses"]) == 5


def test_help_is_printed_once_with_an_example(launch):
    end = launch(2, *TRAIN, "--help")
    assert end.status == 0 and end.stdout.count("examples:") == 1
    assert "mpirun -n 4 python -m mpizero.train" in end.stdout


def test_a_switch_that_is_off_in_the_file(tmp_path):
    (tmp_path / "run.toml").write_text("no-sync = false\nkeep-last-unit = true\n")
    parser = Parser()
    add_train_flags(parser)
    config = train_config(parser, ["--config", str(tmp_path / "run.toml")])
    assert (config.no_sync, config.keep_last_unit) == (False, True)


@pytest.mark.parametrize("which, change", [
    ("traffic", {"steps_off_plan": 1}), ("traffic", {"sent_bytes_per_step": 1}), ("memory", {"peak": 1}),
    ("memory", {"after_backward": 1})])
def test_the_tables_at_the_end_say_what_is_off_its_plan(which, change):
    _, summary, _ = sample(ranks=2, units=3)
    assert "NO" not in proof(summary)
    summary[which][1] = summary[which][1] | change
    assert proof(summary).count("NO") == (2 if "after_backward" in change else 1)  # off plan and off formula


def test_an_existing_file_stays_until_it_is_replaced(tmp_path):
    path = tmp_path / "s.json"
    path.write_text("old")
    check_writable("--json", path)
    assert path.read_text() == "old"
    write_json(path, {"loss": float("inf")})
    assert json.loads(path.read_text()) == {"loss": None} and list(tmp_path.iterdir()) == [path]


def test_rank_0_alone_prints(capsys):
    for rank in (0, 1, 3):
        printer(rank)(f"rank {rank}")
    assert capsys.readouterr().out == "rank 0\n"


def test_no_steps_at_all(launch, tmp_path):
    """The list alone, and what rests."""
    end = launch(2, *TRAIN, "--stage", "3", "--steps", "0", "--print-actions", "--json", tmp_path / "log" / "s.json",
                 "--log", tmp_path / "log")
    assert end.status == 0 and "ReduceScatterGrad(4)\n" in end.stdout and "Agree()\n" in end.stdout, end.output
    assert sorted(path.name for path in (tmp_path / "log").iterdir()) == ["run.json", "s.json", "steps.jsonl",
                                                                          "summary.json"]
    memory = json.loads((tmp_path / "log" / "s.json").read_text())["memory"][0]
    assert memory["at_rest"] == memory["planned_at_rest"] == memory["planned_peak"] > 0
    assert memory["after_backward"] == memory["planned_after_backward"] == 0
    assert "NO" not in end.stdout and "sent in a step: no step has run\n" in end.stdout
    [row] = [line.split() for line in end.stdout.splitlines() if line.startswith("0-1 ") and line.split()[-1] == "-"]
    assert row == ["0-1", f"{memory['at_rest']:,}", "-", f"{memory['at_rest']:,}", "yes", "-"]


@pytest.mark.parametrize("config, words", [
    ({"stage": "1", "backward_prefetch": 1}, "--backward-prefetch has no effect, since stage 1 keeps whole parameters"),
    ({"stage": "2", "keep_last_unit": True, "limit_all_gathers": 2}, "--keep-last-unit and --limit-all-gathers have "),
    ({"stage": "3", "no_sync": True}, "--no-sync has no effect with one microbatch a step"),
    ({"freeze": ("layers.[0-3].*",), "recompute": True}, "--recompute has no effect: no segment that trains lies"),
    ({"stage": "1", "recompute": True, "recompute_interval": 3}, ""),
    ({"stage": "3", "backward_prefetch": 1, "no_sync": True, "accumulation": 2}, "")])
def test_flags_that_change_nothing_are_told(config, words, world):
    """Wherever a run starts, once for all of them."""
    told = " ".join(header(prepare(TrainConfig(**config), world)).replace("\n ", "").split())
    assert words in told and told.count("note: ") == bool(words)


@pytest.mark.parametrize("overlap", ["on", "off"])
def test_overlap_is_told_where_it_is_on(overlap, world):
    told = " ".join(header(prepare(TrainConfig(stage="3", overlap=overlap), world)).split())
    assert ("collectives overlap with computation" in told) == (overlap == "on" and world.size > 1)
