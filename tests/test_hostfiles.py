"""hostfiles/ssh-or-end, which mpirun calls in place of ssh."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from tests.support.launch import ROOT, clean_environment

OPEN_MPI = ("-x", "host1", "PATH=/usr/bin:$PATH ; orted -mca ess env")
MPICH = ("-x", "host1", "/usr/bin/hydra_pmi_proxy", "--control-port", "host0:40000")


def run(folder: Path, status: int, words: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    """Under a shell that stands for mpirun, with an ssh that ends with `status`."""
    (folder / "ssh").write_text(f'#!/bin/sh\necho "ssh got $*"\nexit {status}\n')
    (folder / "ssh").chmod(0o755)
    env = {**clean_environment(), "SSH": str(ROOT / "hostfiles" / "ssh-or-end")}
    env["PATH"] = f"{folder}:{env['PATH']}"
    return subprocess.run(["sh", "-c", '"$SSH" "$@"; status=$?; echo ended; exit $status', "mpirun", *words], env=env,
                          capture_output=True, text=True, timeout=60)


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


def test_mpich_would_wait_for_ever(tmp_path):
    end = run(tmp_path, 255, MPICH)
    assert end.returncode == -signal.SIGTERM and "ended" not in end.stdout
    assert end.stderr.startswith("ssh-or-end: host1 is lost")
