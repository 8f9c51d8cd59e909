"""Checkpoints as a user meets them: real runs that are saved, killed, asked to stop, and gone on with."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time

import pytest

from mpizero.checkpoint.verify import verify
from tests.support.launch import ROOT, clean_environment, mpirun
from tests.test_interrupt import begin, ended, expected, library

GPT = ("--model", "gpt", "--layers", "1", "--d-model", "16", "--heads", "2", "--context", "8", "--batch-size", "2",
       "--data", json.__file__)
# Rank 1 takes its time to write what is saved after step 4.
SLOW = """
import os, runpy, sys, time
from pathlib import Path
import mpizero.checkpoint.save as module
folder, write_all = Path(sys.argv[1]), module.write_all
def slowly(file, data):
    write_all(file, data)
    if any(folder.glob(".step-00000004.tmp-*/part-0001.bin")):
        (folder.parent / f"{os.getpid()}.pid").touch()
        time.sleep(60)
if os.environ.get("PMI_RANK", os.environ.get("OMPI_COMM_WORLD_RANK")) == "1":
    module.write_all = slowly
sys.argv[1:] = ["--save", *sys.argv[1:]]
runpy.run_module("mpizero.train", run_name="__main__", alter_sys=True)
"""


def summary(path):
    return json.loads(path.read_text())


def test_save_resume_verify(launch, tmp_path):
    folder, train = tmp_path / "D", ("-m", "mpizero.train", *GPT)
    first = launch(4, *train, "--stage", "3", "--steps", "4", "--save", folder, "--save-every", "2", "--json",
                   tmp_path / "a.json")
    assert first.status == 0, first.output
    assert f"\nsaved {folder}/step-00000002 in " in first.stdout
    assert first.stdout.endswith(f"\nsaved {folder}/step-00000004; go on with --resume {folder}/latest\n")
    last = launch(3, *train, "--stage", "2", "--steps", "4", "--resume", folder / "latest")
    assert last.status == 0, last.output
    assert (f"resumed from {folder}/step-00000004 (4 ranks, stage 3) at step 4 of 4; samples a step 8 -> 6; nothing "
            "is left to train: give --steps above 4 to go on\n") in last.stdout
    again = launch(4, *train, "--stage", "3", "--steps", "4", "--resume", folder / "step-00000002", "--json",
                   tmp_path / "b.json", "--log", tmp_path / "log", "--lr", "2e-3")
    assert again.status == 0 and "\nstep 3/4 " in again.stdout and "\n2 steps in " in again.stdout, again.output
    one, two = summary(tmp_path / "a.json"), summary(tmp_path / "b.json")
    for name in ("weights_sha256", "exp_avg_sha256", "exp_avg_sq_sha256", "eval_loss"):
        assert one[name] == two[name]
    assert one["losses"][2:] == two["losses"]
    assert two["checkpoints"]["resumed_from"] == f"{folder}/step-00000002" and two["checkpoints"]["saved"] is None
    for row in one["checkpoints"]["memory"]:
        assert row["saving_peak"] == row["planned_saving_peak"] > 0
    for row in two["checkpoints"]["memory"]:
        assert row["loading_peak"] == row["planned_loading_peak"] > 0
    wrong = launch(2, *train, "--resume", folder, "--dtype", "float32")
    assert wrong.status == 2 and "--dtype is float32, but was float16" in wrong.output, wrong.output
    damage(folder / "step-00000004" / "part-0002.bin")
    off = launch(None, "-m", "mpizero", "checkpoint", "verify", folder / "latest")
    assert off.status == 1 and f"{folder}/step-00000004/part-0002.bin is damaged" in off.stderr, off.output
    bad = launch(2, *train, "--resume", folder)
    assert bad.status == 2 and bad.output.count("mpizero: error:") == 1, bad.output
    assert "part-0002.bin is damaged" in bad.output
    assert f"the last good one is --resume {folder}/step-00000002\n" in bad.output and "Traceback" not in bad.output


def test_on_4_8_and_1_ranks(launch, tmp_path):
    """Handed on without a step between: each holds, and saves, the numbers of the first."""
    found = []
    for number, (ranks, stage) in enumerate(((4, "3"), (8, "2"), (1, "0"))):
        before = ("--resume", tmp_path / str(number - 1)) if number else ()
        end = launch(ranks, "-m", "mpizero.train", *GPT, "--steps", "2", "--stage", stage, *before, "--save",
                     tmp_path / str(number), "--json", tmp_path / "s.json")
        assert end.status == 0, end.output
        found.append({name: value for name, value in summary(tmp_path / "s.json").items() if name.endswith("sha256")})
    assert found == found[:1] * 3 and len(set(found[0].values())) == 3


def damage(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.launches
@pytest.mark.parametrize("n, number", [(None, signal.SIGTERM), (2, signal.SIGUSR1)])
def test_a_signal_saves(tmp_path, n, number):
    child, pids = begin(n, tmp_path, "--save", tmp_path / "D")
    os.kill(pids[0] if n is None else child.pid, number)
    status, stdout, stderr = ended(child)
    assert status in expected(number, library(tmp_path)), stdout + stderr
    step = len(summary(tmp_path / "s.json")["losses"])
    assert stdout.endswith(f"\nsaved {tmp_path}/D/step-{step:08d}; go on with --resume {tmp_path}/D/latest\n"), stdout
    assert verify(tmp_path / "D")["whole"] and verify(tmp_path / "D")["step"] == step


def test_a_rank_killed_while_saving(launch, tmp_path):
    """By kill -9: the last complete checkpoint is gone on with, to the same bits, and what was half done is removed."""
    folder = tmp_path / "D"
    flags = ["--steps", "6", "--stage", "2", "--save-every", "2"]
    command = [mpirun(), "-n", "2", sys.executable, "-c", SLOW, str(folder), *flags]
    child = subprocess.Popen(command, cwd=ROOT, env=clean_environment(), start_new_session=True,
                             stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        for _ in range(6000):
            if (found := list(tmp_path.glob("*.pid"))) or child.poll() is not None:
                break
            time.sleep(0.01)
        assert found, child.communicate()
        os.kill(int(found[0].stem), signal.SIGKILL)
        assert child.communicate(timeout=60) and child.returncode != 0
    finally:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
    assert (folder / "latest").read_text() == "step-00000002\n" and any(folder.glob(".step-00000004.tmp-*"))
    assert verify(folder)["whole"]
    on = launch(2, "-m", "mpizero.train", *flags, "--save", folder, "--resume", folder, "--json", tmp_path / "a.json")
    assert on.status == 0 and "at step 2 of 6" in on.stdout, on.output
    assert not any(folder.glob(".step*")) and verify(folder)["step"] == 6
    whole = launch(2, "-m", "mpizero.train", *flags[:4], "--json", tmp_path / "b.json")
    assert whole.status == 0, whole.output
    assert summary(tmp_path / "a.json")["weights_sha256"] == summary(tmp_path / "b.json")["weights_sha256"]


def test_a_real_full_disk(launch, tmp_path):
    """A file system with room for one checkpoint of 392 KB."""
    with small_disk(tmp_path / "disk", "640k") as disk:
        end = launch(2, "-m", "mpizero.train", "--steps", "4", "--save", disk / "D", "--save-every", "2")
        assert end.status == 2 and "cannot be written: No space left on device: make room" in end.output, end.output
        assert f"the last good checkpoint is --resume {disk}/D/step-00000002\n" in end.output
        assert "Traceback" not in end.output and verify(disk / "D")["whole"]
        on = launch(3, "-m", "mpizero.train", "--steps", "3", "--resume", disk / "D")
        assert on.status == 0, on.output


@contextlib.contextmanager
def small_disk(path, size):
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(path)]
    with contextlib.suppress(FileNotFoundError):
        if os.geteuid() == 0 and subprocess.run(command, capture_output=True).returncode == 0:
            try:
                yield path
            finally:
                subprocess.run(["umount", str(path)], check=True)
            return
    pytest.skip("may not mount a small file system here: needs root")
