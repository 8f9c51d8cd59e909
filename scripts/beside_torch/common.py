"""What both sides of the comparison share: the model's sizes, the data, the clock and what a rank writes."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

from mpizero.layout.models import GPTConfig

MODELS = {  # sizes, and samples of a rank
    "large": (GPTConfig(layers=8, d_model=512, heads=8, context=256), 4),
    "small": (GPTConfig(), 16),  # the default of `mpizero.train --model gpt`
    "tiny": (GPTConfig(layers=1, d_model=32, heads=2, context=16), 2),  # to see whether all start
}
LR, WEIGHT_DECAY, SEED = 3e-4, 0.01, 0
WARM_UP = 2  # steps that are not timed


def run(step: Callable[[], float], steps: int, started: int, out: Path, rank: int) -> None:
    """Run WARM_UP + `steps` steps and write what a rank has to say. step: returns its loss, for this rank's own sake
    only after all ranks have its result. started: resident bytes before the model was made."""
    losses, seconds, busy = [], [], []
    for _ in range(WARM_UP + steps):
        begin, used = time.perf_counter(), time.process_time()
        losses.append(step())
        seconds.append(time.perf_counter() - begin)
        busy.append(time.process_time() - used)
    found = {"step_s": statistics.median(seconds[WARM_UP:]), "cpu_s": statistics.median(busy[WARM_UP:]),
             "losses": losses, "start_rss_bytes": started, "peak_rss_bytes": resident("VmHWM")}
    (out / f".{rank}.json").write_text(json.dumps(found))
    (out / f".{rank}.json").rename(out / f"{rank}.json")  # whole, for whoever waits for it


def resident(field: str = "VmRSS") -> int:
    """Resident bytes of this process, as Linux counts them: VmRSS now, VmHWM the most so far."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field + ":")) * 1024
