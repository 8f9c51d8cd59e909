"""The lecture's experiments come out; and they say so only because they can also fail."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from mpizero.papers import activations, compare, fragmentation, intensity, offload, partition, published, states
from mpizero.planner import footprint
from tests.support.launch import ROOT

SCRIPTS = ROOT / "scripts"
REPRODUCE = SCRIPTS / "reproduce.sh"
DEMOS = {"01_memory": 6, "02_zero_stages": 5, "03_fsdp": 4, "04_offload": 5, "06_published": 3}
ALONE = ["01_memory", "04_offload", "06_published"]  # need no ranks
CALL = ("-c", "import subprocess, sys; sys.exit(subprocess.call(sys.argv[1:]))")  # so that `launch` can run a shell

# A script on ranks with something changed: CHANGE is code in which `script` is the script's module.
CHANGED = """
import importlib.util, sys
sys.path.insert(0, {scripts!r})
spec = importlib.util.spec_from_file_location("script", {scripts!r} + "/{name}.py")
script = importlib.util.module_from_spec(spec)
sys.modules["script"] = script
spec.loader.exec_module(script)
{change}
from mpizero.comm import run_main
run_main(lambda: script.main(sys.argv[1:]))
"""


@pytest.fixture
def load(monkeypatch):
    """A script, or a module beside it, imported."""
    monkeypatch.syspath_prepend(str(SCRIPTS))

    def load(name: str):
        spec = importlib.util.spec_from_file_location(f"scripts_{name}", SCRIPTS / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, spec.name, module)  # dataclasses look for it
        spec.loader.exec_module(module)
        return module

    return load


def written(path: Path, name: str) -> dict:
    """What a script has written, which must be whole."""
    data = json.loads(path.read_text())
    every = [claim for demo in data["demos"] for claim in demo["claims"]]
    claims = [claim for claim in every if claim["agrees"] is not None]
    assert data["claims"] == len(claims) and data["agree"] == sum(claim["agrees"] for claim in claims)
    assert all(demo["claims"] for demo in data["demos"]) and all(claim["source"] for claim in every)
    for claim in every:  # a simulation says what it assumes; what holds by definition agrees with nothing
        assert (claim["kind"] == "simulated") == bool(claim["given"]), claim
        assert claim["agrees"] is None if claim["kind"] == "definition" else bool(claim["found"]) == (
            claim["agrees"] is not None), claim
    for kind, each in data["kinds"].items():
        assert each == {"claims": sum(claim["kind"] == kind for claim in claims),
                        "agree": sum(claim["kind"] == kind and claim["agrees"] for claim in claims),
                        "shown": sum(claim["kind"] == kind and claim["agrees"] is None for claim in every)}
    assert sum(each["claims"] for each in data["kinds"].values()) == data["claims"]
    assert [demo["demo"] for demo in data["demos"]] == list(range(1, DEMOS[name] + 1))
    return data


# -- all claims come out ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALONE)
def test_scripts_that_need_no_ranks(load, capsys, tmp_path, name):
    assert load(name).main(["--json", str(tmp_path / "out.json")]) == 0
    out = capsys.readouterr().out
    data = written(tmp_path / "out.json", name)
    assert data["agree"] == data["claims"] > 20
    assert out.endswith(f"\n{data['claims']} claims, {data['agree']} agree\n") and "DISAGREES" not in out
    assert max(map(len, out.splitlines())) <= 100


@pytest.mark.parametrize("name", ALONE)
def test_neither_numpy_nor_mpi_is_needed(launch, name):
    block = "import runpy, sys; sys.modules.update(numpy=None, mpi4py=None, matplotlib=None); "
    run = (f"sys.argv = ['x']; sys.path.insert(0, {str(SCRIPTS)!r}); "
           f"runpy.run_path('{SCRIPTS}/{name}.py', run_name='__main__')")
    # -S: nor any installed package, mpizero among them
    end = launch(None, "-S", "-c", block + run, env={"PYTHONPATH": None}, cwd=Path("/"))
    assert end.status == 0, end.output


def test_fewer_ranks_and_padding(launch, tmp_path):
    end = launch(4, SCRIPTS / "02_zero_stages.py", "--demo", 5, "--json", tmp_path / "out.json", timeout=240)
    assert end.status == 0 and "\n30 claims, 30 agree\n" in end.stdout, end.output
    (demo,) = json.loads((tmp_path / "out.json").read_text())["demos"]
    assert [row[3:5] for row in demo["data"]["rows"] if row[0] == 3] == [
        [522_528, 87_088], [261_264, 87_088], [261_264, 130_632], [217_720, 87_088], [174_176, 130_632]]


def test_hybrid_sums(launch):
    """On five ranks, of which one only waits."""
    end = launch(5, SCRIPTS / "03_fsdp.py", "--demo", 4, timeout=120)
    assert end.status == 0 and "agree\n" in end.stdout and "in one process" in end.stdout, end.output


def test_all_at_once(launch, tmp_path):
    end = launch(None, *CALL, "bash", REPRODUCE, tmp_path / "out", env={"PYTHON": sys.executable}, timeout=400)
    assert end.status == 0, end.output
    data = {name: written(tmp_path / "out" / f"{name}.json", name) for name in DEMOS}
    count = sum(each["claims"] for each in data.values())
    assert count == sum(each["agree"] for each in data.values()) > 240
    report = (tmp_path / "out" / "report.md").read_text()
    assert f"**{count} claims, {count} agree.**" in report and "**NO**" not in report
    assert "do not come out" not in report and f"\n{count} claims, {count} agree.\n" in end.stdout
    kinds = {kind: list(map(int, counts)) for kind, *counts in re.findall(
        r"^\| (\w+)[^|]* \| (\d+) \| (\d+) \| (\d+) \|$", report, re.MULTILINE)}
    assert sum(row[0] for row in kinds.values()) == count
    assert kinds["definition"][:2] == [0, 0] and kinds["definition"][2] > 0
    readme = (ROOT / "README.md").read_text()
    assert f"Of the {count} claims that" in readme
    [ours] = re.findall(r"(\d+) of them ours", report)
    assert f"{ours} of them are ours" in readme
    assert all(re.search(rf"\b{kinds[kind][0]}\b", readme) for kind in kinds if kind != "definition")
    assert all(kinds[kind][0] == kinds[kind][1] > 20 for kind in kinds if kind != "definition") and len(kinds) == 7
    assert "B3BBBBBBB2BBBBBBB1BBBBBBB0BBBBBB" in report and data["02_zero_stages"]["where"] in report
    figures = [name for each in data.values() for demo in each["demos"] for name in demo["figures"]]
    assert all((tmp_path / "out" / "figures" / name).read_bytes().startswith(b"\x89PNG") for name in figures)
    assert all(f"(figures/{name})" in report for name in figures)
    assert max(len(line) for path in (tmp_path / "out").glob("*.txt") for line in path.read_text().splitlines()) <= 100
    assert len(figures) == (12 if importlib.util.find_spec("matplotlib") else 0)


# -- a wrong number is reported ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name, demo, module, attribute, value", [
    ("01_memory", 1, footprint, "update_block_numel", lambda numel: numel // 2),
    ("01_memory", 1, compare, "megatron", lambda psi, *_: [compare.Estimate("", 18 * psi, "")]),
    ("01_memory", 2, states, "form",
     lambda stage, dtype="float16": {"0": (16, 0), "1": (4, 12), "2": (4, 12), "3": (0, 16)}[stage]),
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
    """Of the papers' package, of the planner or of a script."""
    script = load(name)
    assert script.main(["--demo", str(demo)]) == 0
    capsys.readouterr()
    monkeypatch.setattr(sys.modules[module] if isinstance(module, str) else module, attribute, value)
    assert script.main(["--demo", str(demo)]) == 1
    out = capsys.readouterr().out
    told, _, summed = out.rpartition("\n\n")  # what does not agree is said again at the end
    agree, fail = told.count("\nagrees "), told.count("\nDISAGREES ")
    assert summed.count("DISAGREES ") == fail > 0
    assert out.endswith(f"\n{agree + fail} claims, {agree} agree\n")


