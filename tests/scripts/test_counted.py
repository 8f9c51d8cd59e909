"""What 01 and 04 claim of runs: it agrees with what must come out on 4 ranks, and each number can make a claim fail."""

from __future__ import annotations

import copy
import json

import pytest

from tests.scripts.written import SCRIPTS

PSI = 32_656
PLACE = {"psi": PSI, "weights_sha256": "a", "grad_fp32": [0] * 4, "peak": [7] * 4, "planned_peak": [7] * 4,
         "after_backward": [2 * PSI] * 4, "at_rest": [2 * PSI] * 4, "moved": [PSI] * 4}
GPT = {"layers": 4, "d_model": 64, "context": 32, "batch_size": 2}
RUNS = {
    "ranks": 4,
    "places": {"replicated": {**PLACE, "after_backward": [16 * PSI] * 4, "grad_fp32": [4 * 9312] * 4, "moved": [0] * 4},
               "optimum": PLACE,
               "infinity": {**PLACE, "at_rest": [0] * 4, "moved": [PSI * 6 // 4] * 4}},
    "kept_inputs": [{**GPT, "interval": ci, "peak": 32_768 // ci, "moved": 65_536 // ci} for ci in (1, 2, 4)],
    "tiles": [{"tiles": t, "hidden": 96, "param": 2 * (9216 // t + 96), "grad": 2 * (9216 // t + 96)}
              for t in (1, 2, 4)],
    "buckets": [{"psi": psi, "bucket": 8192, "workspace": 12_288} for psi in (PSI, 120_592)],
    "params": {**GPT, "operations": 6 * 50_000 * 64, "moved": 6 * 50_000 // 4},
    "loading": {"ratio": 3.5, "planned_ratio": 4.0, "seconds": {"3": 0.2}, "planned_seconds": {"3": 0.16}},
}
DEMOS = {"01_memory": (1, 4), "04_offload": (1, 3, 4, 5)}


def told(load, capsys, tmp_path, runs, name, demo):
    """(status, claims) of one demo, as data."""
    (tmp_path / "runs.json").write_text(json.dumps(runs))
    out = tmp_path / "out.json"
    status = load(name).main(["--demo", str(demo), "--runs", str(tmp_path / "runs.json"), "--json", str(out)])
    assert capsys.readouterr().out
    return status, json.loads(out.read_text())["demos"][0]["claims"]


@pytest.mark.parametrize("name, demo", [(name, demo) for name, demos in DEMOS.items() for demo in demos])
def test_what_must_come_out(load, capsys, tmp_path, name, demo):
    status, claims = told(load, capsys, tmp_path, RUNS, name, demo)
    assert status == 0 and any(claim["kind"] == "counted" or claim["kind"] == "measured" for claim in claims)


@pytest.mark.parametrize("name, demo, path, value, text", [
    ("01_memory", 1, "places replicated after_backward 2", 16 * PSI - 2, "The 5-layer MLP under data parallelism, ri"),
    ("01_memory", 1, "places replicated grad_fp32 1", 4 * 9313, "The float32 gradient of its largest unit"),
    ("01_memory", 4, "kept_inputs 1 peak", 16_385, "Recompute keeps 2 bsz seq hd nl / ci bytes"),
    ("01_memory", 4, "tiles 2 param", 18_624, "In T tiles a Linear takes 1/T"),
    ("01_memory", 4, "buckets 1 workspace", 12_289, "Workspace of what reduces a bucket"),
    ("04_offload", 1, "places optimum moved 0", PSI + 4, "The optimum, run at stage 2: bytes that all ranks move"),
    ("04_offload", 1, "places optimum at_rest 3", 2 * PSI + 1, "It leaves on each rank's device"),
    ("04_offload", 1, "places infinity moved 3", PSI, "ZeRO-Infinity's choice, run at stage 3"),
    ("04_offload", 1, "places infinity at_rest 0", 1, "It leaves on the device"),
    ("04_offload", 1, "places infinity peak 0", 8, "Most bytes in the host's memory"),
    ("04_offload", 1, "places optimum weights_sha256", "b", "Weights are those of the run without offload"),
    ("04_offload", 3, "params moved", 7 * 50_000 // 4, "AIT of parameters and gradients, a GPT"),
    ("04_offload", 3, "kept_inputs 0 moved", 32_768, "Activation checkpoints are stored and loaded once"),
    ("04_offload", 4, "loading planned_ratio", 3.9, "On 4 ranks the busiest link carries"),
    ("04_offload", 4, "loading ratio", 1.9, "On 4 ranks with limited links"),
    ("04_offload", 4, "loading seconds 3", 0.15, "and with each rank's link no faster"),
    ("04_offload", 5, "places optimum at_rest 1", 3 * PSI, "Bytes of a device by which the first two bounds"),
])
def test_a_run_that_counts_otherwise(load, capsys, tmp_path, name, demo, path, value, text):
    """One claim fails, and no other."""
    runs = copy.deepcopy(RUNS)
    *way, last = path.split()
    inside = runs
    for key in way:
        inside = inside[int(key) if isinstance(inside, list) else key]
    inside[int(last) if isinstance(inside, list) else last] = value
    status, claims = told(load, capsys, tmp_path, runs, name, demo)
    assert status == 1
    assert [claim["text"].startswith(text) for claim in claims if claim["agrees"] is False] == [True]


def test_runs_that_are_not_there(launch, tmp_path):
    end = launch(None, SCRIPTS / "04_offload.py", "--runs", tmp_path / "none.json")
    assert end.status == 2 and "make it with mpirun -n 4 python scripts/small_runs.py FILE" in end.stderr, end.output
    assert "Traceback" not in end.output
