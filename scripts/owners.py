"""Stage 3 with owners beside stage 3 with shards, for 02_zero_stages.py: volume, imbalance and time."""

from __future__ import annotations

from typing import Any

from claims import Demo, between, equal, holds, of_kind
from mpizero.machine import LECTURE, LECTURE_TOKENS
from mpizero.planner import fullest_and_emptiest
from mpizero.planner.costs import machine_costs
from mpizero.planner.model import blocks
from mpizero.planner.timeline import Timeline, simulate
from mpizero.schedule import StepSettings, set_up
from mpizero.text import table

Summary = dict[str, Any]
NAMES = {"3": "ZeRO-3, all-gather", "3-broadcast": "ZeRO-3, owner broadcasts"}
AHEAD = {"backward_prefetch": 1, "forward_prefetch": 1, "keep_last_unit": True, "limit_all_gathers": 2, "overlap": True}
WORLD, HOST = 64, 8
SLOWER = 1.25, 1.6  # ours: times stage 3's


def compare(shards: Summary, owners: Summary, units: list[int]) -> Demo:
    """The demo. Runs on the same ranks."""
    psi, ranks = sum(units), shards["world_size"]
    both = dict(zip(NAMES, (shards, owners), strict=True))
    kept, sent = ({stage: [row[key] for row in summary[of]] for stage, summary in both.items()}
                  for of, key in (("memory", "after_backward"), ("traffic", "sent_bytes_per_step")))
    ops = {stage: {op: sum(row["by_op"].get(op, 0) for row in summary["traffic"])
                   for op in ("all_gather", "broadcast", "reduce_scatter", "reduce")}
           for stage, summary in both.items()}
    owned = [16 * sum(units[rank::ranks]) for rank in range(ranks)]
    played = {stage: play(stage) for stage in NAMES}
    same = all(shards[key] == owners[key]
               for key in ("weights_sha256", "exp_avg_sha256", "exp_avg_sq_sha256", "losses"))
    rows = [[words, *(each[stage] for stage in NAMES)] for words, each in {
        "bytes of a rank after backward": _from_to(kept), "sent by a rank in a step": _from_to(sent),
        "sent by all ranks": {stage: sum(each) for stage, each in sent.items()},
        "ms a step, in this run": {stage: 1e3 * summary["seconds"] / len(summary["losses"])
                                   for stage, summary in both.items()},
        "13B: seconds of collectives": {stage: each.communication for stage, each in played.items()},
        "13B: seconds of the step": {stage: each.finish for stage, each in played.items()}}.items()]
    return Demo("Stage 3 as the slides draw it: each unit has an owner, which broadcasts it", "3.3, 7.4", [
        holds("Weights, moments and all losses are ZeRO-3's, bit for bit", "ours, after lecture 3.3", "the same bits",
              "the same bits" if same else "others", same, kind="measured"),
        *of_kind(
            "counted",
            equal("Each rank keeps 1/N of everything: so it is on average, right after backward", "lecture 3.3",
                  16 * psi // ranks, sum(kept["3-broadcast"]) / ranks, "bytes"),
            equal("But an owner keeps 16 bytes of each parameter of its units, and no byte of the others", "ours",
                  owned, kept["3-broadcast"], "bytes"),
            equal("Broadcasts and all-gathers have the same volume, all ranks together", "lecture 3.3, 7.4",
                  ops["3"]["all_gather"], ops["3-broadcast"]["broadcast"], "bytes"),
            equal("Gradients take a reduce-scatter, and a part of the sum from each other rank to the owner: 1/N more",
                  "ours", ops["3"]["reduce_scatter"] * (ranks + 1) // ranks, ops["3-broadcast"]["reduce"], "bytes")),
        *of_kind(
            "simulated",
            between(f"Collectives of a step of the 13B model on {WORLD} ranks: two passes to an owner in place of one, "
                    "so of ZeRO-3's seconds 4/3, and what chains take to fill", "ours", *SLOWER,
                    played["3-broadcast"].communication / played["3"].communication, "times"),
            between("The whole step, overlapped: of ZeRO-3's seconds", "ours", 1.0, None,
                    played["3-broadcast"].finish / played["3"].finish, "times"),
            given="the lecture's machine, 8 ranks a host; a chain hands on 2 MiB at a time"),
    ], table(["", *NAMES.values()], rows),
        "units go to owners in turn; ms are of this run and decide nothing; seconds of the 13B model are simulated.",
        data={"kept": kept, "sent": sent, "ops": ops, "simulated": {stage: each.data()["finish"]
                                                                    for stage, each in played.items()}})


def _from_to(ranks: dict[str, list[int]]) -> dict[str, str]:
    return {stage: f"{min(each):,} to {max(each):,}" for stage, each in ranks.items()}


def play(stage: str) -> Timeline:
    """A step of the 13B model, on the rank that updates most."""
    model, settings = blocks(), StepSettings(stage, **AHEAD)
    step = set_up(model.spec, WORLD, settings)
    geometry, _ = fullest_and_emptiest(step.geometry)
    return simulate(step.lists.step(), geometry, machine_costs(model, geometry, LECTURE, LECTURE_TOKENS, HOST))