LEAK = """
from mpizero.engine.unit import Unit
kept, reshard = [], Unit.reshard
Unit.reshard = lambda unit: (kept.append(unit.whole_param), reshard(unit))"""
DOUBLE = """
import mpizero.engine.unit as unit
reduce_scatter = unit.reduce_scatter
def twice(group, flat, out, **more):
    reduce_scatter(group, flat.copy(), out.copy(), **more)
    reduce_scatter(group, flat, out, **more)
unit.reduce_scatter = twice"""
LONGER = """
from mpizero.papers import sharding
sharding.full_sharding = lambda size, world: 3 * size * world // (world + 1)"""
PADDING = """
flatten = script.flatten
script.flatten = lambda name, params, ranks: flatten(name, params, 2 * ranks)"""
CHART = """
from overlap import CHARTS
CHARTS["no overlap"] = ({}, False, 40.5, 11, tuple(row[::-1] for row in CHARTS["no overlap"][4]))"""
SLOWER = """
import overlap
from dataclasses import replace
overlap.LECTURE = replace(overlap.LECTURE, inter_bandwidth=40e9)"""
OTHER_ORDER = """
import meshes
meshes.chunk = lambda numel, index, size: slice(0, numel // size)"""


@pytest.mark.parametrize("name, demo, change, words", [
    ("02_zero_stages", 2, "script.STEPS = 2" + LEAK, "ZeRO-3's peak, each rank"),
    ("02_zero_stages", 3, "script.STEPS = 2" + DOUBLE,
     "ZeRO-2 sends 2 psi (N-1)/N elements: each rank, over 2 psi bytes"),
    ("02_zero_stages", 4, "script.STEPS = 8\nscript.AllGatherParam = int",
     "Comparing checksums between ranks finds it, and finds nothing in the right run"),
    ("03_fsdp", 1, PADDING, "The Linear on 16 ranks: elements of padding"),
    ("03_fsdp", 2, "script.ALPHA = 6e-6",
     "2^30 float32 elements gathered in pieces of 33 million take longer than in one by"),
    ("03_fsdp", 3, CHART, "4 units, no overlap: the lecture's chart"),
    ("03_fsdp", 3, SLOWER, "13B: with backward prefetch faster by a factor of"),
    ("03_fsdp", 4, LONGER, "Full sharding: 3 M (W - 1) / W"),
    ("03_fsdp", 4, OTHER_ORDER, "2 x 2: one process that adds in the order of the rings gets the ranks' bits"),
], ids=["leak", "sent twice", "nothing forgotten", "padding", "alpha", "chart", "network", "volume", "order"])
def test_a_wrong_number_on_ranks(launch, tmp_path, name, demo, change, words):
    code, out = CHANGED.format(scripts=str(SCRIPTS), name=name, change=change), tmp_path / "out.json"
    end = launch(4, "-c", code, "--demo", demo, "--json", out, timeout=240)
    assert end.status == 1 and "DISAGREES" in end.stdout and "Traceback" not in end.output, end.output
    claims = {claim["text"]: claim["agrees"] for claim in json.loads(out.read_text())["demos"][0]["claims"]}
    assert not claims[words] and any(claims.values())


