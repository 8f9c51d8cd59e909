"""Scripts say that their claims come out only because they can also fail: a wrong number is reported."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from mpizero.papers import activations, compare, fragmentation, intensity, offload, partition, published, states
from mpizero.planner import stored
from tests.scripts.written import CALL, SCRIPTS, written
from tests.support.launch import ROOT


@pytest.mark.parametrize("name, demo, module, attribute, value", [
    ("01_memory", 1, stored, "update_block_numel", lambda numel: numel // 2),
    ("01_memory", 1, compare, "megatron", lambda psi, *_: [compare.Estimate("", 18 * psi, "")]),
    ("01_memory", 2, states, "form",
     lambda stage, *_: {"0": (16, 0), "1": (4, 12), "2": (4, 12), "3": (0, 16)}[stage]),
    ("01_memory", 2, states, "TABLE_1", {**states.TABLE_1, 7_500_000_000: {"3": (120, 30, 7.5, 1.88, 0.48, 0.12)}}),
    ("01_memory", 3, states, "TABLE_2_DEVICE", 33 * 10**9),
    ("01_memory", 3, states, "TABLE_2_MEASURED", {**states.TABLE_2_MEASURED, 1: 6.9}),
    ("01_memory", 4, activations, "partitioned", lambda nbytes, ranks: nbytes / (ranks - 1)),
    ("01_memory", 4, states, "working_memory", lambda hidden: 4 * hidden * hidden),
    ("01_memory", 5, fragmentation, "CAPACITY", 4800),
    ("01_memory", 6, "small_updates", "half", lambda x: x),
    ("01_memory", 6, "small_updates", "single", lambda x: sys.modules["small_updates"].half(x)),
    ("04_offload", 1, partition, "EDGES", partition.EDGES[:-1]),
    ("04_offload", 2, offload, "PUBLISHED_DELAYED", (1.3, 1.59)),
    ("04_offload", 2, offload.OffloadStep, "delayed_seconds", property(lambda step: step.gpu)),
    ("04_offload", 3, intensity, "ait_params", lambda seq, batch: 2 * seq * batch),
    ("04_offload", 3, intensity, "ait_optimizer", lambda seq, batch: seq * batch / 8),
    ("04_offload", 4, intensity, "READ_TOGETHER", {"cpu": 2.9e9, "nvme": 1.6e9}),
    ("04_offload", 4, intensity, "GPU_LINK", 60e9),
    ("04_offload", 5, intensity, "ACTIVATIONS", 31e9),
    ("06_published", 1, published, "PEAK", {"V100": 112e12, "A100": 312e12}),
    ("06_published", 2, published, "FILLED", {**published.FILLED, "the same on A100": (10**12, 640, "A100")}),
    ("06_published", 3, published, "BACKWARD_SHARE", 75.0),
], ids=lambda value: value if isinstance(value, str | int) else "")
def test_a_wrong_number(load, monkeypatch, capsys, name, demo, module, attribute, value):
    """Of the papers' package, of the planner or of a script. Without it all claims agree: see test_scripts.py."""
    script = load(name)
    monkeypatch.setattr(sys.modules[module] if isinstance(module, str) else module, attribute, value)
    assert script.main(["--demo", str(demo)]) == 1
    out = capsys.readouterr().out
    told, _, summed = out.rpartition("\n\n")  # what does not agree is said again at the end
    agree, fail = told.count("\nagrees "), told.count("\nDISAGREES ")
    assert summed.count("DISAGREES ") == fail > 0
    assert out.endswith(f"\n{agree + fail} claims, {agree} agree\n")


