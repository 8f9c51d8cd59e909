"""How much memory a rank needs, as the kernel counts it, with states in files and in memory: the same training twice.

    mpirun -n 2 python scripts/resident_memory.py --nvme DIR

A GPT of 1.2 GB of states (float16, Adam) takes two steps at stage 3, first with everything in files, then in memory.
VmHWM is the most that was ever resident of a process, interpreter and libraries included: so the small run comes first.
Status 1 unless weights are the same and the first run's peak is below a third of the second's.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path

from mpizero.cli import spelled
from mpizero.comm import Group, run_main, start
from mpizero.engine.config import TrainConfig
from mpizero.engine.export import sha256
from mpizero.engine.gather import gather_data
from mpizero.engine.job import prepare
from mpizero.engine.trainer import run_steps
from mpizero.layout import MASTER
from mpizero.output import printer
from mpizero.quantities import in_units

CONFIG = TrainConfig(model="gpt", stage="3", layers=6, d_model=1024, heads=16, context=16, batch_size=1, steps=2,
                     data=argparse.__file__, wrap="layer")


def peak_bytes() -> int:
    """Of this process, since it began."""
    found = re.search(r"^VmHWM:\s+(\d+) kB$", Path("/proc/self/status").read_text(encoding="ascii"), re.MULTILINE)
    assert found is not None, "this system does not tell VmHWM"
    return int(found[1]) * 1024


def trained(config: TrainConfig, world: Group) -> dict[str, object]:
    """One run, and what it took on each rank."""
    before, job = peak_bytes(), prepare(config, world)
    run_steps(job)
    peak = peak_bytes()
    digest = sha256(job.task.model.spec, job.state.units, MASTER.name)
    return {"states_bytes": 16 * job.wrapping.padded_numel, "weights_sha256": digest,
            "ranks": gather_data(world, {"before": before, "peak": peak, "host_peak": job.tiers["host"].peak_bytes})}


@spelled()
def main() -> int:
    """Train, print, write; 1 where it is not as it should be."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nvme", metavar="DIR", default=".", help="the folder of the files (default: this one)")
    parser.add_argument("--layers", type=int, default=CONFIG.layers, help=f"of the GPT ({CONFIG.layers})")
    parser.add_argument("--json", metavar="FILE")
    arguments = parser.parse_args()
    world = start()
    config = TrainConfig(**{**vars(CONFIG), "layers": arguments.layers})
    files = trained(TrainConfig(**{**vars(config), "offload": "params=nvme,optimizer=nvme", "nvme": arguments.nvme}),
                    world)
    memory = trained(config, world)
    say = printer(world.rank)
    say(f"{in_units(files['states_bytes'])} of states on {world.size} ranks; the most resident of a rank:")
    peaks = [max(rank["peak"] for rank in run["ranks"]) for run in (files, memory)]
    for name, run, peak in zip(("in files", "in memory"), (files, memory), peaks, strict=True):
        say(f"  {name:<10} {in_units(peak):>10}   weights {run['weights_sha256'][:16]}")
    say(f"  {peaks[0] / peaks[1]:.0%}")
    if arguments.json and world.rank == 0:
        Path(arguments.json).write_text(json.dumps({"files": files, "memory": memory}, indent=1), encoding="utf-8")
    return int(files["weights_sha256"] != memory["weights_sha256"] or 3 * peaks[0] >= peaks[1])


if __name__ == "__main__":
    sys.exit(run_main(main))
