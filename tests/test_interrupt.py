"""Real signals to real runs: they stop after the step, write what there is, and end with 128 + the signal."""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mpizero import interrupt
from mpizero.interrupt import SIGNALS, noted
from tests.support.launch import ROOT, clean_environment, mpirun
from tests.support.load import scaled

PROGRAM = """
import os, runpy, sys
open(os.path.join(sys.argv.pop(1), str(os.getpid())), "w").close()
runpy.run_module("mpizero.train", run_name="__main__", alter_sys=True)
"""
TWICE = """
import os, signal, sys, time
from mpizero.interrupt import SAME, noted
with noted() as stop:
    for _ in range(2):  # the second at once: the same request
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.01)
    print(stop(), flush=True)
    time.sleep(SAME)
    os.kill(os.getpid(), signal.SIGINT)
    print("alive", flush=True)
"""


def begin(n, tmp_path, *more, program=PROGRAM):
    """A run without end on n ranks (None: without mpirun) that has taken its first step, and the ranks' process ids."""
    (tmp_path / "pids").mkdir()
    flags = ["--steps", "1000000", "--log-every", "1000000", "--log", tmp_path / "log", "--json", tmp_path / "s.json",
             *more]
    launcher = [] if n is None else [mpirun(), "-n", n]
    command = [*launcher, sys.executable, "-c", program, tmp_path / "pids", *flags]
    child = subprocess.Popen(list(map(str, command)), cwd=ROOT, env=clean_environment(), start_new_session=True,
                             stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    steps = tmp_path / "log" / "steps.jsonl"
    for _ in range(6000):
        if child.poll() is not None or steps.exists() and steps.stat().st_size:
            break
        time.sleep(0.01)
    assert child.poll() is None, child.communicate()
    return child, sorted(int(path.name) for path in (tmp_path / "pids").iterdir())


def ended(child):
    """Its status and what it wrote. Within a minute."""
    try:
        stdout, stderr = child.communicate(timeout=60)
    finally:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
    assert "Traceback" not in stdout + stderr, stdout + stderr
    return child.returncode, stdout, stderr


def check(tmp_path, stdout, number):
    """Everything is there, and says so."""
    summary = json.loads((tmp_path / "s.json").read_text())
    assert (summary["interrupted"], summary["signal"]) == (True, signal.Signals(number).name)
    steps = [json.loads(line)["step"] for line in (tmp_path / "log" / "steps.jsonl").read_text().splitlines()]
    assert steps == sorted({0, len(summary["losses"]) - 1})  # the last one has a line although it is no millionth
    assert summary["replicas_equal"] and summary["eval_loss"] is None
    for name in ("summary.json", "trace.json", "run.json"):
        assert json.loads((tmp_path / "log" / name).read_text())["run"] == summary["run"]
    assert f"interrupted by {signal.Signals(number).name} after {steps[-1] + 1:,} step" in stdout


@pytest.mark.launches
@pytest.mark.parametrize("n, to, number", [
    (None, "rank", signal.SIGINT), (2, "rank", signal.SIGTERM), (2, "mpirun", signal.SIGUSR1)])
def test_a_signal_ends_a_run_in_good_order(tmp_path, n, to, number):
    """One rank that is asked stops all. USR1 is what every mpirun hands on."""
    child, pids = begin(n, tmp_path)
    assert len(pids) == (n or 1)
    os.kill(child.pid if to == "mpirun" else pids[-1], number)
    status, stdout, stderr = ended(child)
    assert status in expected(number, library(tmp_path) if to == "mpirun" else ""), stdout + stderr
    check(tmp_path, stdout, number)


def library(folder):
    return json.loads((folder / "log" / "run.json").read_text())["mpi"]


def expected(number, mpi):
    """Of a run that a signal ended. MPICH 4's mpirun, once it was sent one, says 0 now and then, whatever ranks say."""
    return {128 + number, 0} if mpi.startswith("MPICH 4") else {128 + number}


@pytest.mark.launches
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_mpirun(tmp_path, number):
    """MPICH's waits for its ranks. Open MPI's ends them with TERM, and a quarter of a second later for good: then what
    they have written is whole."""
    child, _ = begin(2, tmp_path)
    os.kill(child.pid, number)
    status, stdout, stderr = ended(child)
    mpi = library(tmp_path)
    if mpi.startswith("MPICH"):
        assert status in expected(number, mpi), stdout + stderr
        check(tmp_path, stdout, number)
        return
    assert status not in (0, 2), stdout + stderr
    if (tmp_path / "log" / "summary.json").exists():
        assert json.loads((tmp_path / "log" / "summary.json").read_text())["interrupted"] is True


def test_a_second_signal_ends_at_once(launch):
    end = launch(None, "-c", TWICE)
    assert (end.status, end.stdout) == (-signal.SIGINT, f"{int(signal.SIGTERM)}\n"), end.output


LATE = """
from mpizero import interrupt
interrupt.LATE = 1.0
"""


@pytest.mark.launches
def test_a_step_that_does_not_end_says_why(tmp_path):
    """Rank 1 has fallen silent. The first signal to rank 0 wants the step's end, the second does not."""
    child, pids = begin(2, tmp_path, program=LATE + PROGRAM)
    silent, waiting = sorted(pids, key=lambda pid: rank_of(pid) != 1)
    try:
        os.kill(silent, signal.SIGSTOP)
        os.kill(waiting, signal.SIGTERM)
        assert select.select([child.stderr], [], [], scaled(30))[0]
        line = child.stderr.readline()
        assert re.fullmatch(
            r"mpizero: SIGTERM has come, but this step does not end: \w+( of unit '\S+')? in group '\w+': no answer "
            r"from rank 1 on \S+ to rank 0 on \S+\. A second signal ends the job at once\n", line), line
        os.kill(waiting, signal.SIGTERM)
        status, stdout, stderr = ended(child)
    finally:
        with contextlib.suppress(ProcessLookupError):  # an mpirun may have ended it
            os.kill(silent, signal.SIGKILL)
    assert status != 0 and "does not end" not in stderr, stdout + stderr


def rank_of(pid):
    """By the environment of that process."""
    words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    names = (b"OMPI_COMM_WORLD_RANK", b"PMI_RANK")
    return next(int(word.partition(b"=")[2]) for word in words if word.partition(b"=")[0] in names)


def test_complaints_come_once_and_late(monkeypatch, capsys):
    """Only of a wait that has lasted since the signal, or begun after it, for so long."""
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    interrupt.complain(0.0, lambda: "nobody has asked")
    with noted():
        signal.raise_signal(signal.SIGUSR1)
        for since, at in ((0.0, 104.9), (104.0, 108.9), (104.0, 109.1), (104.0, 120.0)):
            now[0] = at
            interrupt.complain(since, lambda: "rank 3")
            said = capsys.readouterr().err
            assert said == ("mpizero: SIGUSR1 has come, but this step does not end: rank 3. A second signal ends the "
                            "job at once\n" if at == 109.1 else "")
    with noted():
        signal.raise_signal(signal.SIGUSR1)
    now[0] = 200.0
    interrupt.complain(0.0, lambda: "it is over")
    assert capsys.readouterr().err == ""


def test_handlers_of_others_are_given_back():
    ours = [lambda *_: None for _ in SIGNALS]
    before = [signal.signal(number, handler) for number, handler in zip(SIGNALS, ours, strict=True)]
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        with noted() as stop:
            assert stop() == 0 and signal.getsignal(signal.SIGINT) == signal.SIG_IGN
            signal.raise_signal(signal.SIGUSR1)
            assert stop() == signal.SIGUSR1
        assert [signal.getsignal(number) for number in SIGNALS] == [signal.SIG_IGN, *ours[1:]]
    finally:
        for number, handler in zip(SIGNALS, before, strict=True):
            signal.signal(number, handler)