# Changes of a script on ranks: code at its end, before it runs.
LEAK = """
from mpizero.engine.unit import Unit
kept, reshard = [], Unit.reshard
Unit.reshard = lambda unit: (kept.append(unit.whole_param), reshard(unit))"""
DOUBLE = """
import mpizero.engine.collectives as unit
begin = unit.begin_reduce_scatter
def twice(group, flat, out, **more):
    begin(group, flat.copy(), out.copy(), **more).finish()
    return begin(group, flat, out, **more)
unit.begin_reduce_scatter = twice"""
KEPT = """
import meshes
from dataclasses import replace
prepare = meshes.prepare
meshes.prepare = lambda config, world: prepare(replace(config, no_master_weights=False), world)"""
LONGER = """
from mpizero.papers import sharding
sharding.full_sharding = lambda size, world: 3 * size * world // (world + 1)"""
PADDING = """
from mpizero.layout import flatten as right_flatten
flatten = lambda name, params, ranks: right_flatten(name, params, 2 * ranks)"""
CHART = """
from overlap import CHARTS
CHARTS["no overlap"] = ({}, False, 40.5, 11, tuple(row[::-1] for row in CHARTS["no overlap"][4]))"""
SLOWER = """
import overlap as charts
from dataclasses import replace
charts.LECTURE = replace(charts.LECTURE, inter_bandwidth=40e9)"""
OTHER_ORDER = """
import meshes
meshes.chunk = lambda numel, index, size: slice(0, numel // size)"""
WRONG = {  # in each script, a number: old, new, and the claim that must not come out
    "01_memory": ('("120", "31.4", "16.6", "1.88")', '("120", "31.4", "16.7", "1.88")', "7.5B on 64 ranks, P_os+g"),
    "02_zero_stages": ('"2": (2, 14)', '"2": (2, 13)',
                       "ZeRO-2, right after backward, each rank: 2 psi + 13 psi/N"),
    "03_fsdp": ('exercise, "75.29"', 'exercise, "75.39"',
                "Full sharding: a rank whose ring leaves the host there sends"),
    "04_offload": ('"p16",\n', '"g16",\n', "Data that the optimum leaves on the device"),
    "06_published": ('source, "30",', 'source, "31",',
                     "15 PFLOP/s on 400 V100 are, of their peak (printed: over 30 %)"),
    "07_master_weights": ('("without", 8)', '("without", 9)', "Without master weights each rank keeps after backward "
                          "2 psi + (2 + K) psi/N: K = 9"),
}
CHANGES = {  # of scripts on ranks, what is changed besides, and the claim that must not come out; none meets another
    "02_zero_stages": [
        (LEAK, "ZeRO-3's peak, each rank"),
        (DOUBLE, "ZeRO-2 sends 2 psi (N-1)/N elements: each rank, over 2 psi bytes"),
        ("AllGatherParam = int",
         "Comparing checksums between ranks finds it, and finds nothing in the right run"),
    ],
    "03_fsdp": [
        (PADDING, "The Linear on 16 ranks: elements of padding"),
        ("ALPHA = 6e-6", "2^30 float32 elements gathered in pieces of 33 million take longer than in one by"),
        (CHART, "4 units, no overlap: the lecture's chart"),
        (SLOWER, "13B: with backward prefetch faster by a factor of"),
        (LONGER, "Full sharding: 3 M (W - 1) / W"),
        (OTHER_ORDER, "2 x 2: one process that adds in the order of the rings gets the ranks' bits"),
    ],
    "07_master_weights": [
        (KEPT, "Without, in float16: of the weights the last update leaves where they were"),
    ],
}
STEPS = (("STEPS, FEW_STEPS = 50, 10", "STEPS, FEW_STEPS = 8, 2"), ("STEPS, RATE = 200", "STEPS, RATE = 20"))
FEW_HELD_OUT = "from mpizero.data import TeacherTask\nTeacherTask.eval_size = 64"
MAIN = '\nif __name__ == "__main__":\n'


def change(name: str, path: Path) -> list[str]:
    """Change the script in all these ways; the claims that must not come out."""
    old, new, claim = WRONG[name]
    text = path.read_text()
    assert text.count(old) == 1 == text.count(MAIN), (name, old)
    changes = CHANGES.get(name, [])
    code = "\n".join([FEW_HELD_OUT, *(code for code, _ in changes)]) if changes else ""
    for was, now in ((old, new), *STEPS, (MAIN, f"\n{code}\n{MAIN}")):
        text = text.replace(was, now)
    path.write_text(text)
    return [claim, *(claim for _, claim in changes)]


def test_wrong_numbers_in_each_script(launch, tmp_path, no_matplotlib):
    """reproduce.sh ends non-zero, and the report begins with what does not come out. On five ranks, one only waits. No
    number of the small runs is changed: they are left out."""
    scripts, out = tmp_path / "scripts", tmp_path / "out"
    shutil.copytree(SCRIPTS, scripts, ignore=shutil.ignore_patterns("__pycache__"))
    small_runs = '"${mpirun[@]}" -n 4 "$python" "$scripts/small_runs.py"'
    text = (scripts / "reproduce.sh").read_text()
    assert text.count(small_runs) == 1
    (scripts / "reproduce.sh").write_text(text.replace(small_runs, "true").replace("-n 4", "-n 5"))
    wrong = {name: change(name, scripts / f"{name}.py") for name in WRONG}
    end = launch(None, *CALL, "bash", scripts / "reproduce.sh", out, timeout=400,
                 env={"PYTHON": sys.executable, "PYTHONPATH": f"{no_matplotlib}:{ROOT}"})
    assert end.status == 1 and "Traceback" not in end.output, end.output
    first, second, *_ = (out / "report.md").read_text().split("\n## ")[1:]
    assert first.startswith("Claims that do not come out\n") and second.startswith("01_memory")
    for name, texts in wrong.items():
        data = written(out / f"{name}.json", name)
        agrees = {claim["text"]: claim["agrees"] for demo in data["demos"] for claim in demo["claims"]}
        assert [agrees[text] for text in texts] == [False] * len(texts), name
        assert 2 * data["agree"] >= data["claims"] and all(f"| {text} | " in first for text in texts)
        assert all(any(claim["agrees"] for claim in demo["claims"]) for demo in data["demos"])
