"""Training with and without float32 master weights: 16-bit weights swallow small updates, and the loss shows it.

Trains the lecture's 5-layer MLP (psi = 32,656) under ZeRO-2 on four ranks both ways, with a learning rate of 1e-4, and
counts after every update the weights that it did not move.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import claims
from claims import Demo, between, equal, holds, of_kind, rounds_to

import figures
from mpizero.text import table

EXAMPLE = "mpirun -n 4 python scripts/07_master_weights.py --json master.json"
RANKS, PSI = 4, 32_656
STEPS, RATE = 200, 1e-4
WEIGHT, UPDATES = 0.5, 1000  # of demo 1
MOST, FEW, WORSE = 75, 5, 0.08  # ours: percent of the weights that do not move, at the end; nats
WAYS = {"with": False, "without": True}
Counted = dict[str, Any]


@dataclass
class Runs:
    """Runs on the ranks of `world`, each made once; what they counted is the same on every rank."""

    world: Any
    done: dict[Any, Counted] = field(default_factory=dict)

    def of(self, dtype: str, way: str, optimizer: str = "adam") -> Counted:
        from meshes import watch
        key = dtype, way, optimizer
        if key not in self.done:
            self.done[key] = watch(self.world, steps=STEPS, lr=RATE, dtype=dtype, optimizer=optimizer, stage="2",
                                   no_master_weights=WAYS[way])
        return self.done[key]


def one_weight(runs: Runs) -> Demo:
    """Demo 1."""
    from meshes import descend
    ends = {way: descend(WEIGHT, RATE, UPDATES, WAYS[way]) for way in WAYS}
    source = "lecture 2.2"
    return Demo("0.5 + 1e-4 == 0.5: one weight, by the optimizer that trains", "2.2", [
        equal(f"{UPDATES} updates of 1e-4 of a float16 weight of 0.5 without master weight", source, 0.5,
              ends["without"]),
        rounds_to("The same with a float32 master weight, rounded to float16", source, "0.600", ends["with"]),
    ], table(["float16 weight", "before", "after"],
             [[f"{way} master weight", WEIGHT, end] for way, end in ends.items()]), data=ends)


def trained(runs: Runs) -> Demo:
    """Demo 2."""
    from meshes import has_bfloat16
    dtypes = ["float16", *(["bfloat16"] if has_bfloat16() else [])]
    every = {f"{dtype}, {way}": runs.of(dtype, way) for dtype in dtypes for way in WAYS}
    percent = {name: [100 * run["unmoved"][at] for at in (0, len(run["unmoved"]) // 2, -1)]
               for name, run in every.items()}
    rows = [[name, run["k"], *percent[name], run["losses"][-1], run["eval_loss"]] for name, run in every.items()]
    own, master, source = every["float16, without"], every["float16, with"], "lecture 2.2"
    first, middle, last = percent["float16, without"]
    return Demo(f"{STEPS} steps of Adam, lr {RATE:g} falling to a tenth: with and without master weights", "2.2", [
        *of_kind("counted", *[
            equal(f"{way.capitalize()} master weights each rank keeps after backward 2 psi + (2 + K) psi/N: K = {k}",
                  "formula of lecture 2.3, 3.5", [2 * PSI + (2 + k) * PSI // RANKS] * RANKS,
                  every[f"float16, {way}"]["after_backward"], "bytes")
            for way, k in (("with", 12), ("without", 8))],
            between("Without, in float16: of the weights the last update leaves where they were", source, MOST, None,
                    last, "%"),
            between("With: of the master weights", source, None, FEW, percent["float16, with"][-1], "%"),
            holds("Without: ever more, as the learning rate falls", source, "first update < middle < last",
                  f"{first:.1f} %, {middle:.1f} %, {last:.1f} %", first < middle < last)),
        between("Held-out loss without, over that with", source, WORSE, None, own["eval_loss"] - master["eval_loss"],
                "nats", kind="measured"),
        holds("Both begin alike: the first loss", source, "the same bits",
              "the same bits" if own["losses"][0] == master["losses"][0] else "others",
              own["losses"][0] == master["losses"][0], kind="measured"),
    ], table(["master weights", "K", "% unmoved: first", "middle", "last", "last loss", "held-out loss"], rows),
        f"the data, the learning rate, and what counts as most ({MOST} %), few ({FEW} %) and worse ({WORSE} nats). "
        "bfloat16 is shown where it is installed. The same as logs: `mpirun -n 4 python -m mpizero.train --lr "
        f"{RATE:g} --steps {STEPS} --log with`, again with `--no-master-weights --log without`; one picture of both: "
        "`python -m mpizero.report with without`.",
        {"07-unmoved": lambda: figures.unmoved({name: run["unmoved"] for name, run in every.items()},
                                               {name: run["losses"] for name, run in every.items()})},
        {"runs": every})


def lion(runs: Runs) -> Demo:
    """Demo 3."""
    own, master = (runs.of("float16", way, "lion") for way in ("without", "with"))
    rows = [[f"{way} master weights", run["k"], run["large"], run["large_moved"], run["small_moved"], run["eval_loss"]]
            for way, run in (("without", own), ("with", master))]
    return Demo(f"Every update of Lion is as long as the learning rate, at most {RATE:g}", "2.2", [
        *of_kind("counted",
                 equal(f"Without master weights: of those above 0.25, where half a step of float16 is 2^-13 = 1.2e-4 "
                       f"or more, so many moved in {STEPS} steps", "formula of lecture 2.2", 0, own["large_moved"]),
                 between("With them: of these weights the master weights moved", "lecture 2.2", 95, None,
                         100 * master["large_moved"] / max(master["large"], 1), "%"),
                 equal("Lion keeps one average: K without master weights, and with", "ours", [4, 8],
                       [own["k"], master["k"]], "bytes a parameter")),
    ], table(["Lion", "K", "began above 0.25", "of these moved", "moved of the others", "held-out loss"], rows),
        "the optimizer: arXiv:2302.06675.", data={"without": own, "with": master})


DEMOS = (one_weight, trained, lion)


def main(argv: Sequence[str] | None = None) -> int:
    """0 if every claim agrees, on every rank. Ranks beyond the fourth wait."""
    asked = claims.options(__doc__, EXAMPLE, len(DEMOS), argv)
    from meshes import start_with, together, where

    from mpizero.comm import barrier
    world = start_with(RANKS, EXAMPLE)
    group, status = world.subgroup(range(RANKS), "the first four"), 0
    if group is not None:
        runs = Runs(group)
        status = claims.tell(asked, __doc__, [partial(demo, runs) for demo in DEMOS], where(world),
                             speaks=world.rank == 0)
    barrier(world)
    return together(world, status)


if __name__ == "__main__":
    from mpizero.comm import run_main
    run_main(main)
