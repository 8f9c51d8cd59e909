"""The stages of ZeRO on four real ranks: the same bits from fewer bytes, for as much traffic or half as much again.

Trains the lecture's 5-layer MLP (psi = 32,656) in float16 for 50 steps under every strategy. Each rank's ledger counts
the bytes, its log of messages the traffic.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import claims
from claims import Claim, Demo, between, equal, holds, of_kind, quoted

import figures
from mpizero.schedule import STRATEGIES
from mpizero.schedule.actions import AllGatherParam, Backward
from mpizero.text import table

EXAMPLE = "mpirun -n 4 python scripts/02_zero_stages.py --json stages.json"
RANKS = 4
STEPS, FEW_STEPS = 50, 10  # of four ranks, of fewer
UNITS = [3168, 9312, 9312, 9312, 1552]
PSI = sum(UNITS)
LABEL = {"0": "data parallel", "1": "ZeRO-1", "1-allreduce": "ZeRO-1, all-reduce", "2": "ZeRO-2", "3": "ZeRO-3"}
OWNERS = "3-broadcast"  # has a demo of its own
# a psi + b psi/N bytes a rank, as the lecture has it; both ways of stage 1 keep the same
KEPT = {"0": (16, 0), "1": (4, 12), "1-allreduce": (4, 12), "2": (2, 14), "3": (0, 16)}
VOLUME = {"0": 2, "1": 2, "1-allreduce": 3, "2": 2, "3": 3}  # psi elements that a rank sends, times (N-1)/N
FAR, APART, CLOSE = 1.5, 0.05, 5  # ours: times the loss, difference of parameters, percent of the loss
Summary = dict[str, Any]


@dataclass
class Runs:
    """Runs on the first ranks of `world`, each made once; their summaries are the same on every rank."""

    world: Any
    done: dict[Any, Summary] = field(default_factory=dict)

    def of(self, stage: str, ranks: int = RANKS, whole: bool = False) -> Summary:
        """whole: all parameters in one unit, so that one all-reduce takes the whole gradient."""
        from meshes import summary_of
        if (stage, ranks, whole) not in self.done:
            steps, policy = STEPS if ranks == RANKS else FEW_STEPS, (lambda name: "all") if whole else None
            self.done[stage, ranks, whole] = summary_of(self.world, ranks, stage, steps, policy)
        return self.done[stage, ranks, whole]

    def all(self, ranks: int = RANKS) -> dict[str, Summary]:
        """One for each strategy under which all ranks keep alike."""
        return {stage: self.of(stage, ranks) for stage in STRATEGIES if stage != OWNERS}


def same_bits(runs: Runs) -> Demo:
    """Demo 1."""
    every, whole = runs.all(), runs.of("0", whole=True)
    dp, source = every["0"], "lecture 3.4"
    bits = {True: "the same bits", False: "other bits"}[whole["weights_sha256"] == dp["weights_sha256"]]
    named = {**{LABEL[stage]: summary for stage, summary in every.items()}, "data parallel, one all-reduce": whole}
    rows = [[name, summary["losses"][0], summary["losses"][-1], summary["eval_loss"], summary["weights_sha256"][:16]]
            for name, summary in named.items()]
    return Demo("Four ranks, 50 steps: ZeRO computes what data parallelism computes", "3.4", [
        equal("Parameters, in five units, one for each Linear", "lecture 0.4, exercise 5", UNITS, dp["units"],
              kind="counted"),
        *[_same(LABEL[stage], summary, dp, source) for stage, summary in every.items() if stage != "0"],
        holds("The order of additions matters: one all-reduce of the whole gradient is cut otherwise, so adds in "
              "another order", source, "other bits", bits, bits == "other bits", kind="measured"),
        between("Other bits, but close: the mean of the 50 losses differs by less than", f"ours, after {source}", None,
                CLOSE, 100 * abs(sum(whole["losses"]) / sum(dp["losses"]) - 1), "%", kind="measured"),
    ], table(["strategy", "first loss", "last loss", "held-out loss", "weights, sha256"], rows),
        f"the data (a fixed random teacher) and the initial weights, so the losses are not the lecture's; `close` "
        f"means {CLOSE} %. A single late loss in float16 differs by more, and by how much depends on the processor.",
        {"02-losses": lambda: figures.losses({name: summary["losses"] for name, summary in named.items()})},
        {"losses": {name: summary["losses"] for name, summary in named.items()}})


def _same(label: str, summary: Summary, dp: Summary, source: str) -> Claim:
    """Weights, both moments and every loss."""
    keys = ("weights_sha256", "exp_avg_sha256", "exp_avg_sq_sha256", "losses")
    different = [key for key in keys if summary[key] != dp[key]]
    return holds(f"{label}: weights, moments and all losses are data parallelism's, bit for bit", source,
                 "the same bits",
                 f"others: {', '.join(different)}" if different else "the same bits", not different, kind="measured")


def bytes_kept(runs: Runs) -> Demo:
    """Demo 2."""
    from meshes import peak_of
    memory = {stage: summary["memory"] for stage, summary in runs.all().items()}
    counted = {stage: [row["after_backward"] for row in rows] for stage, rows in memory.items()}
    peaks = {stage: [row["peak"] for row in rows] for stage, rows in memory.items()}
    live = peak_of(runs.world, "3", Backward(1, 0))
    parts = [live["param"] + live["optim"], live["grad"], live["unsharded_param"], live["unsharded_grad"]]
    redundant = {stage: sum(row["by_kind"]["optim"]["after_backward"] for row in rows)
                 for stage, rows in memory.items()}
    off = sum(row["after_backward"] != row["planned_after_backward"] or row["peak"] != row["planned_peak"]
              for rows in memory.values() for row in rows)
    kinds = ("param", "unsharded_grad", "grad", "optim")
    rows = [[LABEL[stage], *[rank_0["by_kind"][kind]["after_backward"] for kind in kinds], rank_0["after_backward"],
             rank_0["after_backward"] / PSI, rank_0["peak"]] for stage, (rank_0, *_) in memory.items()]
    exercise = "lecture 3.5, exercise 5"
    return Demo("Bytes of model states on each rank", "3.5", [
        *of_kind("counted", *[
            equal(f"{LABEL[stage]}, right after backward, each rank: {whole} psi + {divided} psi/N",
                  "formula of lecture 3.5; ZeRO sec. 5", [whole * PSI + divided * PSI // RANKS] * RANKS, counted[stage],
                  "bytes")
            for stage, (whole, divided) in KEPT.items()],
            equal("Bytes a parameter: data parallel, ZeRO-1, 2, 3", "lecture 3.5", [16.0, 7.0, 5.5, 4.0],
                  [counted[stage][0] / PSI for stage in "0123"]),
            equal("Optimizer states of all ranks together, 12 psi each: data parallelism keeps them N times, ZeRO once",
                  "lecture 1", [RANKS, 1, 1, 1], [round(redundant[stage] / (12 * PSI), 6) for stage in "0123"],
                  "copies"),
            equal("Ranks, under all strategies, whose bytes after backward or at the peak are not the planned ones",
                  "ours", 0, off),
            equal("ZeRO-3's peak, each rank", exercise, [161_632] * RANKS, peaks["3"], "bytes"),
            holds("ZeRO-3's peak comes in the backward of unit 1", exercise, "Backward(1)",
                  memory["3"][0]["peak_action"], memory["3"][0]["peak_action"].startswith("Backward(1,")),
            equal("ZeRO-3's peak: shards; reduced gradients of units 4, 3, 2; of unit 1 the whole parameters and the "
                  "whole gradient", exercise, [114_296, 10_088, 18_624, 18_624], parts, "bytes"),
            equal("Data parallelism's peak, each rank: 4 bytes a parameter of the largest unit more",
                  "formula of lecture 2.3", [16 * PSI + 4 * max(UNITS)] * RANKS, peaks["0"], "bytes")),
    ], table(["after backward", "param", "unreduced grad", "grad", "optim", "sum", "/ psi", "peak"], rows),
        figures={"02-states": lambda: figures.counted_states({LABEL[stage]: each[0] for stage, each in memory.items()},
                                                             PSI)},
        data={"memory": memory})


def bytes_sent(runs: Runs) -> Demo:
    """Demo 3."""
    every = runs.all()
    traffic = {stage: summary["traffic"] for stage, summary in every.items()}
    sent = {stage: [row["sent_bytes_per_step"] for row in rows] for stage, rows in traffic.items()}
    kept = {stage: summary["memory"][0]["after_backward"] for stage, summary in every.items()}
    off = sum(row["steps_off_plan"] for rows in traffic.values() for row in rows)
    rows = [[LABEL[stage], *[rank_0["by_op"].get(op, 0) for op in ("reduce_scatter", "all_gather", "all_reduce")],
             sent[stage][0], sent[stage][0] / (2 * PSI), rank_0["messages_per_step"]]
            for stage, (rank_0, *_) in traffic.items()]
    return Demo("Bytes that each rank sends in a step", "4.1, 4.2", [
        *[equal(f"{LABEL[stage]} sends {volume} psi (N-1)/N elements: each rank, over 2 psi bytes",
                "lecture 4.1, 4.2; ZeRO sec. 7",
                [{2: 1.5, 3: 2.25}[volume]] * RANKS, [nbytes / (2 * PSI) for nbytes in sent[stage]], kind="counted")
          for stage, volume in VOLUME.items()],
        equal("ZeRO-1 as the slides draw it, with an all-reduce, sends so many times what the paper's does",
              "lecture 4.2, exercise 3", 1.5, sent["1-allreduce"][0] / sent["1"][0], "times", kind="counted"),
        equal("ZeRO-1 as the slides draw it keeps as much as the paper's", "lecture 4.2", kept["1"],
              kept["1-allreduce"], "bytes", kind="counted"),
        equal("Messages of ZeRO-3: three collectives a unit, each of N - 1 rounds", "formula of lecture 4.2",
              3 * len(UNITS) * (RANKS - 1), traffic["3"][0]["messages_per_step"], kind="counted"),
        equal("Steps, under all strategies and of all ranks, that sent other than the planned bytes", "ours", 0, off,
              kind="counted"),
    ], table(["strategy", "reduce-scatter", "all-gather", "all-reduce", "sent", "/ 2 psi", "messages"], rows)
        + "\nbytes, without the few that ranks exchange to agree on overflow and norm",
        figures={"02-traffic": lambda: figures.counted_traffic({LABEL[stage]: each[0]["by_op"]
                                                                for stage, each in traffic.items()}, PSI)},
        data={"traffic": traffic})


def forgotten_gather(runs: Runs) -> Demo:
    """Demo 4."""
    from meshes import run_without
    right, wrong, source = runs.of("2"), run_without(runs.world, "2", STEPS, AllGatherParam), "lecture 4.3"
    ours = f"ours, after {source}"  # where the bound lies
    found = bool(wrong["mismatches"]) and right["replicas_equal"]
    rows = [[name, summary["losses"][-1], summary["eval_loss"], summary["replicas_equal"]]
            for name, summary in (("right", right), ("without the all-gather after the update", wrong))]
    return Demo("A common mistake: ZeRO-2 without the all-gather after the update", "4.3", [
        equal("No error, no crash: steps that ran", source, STEPS, len(wrong["losses"]), kind="measured"),
        equal("Each rank: the share of parameters that others own, and that keep their initial value", source,
              [0.75] * RANKS, wrong["stale"], kind="measured"),
        quoted("On the lecture's data the last loss is, and the right one", source, [1.68, 0.89]),
        between("The loss is far worse here too: the last one over the right one", ours, FAR, None,
                wrong["losses"][-1] / right["losses"][-1], "times", kind="measured"),
        between("The same on held-out samples", ours, FAR, None, wrong["eval_loss"] / right["eval_loss"], "times",
                kind="measured"),
        quoted("On the lecture's data replicas differ by up to", source, "0.08 to 0.09"),
        between("Replicas drift apart here too: largest difference", ours, APART, None, wrong["largest_difference"],
                kind="measured"),
        holds("Comparing checksums between ranks finds it, and finds nothing in the right run", source, "found",
              wrong["mismatches"][0] if found else "not so", found, kind="measured"),
        holds("The validator refuses such a list of actions before it runs", "ours", "refused",
              wrong["refused"] or "accepted", bool(wrong["refused"]), kind="planned"),
    ], table(["ZeRO-2", "last loss", "held-out loss", "replicas equal"], rows),
        f"the data, so the losses; that {FAR} times the loss is far, and {APART} a drift.",
        data={key: wrong[key] for key in ("losses", "eval_loss", "stale", "largest_difference", "mismatches")})


def fewer_ranks(runs: Runs) -> Demo:
    """Demo 5."""
    kept = {1: (522_496, 522_496, 522_496, 522_496), 2: (522_496, 326_560, 293_904, 261_248),
            3: (522_528, 261_264, 217_720, 174_176)}
    sent = {1: {2: 0, 3: 0}, 2: {2: 65_312, 3: 97_968}, 3: {2: 87_088, 3: 130_632}}  # by volume
    found, rows = [], []
    for ranks in (1, 2, 3):
        every = runs.all(ranks)
        padded = every["0"]["padded_psi"]
        found.append(equal(f"N = {ranks}: elements of padding", "lecture 3.6", 2 if ranks == 3 else 0, padded - PSI,
                           kind="counted"))
        for stage, summary in every.items():
            rank_0 = [summary["memory"][0]["after_backward"], summary["traffic"][0]["sent_bytes_per_step"]]
            rows.append([ranks, LABEL[stage], padded, *rank_0, summary["traffic"][0]["messages_per_step"]])
            found.append(equal(f"N = {ranks}, {LABEL[stage]}: bytes after backward, bytes sent in a step, with "
                               f"psi' = {padded:,}", "formula of lecture 3.6; ZeRO sec. 5, 7",
                               [kept[ranks][int(stage[0])], sent[ranks][VOLUME[stage]]], rank_0, kind="counted"))
            if stage != "0":
                found.append(_same(f"N = {ranks}, {LABEL[stage]}", summary, every["0"], "lecture 3.4, 3.6"))
    return Demo("Fewer ranks, and padding", "3.6", found,
                table(["N", "strategy", "psi'", "after backward", "sent a step", "messages"], rows),
                f"{FEW_STEPS} steps; `python -m mpizero.verify` runs {STEPS} on every number of ranks.",
                data={"rows": rows})


def owner_broadcast(runs: Runs) -> Demo:
    """Demo 6."""
    from owners import compare
    return compare(runs.of("3"), runs.of(OWNERS), UNITS)


def out_of_memory(runs: Runs) -> Demo:
    """Demo 7."""
    from fragments import fragments
    return fragments(runs.world)


DEMOS = (same_bits, bytes_kept, bytes_sent, forgotten_gather, fewer_ranks, owner_broadcast, out_of_memory)


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
