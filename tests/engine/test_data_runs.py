"""`--data` from the command line: what a run reads, and for how long."""

from __future__ import annotations

import json

import pytest

from tests.golden.text import pseudo_text

pytestmark = pytest.mark.launches
GPT = ("-m", "mpizero.train", "--model", "gpt", "--layers", "1", "--d-model", "8", "--heads", "2", "--context", "16",
       "--batch-size", "10", "--dtype", "float32")


def one_sentence(end):
    """Of ours: Open MPI adds its own."""
    return end.status == 2 and end.stderr.count("mpizero: error: ") == 1 and "Traceback" not in end.output


def test_two_equal_commands_give_two_equal_results_beside_their_own_output(launch, tmp_path):
    (tmp_path / "a.txt").write_bytes(pseudo_text())
    (tmp_path / ".git").mkdir()
    results = set()
    for number in range(2):
        (tmp_path / ".git" / "index").write_bytes(b"%d" % number * 1000)
        end = launch(2, *GPT, "--steps", "2", "--data", tmp_path, "--log", tmp_path / "log", "--json",
                     tmp_path / "out.json")
        assert end.status == 0, end.output
        summary = json.loads((tmp_path / "out.json").read_text())
        results.add((*summary["losses"], summary["eval_loss"], summary["weights_sha256"]))
        assert "text: 4,000 bytes of 1 file (skipped " in " ".join(end.stdout.split())
    assert len(results) == 1
    assert "4,000 bytes of 1 file (skipped 2 folders, 1 file), " in " ".join(end.stdout.split())


def test_epochs(launch, tmp_path):
    (tmp_path / "a.txt").write_bytes(pseudo_text())
    end = launch(2, *GPT, "--epochs", "0.5", "--data", tmp_path / "a.txt")
    lines = [line for line in end.stdout.splitlines() if line.startswith("step ")]
    assert end.status == 0 and 5 <= len(lines) <= 6, end.output  # some 224 windows of 17 bytes; 20 a step
    end = launch(2, "-m", "mpizero.train", "--epochs", "2", "--model", "mlp")
    assert one_sentence(end) and "--epochs cannot be counted, since samples of this data are drawn" in end.stderr


def test_a_text_that_changes_under_a_run(launch, tmp_path):
    """One sentence, by whichever rank reads first."""
    (tmp_path / "a.txt").write_bytes(pseudo_text())
    (tmp_path / "run.py").write_text(CHANGES)
    end = launch(2, tmp_path / "run.py", tmp_path / "a.txt")
    assert one_sentence(end), end.output
    assert "a.txt changed while the run read it: leave data alone" in end.stderr.replace("`", "")


CHANGES = """
import mpizero
import sys
from mpizero.comm import barrier, run_main, start
from mpizero.engine.job import TrainConfig, prepare
from mpizero.engine.trainer import run_steps

def main():
    world = start()
    job = prepare(TrainConfig(model="gpt", layers=1, d_model=8, heads=2, context=16, data=sys.argv[1]), world)
    barrier(world)
    if world.rank == 0:
        open(sys.argv[1], "a").write("more")
    barrier(world)
    run_steps(job)

run_main(main)
"""
