"""hostfiles/ssh-or-end, which mpirun calls in place of ssh."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.launch import ROOT, clean_environment, launch, mpirun
from tests.support.load import scaled

OPEN_MPI = ("-x", "host1", "PATH=/usr/bin:$PATH ; orted -mca ess env")
MPICH = ("-x", "host1", "/usr/bin/hydra_pmi_proxy", "--control-port", "host0:40000")


# in place of ssh: the host is this machine, until the file LOST is there
FAKE_SSH = """#!/bin/sh
shift 2
sh -c "$*" &
while kill -0 $! 2>/dev/null; do [ -e "$LOST" ] && exit 255; sleep 0.1; done
wait $!"""
PROGRAM = """
import os, runpy
open(os.path.join(os.environ["PIDS"], os.environ["PMI_RANK"]), "w").write(str(os.getpid()))
runpy.run_module("mpizero.train", run_name="__main__", alter_sys=True)
"""


def fake_ssh(folder: Path, text: str, **changes: str) -> dict[str, str]:
    """The environment in which a program `text` takes the place of ssh."""
    (folder / "ssh").write_text(text)
    (folder / "ssh").chmod(0o755)
    env = {**clean_environment(), "SSH": str(ROOT / "hostfiles" / "ssh-or-end"), **changes}
    return env | {"PATH": f"{folder}:{env['PATH']}"}


def run(folder: Path, status: int, words: tuple[str, ...], then: str = ":", **changes: str
        ) -> subprocess.CompletedProcess[str]:
    """Under a shell that stands for mpirun, with an ssh that ends with `status`. then: what mpirun does after it."""
    env = fake_ssh(folder, f'#!/bin/sh\necho "ssh got $*"\nexit {status}\n', **changes)
    script = f'"$SSH" "$@"; status=$?; {then}; echo ended; exit $status'
    return subprocess.run(["sh", "-c", script, "mpirun", *words], env=env, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("words", [OPEN_MPI, MPICH])
@pytest.mark.parametrize("status", [0, 1, 254])
def test_what_the_host_says_is_handed_on(tmp_path, words, status):
    end = run(tmp_path, status, words)
    assert (end.returncode, end.stderr) == (status, "")
    assert end.stdout == f"ssh got {' '.join(words)}\nended\n"


@pytest.mark.parametrize("options", [(), ("-p", "2222", "-oBatchMode=yes", "-l", "user")])
def test_a_lost_host_is_named(tmp_path, options):
    """Open MPI's mpirun ends by itself, and hangs when it is ended as well."""
    end = run(tmp_path, 255, (*options, *OPEN_MPI))
    assert end.returncode == 255 and end.stdout.endswith("ended\n")
    assert end.stderr == "ssh-or-end: host1 is lost or cannot be reached: ending the job\n"


@pytest.mark.parametrize("seconds, status", [(0, 0), (5, -signal.SIGKILL)])
def test_a_host_whose_ranks_end_before_the_others(tmp_path, seconds, status):
    """MPICH 4's mpiexec waits for ever for ranks that could not start. One that ends by itself is left alone."""
    end = run(tmp_path, 0, MPICH, f"sleep {seconds}", SSH_OR_END_SECONDS="2")
    assert end.returncode == status and ("ended" in end.stdout) is (status == 0)
    text = "ssh-or-end: the ranks of host1 have ended, others have not: ending the job\n"
    assert end.stderr == (text if status else "")


def test_mpich_would_wait_for_ever(tmp_path):
    end = run(tmp_path, 255, MPICH)
    assert end.returncode == -signal.SIGKILL and "ended" not in end.stdout
    assert end.stderr.startswith("ssh-or-end: host1 is lost")


@pytest.mark.launches
def test_a_host_is_lost_while_it_trains(tmp_path):
    """Its ranks fall silent, and ssh notices. The others wait for them within a step, which no signal of good manners
    would end."""
    library = launch(None, "-c", "from mpizero.comm import start; print(start().library)").stdout
    if not library.startswith("MPICH"):
        pytest.skip(f"{library.strip()}: its mpirun heeds the status of ssh")
    (tmp_path / "pids").mkdir()
    (tmp_path / "hosts").write_text("localhost:2\nhost1:2\n")
    env = fake_ssh(tmp_path, FAKE_SSH, LOST=str(tmp_path / "lost"), PIDS=str(tmp_path / "pids"), HYDRA_LAUNCHER="ssh",
                   HYDRA_LAUNCHER_EXEC=str(ROOT / "hostfiles" / "ssh-or-end"))
    command = [mpirun(), "-f", tmp_path / "hosts", "-n", "4", sys.executable, "-c", PROGRAM, "--steps", "1000000",
               "--log-every", "1000000", "--log", tmp_path / "log"]
    child = subprocess.Popen(list(map(str, command)), cwd=ROOT, env=env, stdin=subprocess.DEVNULL, text=True,
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    steps, pids = tmp_path / "log" / "steps.jsonl", []
    try:
        wait_until(lambda: child.poll() is not None or steps.exists() and steps.stat().st_size)
        assert child.poll() is None, child.communicate()
        pids = [int((tmp_path / "pids" / str(rank)).read_text()) for rank in range(4)]
        for pid in pids[2:]:
            os.kill(pid, signal.SIGSTOP)
        (tmp_path / "lost").touch()
        output, _ = child.communicate(timeout=scaled(30))
        assert child.returncode == -signal.SIGKILL and "ssh-or-end: host1 is lost" in output
        wait_until(lambda: not any(map(alive, pids[:2])))
    finally:
        for pid in (*pids, child.pid):
            if alive(pid):
                os.kill(pid, signal.SIGKILL)


def wait_until(come):
    """Within a minute."""
    end = time.monotonic() + scaled(60)
    while not come():
        assert time.monotonic() < end
        time.sleep(0.05)


def alive(pid: int) -> bool:
    """Whether that process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