WRONG = {  # in each script, a number: old, new, and the claim that must not come out
    "01_memory": ('("120", "31.4", "16.6", "1.88")', '("120", "31.4", "16.7", "1.88")', "7.5B on 64 ranks, P_os+g"),
    "02_zero_stages": ('"2": (2, 14)', '"2": (2, 13)',
                       "ZeRO-2, right after backward, each rank: 2 psi + 13 psi/N"),
    "03_fsdp": ('exercise, "75.29"', 'exercise, "75.39"',
                "Full sharding: a rank whose ring leaves the host there sends"),
    "04_offload": ('"p16",\n', '"g16",\n', "Data that the optimum leaves on the device"),
    "06_published": ('source, "30",', 'source, "31",',
                     "15 PFLOP/s on 400 V100 are, of their peak (printed: over 30 %)"),
}


def test_a_wrong_number_in_each_script(launch, tmp_path):
    """reproduce.sh ends non-zero, and the report begins with what does not come out."""
    scripts, out = tmp_path / "scripts", tmp_path / "out"
    shutil.copytree(SCRIPTS, scripts, ignore=shutil.ignore_patterns("__pycache__"))
    for name, (old, new, _) in WRONG.items():
        text = (scripts / f"{name}.py").read_text()
        assert text.count(old) == 1, (name, old)
        text = text.replace(old, new).replace("STEPS, FEW_STEPS = 50", "STEPS, FEW_STEPS = 9")
        (scripts / f"{name}.py").write_text(text)
    end = launch(None, *CALL, "bash", scripts / "reproduce.sh", out, timeout=400,
                 env={"PYTHON": sys.executable, "PYTHONPATH": str(ROOT)})
    assert end.status == 1 and "Traceback" not in end.output, end.output
    first, second, *_ = (out / "report.md").read_text().split("\n## ")[1:]
    assert first.startswith("Claims that do not come out\n") and second.startswith("01_memory")
    for name, (*_, text) in WRONG.items():
        data = written(out / f"{name}.json", name)
        assert [claim["text"] for demo in data["demos"] for claim in demo["claims"]
                if claim["agrees"] is False and claim["text"] == text] == [text]
        assert data["agree"] < data["claims"] and f"| {text} | " in first


