"""What a delayed parameter update does to learning: one run without, one that delays after warm-up, one from step 0.

    mpirun -n 2 python scripts/delayed_update.py runs/delay [flags of mpizero.train, as --model gpt --steps 300]
    python -m mpizero.report runs/delay/never runs/delay/after-warm-up runs/delay/from-0

ZeRO-Offload (arXiv:2101.06840), sec. 5.2: step i's update runs beside step i + 1, which reads parameters of one update
less; the paper delays after some tens of steps. The lecture's exercise 8.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import claims  # noqa: F401  finds mpizero

from mpizero import train
from mpizero.cli import Parser, add_train_flags, spelled, train_config
from mpizero.comm import run_main, start
from mpizero.engine.resolve import resolve
from mpizero.text import table

LAST = 10  # steps of which the mean is told
NEVER, WARM, ALWAYS = "never", "after-warm-up", "from-0"


@spelled()
def main(argv: Sequence[str] | None = None) -> int:
    """Every rank runs it; rank 0 prints. The status of the first run that failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="for the three logs")
    options, flags = parser.parse_known_args(argv)
    flags = ["--model", "gpt", *flags]
    warmup = _warmup(flags)
    world = start()
    for name, delay in ((NEVER, None), (WARM, warmup), (ALWAYS, 0)):
        more = [] if delay is None else ["--delayed-update-after", str(delay)]
        status = train.main([*flags, "--offload", "optimizer=cpu", *more, "--log", str(options.folder / name)])
        if status:
            return status
    if world.rank == 0:
        print("\n" + _table(options.folder, warmup), flush=True)
        print("\npython -m mpizero.report " + " ".join(str(options.folder / name) for name in (NEVER, WARM, ALWAYS)))
    return 0


def _warmup(flags: Sequence[str]) -> int:
    """Steps of warm-up of the runs."""
    parser = Parser()
    add_train_flags(parser)
    return resolve(train_config(parser, flags)).optim.warmup


def _table(folder: Path, warmup: int) -> str:
    rows: list[tuple[Any, ...]] = []
    for name, delay in ((NEVER, "-"), (WARM, warmup), (ALWAYS, 0)):
        summary = json.loads((folder / name / "summary.json").read_text())
        losses, ranks = summary["losses"], summary["seconds_by"]
        update = sum(rank["update"] for rank in ranks) / sum(sum(rank.values()) for rank in ranks)
        rows.append((name, delay, sum(losses[-LAST:]) / len(losses[-LAST:]), summary["eval_loss"], summary["seconds"],
                     f"{100 * update:.1f} %"))
    return table(("delayed", "from step", f"loss of the last {LAST}", "held-out loss", "seconds", "in updates"), rows)


if __name__ == "__main__":
    run_main(main)
