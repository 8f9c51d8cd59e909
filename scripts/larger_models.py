"""How large a model trains on devices of one size: with sharding, with the host's memory, with files.

    python scripts/larger_models.py

A GPT, one four times and one sixteen times as deep are started by mpirun -n 4, each by the command that the script
prints, all with the same `--device-memory` and `--host-memory`. Status 1 unless every run ends as it should: those that
train have done all steps with finite losses and say as many bytes as were planned, the others die with status 2, out of
the memory that the table names.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mpizero.layout.models import GPTConfig, gpt_spec
from mpizero.text import table

ROOT = Path(__file__).resolve().parents[1]
RANKS, STEPS = 4, 2
SIZES = {"d_model": 128, "heads": 4, "context": 32}
SHARED = f"--model gpt --d-model 128 --heads 4 --context 32 --batch-size 1 --steps {STEPS} --recompute " \
         "--device-memory 5MB --host-memory 16MB --data mpizero/errors.py"
TRAINS, DEVICE, HOST = "trains", "out of device memory", "out of host memory"
CPU, ALL_CPU, ALL_NVME = "optimizer=cpu", "params=cpu,optimizer=cpu", "params=nvme,optimizer=nvme"
# An mpirun must not take what an outer one tells its ranks for its own. Open MPI refuses root and crowded cores.
LAUNCHERS = ("OMPI_", "OPAL_", "PMIX_", "PMI_", "PRTE_", "HYDRA_", "HYDI_", "MPI_LOCAL", "MPIEXEC_")
OPEN_MPI = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_mpi_yield_when_idle": "1",
            "PRTE_MCA_rmaps_default_mapping_policy": "slot:oversubscribe",  # Open MPI 5; the next line: 4
            "OMPI_MCA_rmaps_base_oversubscribe": "1", "OMPI_MCA_hwloc_base_binding_policy": "none"}


class Cell(NamedTuple):
    """A model of so many layers, how its states are kept, and how the run must end."""

    layers: int
    stage: str
    offload: str | None
    ends: str

    @property
    def psi(self) -> int:
        return gpt_spec(GPTConfig(layers=self.layers, **SIZES)).psi


CELLS = (
    Cell(4, "0", None, DEVICE), Cell(4, "1", None, DEVICE), Cell(4, "2", None, DEVICE), Cell(4, "3", None, TRAINS),
    Cell(17, "3", None, DEVICE), Cell(17, "3", CPU, TRAINS), Cell(17, "3", ALL_CPU, TRAINS),
    Cell(67, "3", None, DEVICE), Cell(67, "3", CPU, DEVICE), Cell(67, "3", ALL_CPU, HOST),
    Cell(67, "3", ALL_NVME, TRAINS),
)


class Ended(NamedTuple):
    """How a run ended, the last line of its errors, and its summary, if it wrote one."""

    status: int
    error: str
    summary: dict[str, Any] | None


def words(cell: Cell, folder: str) -> list[str]:
    """The flags of `mpizero.train`."""
    offload = ["--offload", cell.offload] if cell.offload else []
    files = ["--nvme", folder] if cell.offload == ALL_NVME else []
    return ["--stage", cell.stage, *offload, *files, "--layers", str(cell.layers), *SHARED.split()]


def run(cell: Cell, folder: Path, limit: float) -> Ended:
    """Start it, in `folder`. A run that takes more than `limit` seconds is an error."""
    summary = folder / "summary.json"
    summary.unlink(missing_ok=True)
    mpirun = shutil.which("mpirun", path=f"{sys.prefix}/bin:{os.environ.get('PATH', '')}") or "mpirun"
    environ = {name: value for name, value in os.environ.items() if not name.startswith(LAUNCHERS)}
    environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), environ.get("PYTHONPATH"))))
    done = subprocess.run([mpirun, "-n", str(RANKS), sys.executable, "-m", "mpizero.train", *words(cell, str(folder)),
                           "--json", str(summary)], cwd=ROOT, env={**environ, **OPEN_MPI}, stdin=subprocess.DEVNULL,
                          stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace",
                          timeout=limit)
    told = [line for line in done.stderr.splitlines() if "error:" in line]
    found = json.loads(summary.read_text()) if summary.exists() and summary.stat().st_size else None
    return Ended(done.returncode, told[-1] if told else "", found)


def judge(cell: Cell, ended: Ended) -> str:
    """How it ended, in the words of `TRAINS`, `DEVICE` and `HOST`; or what is odd."""
    if ended.status == 2:
        return next((tier for tier in (DEVICE, HOST) if f"{tier}: the run needs" in ended.error), ended.error)
    if ended.status or ended.summary is None:
        return f"status {ended.status}: {ended.error}"
    losses = ended.summary["losses"]
    if len(losses) != STEPS or not all(isinstance(loss, float) and math.isfinite(loss) for loss in losses):
        return f"losses {losses}"
    off = [f"{tier} off its plan" for tier in ("device_peak", "host_peak", "nvme_peak")
           if any(rank[tier] != rank[f"planned_{tier}"] for rank in ended.summary["memory"])]
    return ", ".join(off) or TRAINS


def needs(ended: Ended) -> list[int | str]:
    """Bytes of a rank's device, host and file; of a run that died of what it has too little of."""
    if ended.summary is not None:
        return [max(rank[f"{tier}_peak"] for rank in ended.summary["memory"]) for tier in ("device", "host", "nvme")]
    found = re.search(r"out of (device|host) memory: the run needs ([\d,]+) bytes", ended.error)
    return [int(found[2].replace(",", "")) if found and found[1] == tier else "-"
            for tier in ("device", "host", "nvme")]


def main(argv: Sequence[str] | None = None) -> int:
    """Status 0 if every cell ended as it should, 1 if one did not."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nvme", metavar="DIR", help="make the files below this folder (the system's temporary one)")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds that a run may take (600)")
    options = parser.parse_args(argv)
    rows, wrong = [], list[str]()
    with tempfile.TemporaryDirectory(prefix="mpizero-larger-", dir=options.nvme) as folder:
        for cell in CELLS:
            print(f"mpirun -n {RANKS} python -m mpizero.train {shlex.join(words(cell, 'DIR'))}", flush=True)
            ended = run(cell, Path(folder), options.limit)
            found = judge(cell, ended)
            rows.append([cell.psi, f"{cell.psi / CELLS[0].psi:.2f}", cell.stage, cell.offload or "-", found,
                         *needs(ended)])
            if found != cell.ends:
                wrong.append(f"{cell.layers} layers, stage {cell.stage}, {cell.offload}: {found}; it should be: "
                             f"{cell.ends}")
    print("\n" + table(["parameters", "times", "stage", "--offload", "ends", "device", "host", "file"], rows,
                       right=["times", "device", "host", "file"]))
    print("\n".join(["", *wrong] if wrong else ["\nall as they should"]))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