@pytest.mark.parametrize("wrong", [None, *WRONG, "write_report"])
def test_the_status_of_each_script_counts(launch, tmp_path, wrong):
    """With a Python that runs nothing, and fails at one script."""
    python, mpirun = tmp_path / "python", tmp_path / "mpirun"
    python.write_text(f'#!/bin/sh\ncase "$*" in *{wrong}.py*) exit 1;; *matplotlib*) exit 1;; esac\n')
    mpirun.write_text('#!/bin/sh\nshift 2; exec "$@"\n')
    for path in (python, mpirun):
        path.chmod(0o755)
    end = launch(None, *CALL, "bash", REPRODUCE, tmp_path / "out", "--mpirun", mpirun, env={"PYTHON": str(python)})
    assert end.status == (0 if wrong is None else 1), end.output


def test_reproduce_tells_scripts_that_did_not_run(launch, tmp_path):
    (tmp_path / "02_zero_stages.json").write_text("of an earlier run")
    end = launch(None, *CALL, "bash", REPRODUCE, tmp_path, "--mpirun", "false", env={"PYTHON": sys.executable},
                 timeout=120)
    assert end.status == 1, end.output
    assert "**Did not run to its end: 02_zero_stages, 03_fsdp.**" in (tmp_path / "report.md").read_text()


def test_the_report_of_a_claim_that_does_not_come_out(load, tmp_path):
    claims, report = load("claims"), load("write_report")
    made = claims.Demo("title", "1.2", [
        claims.equal("one | two", "source", 1, 2), claims.equal("three", "source", 3, 3, kind="counted"),
        claims.definition("four", "source", 4), claims.quoted("five", "source", 5)])
    asked = claims.options("Doc.", "example", 1, ["--json", str(tmp_path / "01_memory.json")])
    assert claims.tell(asked, "Doc.", [lambda: made]) == 1
    for name in ("02_zero_stages", "03_fsdp", "04_offload", "06_published"):
        (tmp_path / f"{name}.json").write_text((tmp_path / "01_memory.json").read_text())
    assert report.main([str(tmp_path)]) == 1
    text = (tmp_path / "report.md").read_text()
    assert "**10 claims, 5 agree.**" in text and "No figures: matplotlib is not installed" in text
    row = "| one \\| two | source | 1 | computed: 2 | **NO** |"
    assert text.count(row) == 10 and text.split("\n## ")[1].count(row) == 5  # first of all, and in its place
    assert text.count("| four | source | 4 | definition | not counted |") == 5
    assert "| definition | 0 | 0 | 5 |" in text and "| published, numbers against each other | 0 | 0 | 5 |" in text
    assert "arithmetic | 5 | 0 | 0 |" in text and "traffic log | 5 | 5 | 0 |" in text


# -- the parts --------------------------------------------------------------------------------------------------------


def test_comparisons(load):
    claims = load("claims")
    assert claims.rounds_to("", "", "1.88", 1.875).agrees and claims.rounds_to("", "", "2.0", 2).agrees
    assert not claims.rounds_to("", "", "1.88", 1.8749).agrees and not claims.rounds_to("", "", "1.880", 1.875).agrees
    assert not claims.rounds_to("", "", "1.88", float("nan")).agrees
    assert not claims.rounds_to("", "", "31.4", 31.46).agrees
    assert claims.between("", "", 1, 2, 2).agrees
    assert claims.between("", "", None, 2, -5).agrees and claims.between("", "", 1, None, 1).agrees
    assert not claims.between("", "", 1, 2, 2.01).agrees and not claims.between("", "", 1, None, 0.99).agrees
    assert not claims.between("", "", 1, 2, float("nan")).agrees
    assert claims.between("", "", 1, None, np.float64(0.5)).agrees is False  # a NumPy bool is no JSON
    assert claims.equal("", "", [1, 2], [1, 2]).agrees and not claims.equal("", "", [1, 2], [2, 1]).agrees
    assert claims.between("", "", None, 0.5, 12_345_678, "s").claimed == "at most 0.5 s"
    assert claims.equal("", "", 12_345_678, 2.5, "s").claimed == "12,345,678 s"


