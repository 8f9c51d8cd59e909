"""What ranks counted, beside the formulas of 01 and 04: claims about runs that small_runs.py has made."""

from __future__ import annotations

from typing import Any

from claims import Claim, between, equal, holds, of_kind

from mpizero.papers import activations as act
from mpizero.papers import intensity as ait
from mpizero.papers.partition import Partition
from mpizero.papers.states import working_memory

Runs = dict[str, Any]  # {} where none were made: then there is nothing to claim
BETWEEN = 2, 1.1  # ours: loading is at least N/2 times as fast, and no more than N times but for noise


def states(runs: Runs) -> list[Claim]:
    """Of 01's demo 1."""
    if not runs:
        return []
    run, source = runs["places"]["replicated"], "lecture 2.3; ZeRO sec. 3.1"
    return of_kind("counted", equal(
        "The 5-layer MLP under data parallelism, right after backward: bytes a parameter of the fullest rank, and of "
        "the emptiest", source, [16.0, 16.0], [pick(run["after_backward"]) / run["psi"] for pick in (max, min)]),
        equal("The float32 gradient of its largest unit, at its peak", "lecture 2.3", 37_248, max(run["grad_fp32"]),
              "bytes"))


def residual(runs: Runs) -> list[Claim]:
    """Of 01's demo 4."""
    if not runs:
        return []
    kept, tiles, buckets = runs["kept_inputs"], runs["tiles"], runs["buckets"]
    formula = [act.recompute_checkpoints(each["d_model"], each["batch_size"], each["context"], each["layers"],
                                         each["interval"]) for each in kept]
    whole = working_memory(tiles[0]["hidden"]) // 4  # of a Linear hd -> hd
    return of_kind(
        "counted",
        equal("Recompute keeps 2 bsz seq hd nl / ci bytes: a GPT of 4 blocks, ci = "
              + ", ".join(str(each["interval"]) for each in kept), "formula of lecture 6.1; ZeRO-Infinity sec. 3",
              formula, [each["peak"] for each in kept], "bytes"),
        holds("In T tiles a Linear takes 1/T of its parameters and gradients whole, and its bias: hd = "
              f"{tiles[0]['hidden']}, T = " + ", ".join(str(each["tiles"]) for each in tiles),
              "formula of lecture 6.4; ZeRO-Infinity sec. 5.1.3",
              ", ".join(f"{whole // each['tiles']:,}" for each in tiles) + " bytes, and at most 4 hd more",
              ", ".join(f"{each['param'] + each['grad']:,}" for each in tiles),
              all(0 <= each["param"] + each["grad"] - whole // each["tiles"] <= 4 * each["hidden"] for each in tiles)),
        holds("Workspace of what reduces a bucket (C_B) does not depend on the model: psi = "
              + ", ".join(f"{each['psi']:,}" for each in buckets), "lecture 6.2; ZeRO sec. 6.2",
              f"the same, at most twice the bucket's {buckets[0]['bucket']:,}",
              ", ".join(f"{each['workspace']:,}" for each in buckets) + " bytes",
              len({each["workspace"] for each in buckets}) == 1 and
              buckets[0]["bucket"] <= buckets[0]["workspace"] <= 2 * buckets[0]["bucket"]))


def partitions(runs: Runs, best: Partition, infinity: Partition) -> list[Claim]:
    """Of 04's demo 1: the enumeration's choices, run."""
    if not runs:
        return []
    places, source = runs["places"], "lecture 7.1; ZeRO-Offload sec. 3"
    run, far = places["optimum"], places["infinity"]
    same = len({each["weights_sha256"] for each in places.values()}) == 1
    return [
        *of_kind(
            "counted",
            equal("The optimum, run at stage 2: bytes that all ranks move in a step, over psi; the enumeration's",
                  source, float(best.traffic), sum(run["moved"]) / run["psi"], "M bytes"),
            equal("It leaves on each rank's device, over psi; the enumeration's", source, float(best.device_bytes),
                  max(run["at_rest"]) / run["psi"], "M bytes"),
            equal("ZeRO-Infinity's choice, run at stage 3: moved in a step, over psi; the enumeration's",
                  "lecture 7.1; ZeRO-Infinity sec. 5", float(infinity.traffic), sum(far["moved"]) / far["psi"],
                  "M bytes"),
            equal("It leaves on the device", "lecture 7.1; ZeRO-Infinity sec. 5", float(infinity.device_bytes),
                  max(far["at_rest"]) / far["psi"], "M bytes"),
            equal("Most bytes in the host's memory, optimum and ZeRO-Infinity's choice: as planned", "ours",
                  [max(each["planned_peak"]) for each in (run, far)], [max(each["peak"]) for each in (run, far)],
                  "bytes")),
        holds("Weights are those of the run without offload, bit for bit", "ours, after lecture 7.1", "the same bits",
              "the same bits" if same else "others", same, kind="measured")]


def intensity(runs: Runs) -> list[Claim]:
    """Of 04's demo 3."""
    if not runs:
        return []
    run, kept = runs["params"], runs["kept_inputs"]
    tokens, source = (run["context"], run["batch_size"]), "formula of lecture 7.3; ZeRO-Infinity sec. 4"
    found = runs["ranks"] * run["moved"]  # of all ranks: each has its own operations, and moves 1/N
    return of_kind(
        "counted",
        between("AIT of parameters and gradients, a GPT at stage 3: operations of a step over the bytes that all ranks "
                "moved; of seq bsz", source, 95, 105, 100 * run["operations"] / found / ait.ait_params(*tokens), "%"),
        equal("Activation checkpoints are stored and loaded once: bytes that a rank moved, of twice 2 bsz seq hd nl / "
              "ci, ci = " + ", ".join(str(each["interval"]) for each in kept), source,
              [2 * act.recompute_checkpoints(each["d_model"], each["batch_size"], each["context"], each["layers"],
                                             each["interval"]) for each in kept],
              [each["moved"] for each in kept], "bytes"))


def loading(runs: Runs) -> list[Claim]:
    """Of 04's demo 4."""
    if not runs:
        return []
    run, ranks = runs["loading"], runs["ranks"]
    low, high = BETWEEN
    return [
        equal(f"On {ranks} ranks the busiest link carries, of what an owner's does, by the lists", "lecture 7.4",
              round(1 / ranks, 12), round(1 / run["planned_ratio"], 12), kind="planned"),
        between(f"On {ranks} ranks with limited links all units are whole faster than by owner's broadcast, N = "
                f"{ranks} times but for waits", "lecture 7.4; ZeRO-Infinity sec. 6.1", ranks / low, ranks * high,
                run["ratio"], "times", kind="measured"),
        between("and with each rank's link no faster than that: seconds over those of 1/N over a link", "ours", 1, None,
                run["seconds"]["3"] / run["planned_seconds"]["3"], kind="measured")]


def largest(runs: Runs) -> list[Claim]:
    """Of 04's demo 5: the bytes a parameter by which sizes are divided."""
    if not runs:
        return []
    places, source = runs["places"], "lecture 7.5"
    kept = [max(places[name][key]) / places[name]["psi"]
            for name, key in (("replicated", "after_backward"), ("optimum", "at_rest"))]
    return of_kind("counted", equal("Bytes of a device by which the first two bounds are divided: replicated, and "
                                    "ZeRO-Offload's, right after backward and at rest", source,
                                    [float(each.bytes_per_param) for each in ait.largest_models()[:2]], kept))
