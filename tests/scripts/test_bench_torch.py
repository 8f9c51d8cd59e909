"""The comparison with PyTorch: what is computed from its figures, and starts that go wrong."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import time

import pytest

from tests.scripts.written import SCRIPTS

HAS_TORCH = importlib.util.find_spec("torch") is not None
RIVALS = ("torch-ddp", "torch-zero1", "torch-fsdp2")


@pytest.fixture
def bench(load):
    return load("bench_torch")


@pytest.fixture
def start(bench):
    from scripts.beside_torch import start
    return start


def run(start, folder, *programs, limit=60.0):
    """`programs`, Python texts, together."""
    start.together([([sys.executable, "-c", text], os.environ) for text in programs], folder, limit, folder)


def test_ratio_is_the_median_of_those_within_rounds(bench):
    seconds = [(1.0, 2.0), (10.0, 11.0), (1.0, 3.0)]
    rounds = [{"mpizero-stage0": {"step_s": ours}, "torch-ddp": {"step_s": theirs}} for ours, theirs in seconds]
    assert bench.ratio("torch-ddp", rounds, "step_s") == 2.0
    assert bench.ratio("mpizero-stage0", rounds, "step_s") is None
    assert bench.ratio("torch-ddp", [{"torch-ddp": {"step_s": 1.0}}], "step_s") is None  # nothing to compare with


def test_rows(bench, monkeypatch):
    """Tokens of all ranks over the median of seconds; memory and differences the worst."""
    found = iter([(0.5, 100, [3.0, 2.0]), (1.0, 80, [3.0, 2.5]), (0.25, 90, [3.0, 2.0]), (1.0, 85, [3.0, 2.5])])

    def measure(system, *rest):
        step, memory, losses = next(found)
        return {"step_s": step, "cpu_s": 2 * step, "peak_rss_bytes": memory, "start_rss_bytes": 1, "losses": losses,
                "failed": 1}

    monkeypatch.setattr(bench, "measure", measure)
    options = bench.parser().parse_args(["--systems", "mpizero-stage0,torch-ddp", "--rounds", "2"])
    ours, theirs = bench.compare("small", 2, "float32", options)
    assert (ours["tokens_per_s"], theirs["tokens_per_s"]) == (2 * 16 * 128 / 0.375, 2 * 16 * 128 / 1.0)
    assert (ours["peak_rss_bytes"], theirs["peak_rss_bytes"]) == (100, 85)
    assert (ours["loss_difference"], theirs["loss_difference"]) == (0, 0.5)
    assert (theirs["ours_over_it"], theirs["ours_over_it_by_cpu"], theirs["failed_starts"]) == (3.0, 3.0, 2)
    header, line, *cells = bench.show([ours, theirs]).split("\n")
    assert cells[1].split() == ["torch-ddp", "4,096", "3.00", "2.000", "3.00", "0", "0", "0.5"]


def test_commands(bench):
    words = ["small", "float32", "4", "FOLDER"]
    ((ours, more),) = bench.commands("mpizero-stage3", words, 3, "mpirun -x")
    assert ours == ["mpirun", "-x", "-n", "3", sys.executable, "-m", "scripts.beside_torch.ours", "3", *words]
    assert not more
    theirs = list(bench.commands("torch-fsdp2", words, 2, None))
    assert [more["RANK"] for _, more in theirs] == ["0", "1"] and {more["WORLD_SIZE"] for _, more in theirs} == {"2"}
    assert theirs[0][0] == [sys.executable, "-m", "scripts.beside_torch.theirs", "torch-fsdp2", *words]


def test_all_that_end_well_say_nothing(start, tmp_path):
    run(start, tmp_path, "print('x' * 1_000_000)", "pass")  # more than a pipe holds


def test_one_that_fails_ends_the_others(start, tmp_path, monkeypatch):
    monkeypatch.setattr(start, "GRACE", 0.5)
    begin = time.monotonic()
    with pytest.raises(start.StartError) as error:
        run(start, tmp_path, "import time; time.sleep(300)", "raise SystemExit('no such peer')")
    assert time.monotonic() - begin < 100
    assert str(error.value) == ("failed:\nprocess 0 was still running, and said nothing\n"
                                "process 1 ended with status 1, and said:\nno such peer")


def test_a_silent_one_is_ended_with_what_it_started(start, tmp_path, monkeypatch):
    """It does not listen to TERM, nor does its child: the child's number is dead afterwards."""
    monkeypatch.setattr(start, "GRACE", 0.5)
    deaf = ("import os, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); child = os.fork();"
            "child and print(child, flush=True); time.sleep(300)")
    with pytest.raises(start.StartError, match=r"^did not end within 3 s:\nprocess 0 was still running, and said:"):
        run(start, tmp_path, deaf, limit=3)
    child = int((tmp_path / "said-0").read_text())
    for _ in range(1000):
        try:
            gone = open(f"/proc/{child}/stat").read().split()[2] == "Z"
        except FileNotFoundError:
            gone = True
        if gone:
            break
        time.sleep(0.05)
    assert gone


def test_a_killed_one_is_named(start, tmp_path):
    with pytest.raises(start.StartError, match="process 0 was killed by SIGKILL, and said nothing"):
        run(start, tmp_path, "import os; os.kill(os.getpid(), 9)")


def test_a_second_failure_ends_the_comparison(bench, monkeypatch, capsys):
    def failing(*rest):
        raise bench.StartError("failed:\nprocess 0 ended with status 1, and said nothing")

    monkeypatch.setattr(bench, "start", failing)
    with pytest.raises(SystemExit) as end:
        bench.measure("torch-fsdp2", "small", 2, "float32", None)
    assert str(end.value).startswith("bench_torch.py: error: torch-fsdp2 on 2 rank(s) twice failed:\nprocess 0")
    assert "once more" in capsys.readouterr().err


@pytest.mark.launches
@pytest.mark.parametrize("systems", [("mpizero-stage0", "mpizero-stage3"), pytest.param(
    ("mpizero-stage0", *RIVALS), marks=pytest.mark.skipif(not HAS_TORCH, reason="PyTorch is not installed"))])
def test_on_ranks(launch, tmp_path, systems):
    """All systems compute the same losses; each row has what is asked for by name."""
    out = tmp_path / "out.json"
    end = launch(None, SCRIPTS / "bench_torch.py", "--ranks", "2", "--model", "tiny", "--rounds", "1", "--steps", "1",
                 "--systems", ",".join(systems), "--json", out)
    assert end.status == 0, end.output
    found = json.loads(out.read_text())
    assert [row["system"] for row in found["rows"]] == list(systems)
    for row in found["rows"]:
        assert row["tokens_per_s"] > 0 and row["peak_rss_bytes"] > row["start_rss_bytes"] > 0
        assert row["loss_difference"] < 1e-4 and len(set(row["losses"])) == 3