def test_kinds(load):
    claims = load("claims")
    every = [claims.equal("", "", 1, 1, kind="counted"), claims.equal("", "", 1, 2, kind="counted"),
             *claims.of_kind("simulated", claims.equal("", "", 1, 1), given="a machine"), claims.definition("", "", 1),
             claims.quoted("", "", 1)]
    assert claims.tally(every) == {
        "counted": {"claims": 2, "agree": 1, "shown": 0}, "simulated": {"claims": 1, "agree": 1, "shown": 0},
        "published": {"claims": 0, "agree": 0, "shown": 1}, "definition": {"claims": 0, "agree": 0, "shown": 1}}
    ours = [claims.holds("", source, "", "", True) for source in ("ours", "ours, after lecture 4.3", "lecture 4.3")]
    assert claims.count_ours([*ours, claims.definition("", "ours", 1)]).startswith("2 of them ours: ")
    assert every[2].given == "a machine" and every[3].agrees is None is every[4].agrees


@pytest.mark.parametrize("made", [[], ["definition"], ["quoted"]])
def test_no_claims_are_no_success(load, made):
    """Nor is a definition."""
    claims = load("claims")
    demo = claims.Demo("title", "1", [getattr(claims, name)("text", "source", 1) for name in made])
    assert claims.tell(claims.options("Doc.", "", 1, []), "Doc.", [lambda: demo]) == 1


def test_sixteen_bits(load):
    """`struct` rounds as NumPy does; bfloat16 as ml_dtypes."""
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    small = load("small_updates")
    for x in np.random.default_rng(0).normal(size=1000):
        assert small.half(x) == np.float16(x) and small.single(x) == np.float32(x)
        assert small.brain(x) == float(np.float32(x).astype(bfloat16))
    for ties in (1, 3):
        tie = 0.5 + ties * 2.0**-9
        assert small.brain(tie) == float(np.float32(tie).astype(bfloat16)) == 0.5 + (ties // 2) * 2.0**-7


def test_sums_in_the_order_of_the_rings(load):
    """Chunk c of two ranks: x[c+1] + x[c]; of integers any order is right."""
    meshes = load("meshes")
    values = meshes.np.arange(16 * meshes.NUMEL).reshape(16, meshes.NUMEL)
    for ranks, shards in ((4, 2), (16, 8), (4, 4), (4, 1)):
        assert (meshes.sum_in_order(values[:ranks].astype(float), shards) == values[:ranks].sum(axis=0)).all()
    assert meshes.distance(values[0] * 1.01, values[:1].astype(float)) == pytest.approx(0.01)


@pytest.mark.parametrize("name", DEMOS)
def test_help(launch, name):
    end = launch(None, SCRIPTS / f"{name}.py", "--help")
    assert end.status == 0 and f"scripts/{name}.py --json" in end.stdout and "--demo K" in end.stdout, end.output


@pytest.mark.parametrize("ranks, name", [
    (None, "02_zero_stages"), (3, "02_zero_stages"), (None, "03_fsdp"), (2, "03_fsdp")])
def test_too_few_ranks(launch, ranks, name):
    end = launch(ranks, SCRIPTS / f"{name}.py")
    started = "1 was" if ranks is None else f"{ranks} were"
    assert end.status == 2 and "Traceback" not in end.output, end.output
    command = f"mpirun -n 4 python scripts/{name}.py"
    assert end.stderr.count(f"mpizero: error: this script needs 4 ranks, and {started} started: {command}\n") == 1


@pytest.mark.parametrize("words, message", [
    (("--demo", "6"), "argument --demo"), (("--json", "/no/such/folder/out.json"), "cannot be written"),
    (("--speed",), "unrecognized arguments"),
])
def test_mistakes(launch, words, message):
    end = launch(None, SCRIPTS / "04_offload.py", *words)
    assert end.status == 2 and message in end.stderr and "Traceback" not in end.output, end.output


@pytest.mark.parametrize("words, message", [
    ((), "DIR is missing"), (("a", "b"), "one DIR, not also b"), (("--quick",), "unknown option --quick"),
    (("a", "--mpirun"), "--mpirun needs a command"),
])
def test_mistakes_of_reproduce(launch, tmp_path, words, message):
    end = launch(None, *CALL, "bash", REPRODUCE, *words, cwd=tmp_path)
    assert end.status == 2 and message in end.stderr, end.output
    assert "usage: bash scripts/reproduce.sh DIR" in end.stderr
    assert not list(tmp_path.iterdir())
