"""What bandwidth states need off the device, and how it is had. Demos 3 and 4 of 04_offload.py."""

from __future__ import annotations

from functools import cache
from math import isclose

import counted
from claims import Demo, between, definition, equal, holds, of_kind, rounds_to

import figures
from mpizero.machine import RECOMPUTE_FLOPS, TRAIN_FLOPS
from mpizero.papers import intensity as ait
from mpizero.planner import plan_memory, plan_traffic
from mpizero.planner.model import flat, gpt
from mpizero.schedule import StepSettings, set_up
from mpizero.text import table

DGX2 = 16  # GPUs
TIER = {"cpu": ("CPU memory", 3.0), "nvme": ("NVMe", 1.6)}  # GB/s of a link when all read, as printed
PASSED_ON = 70.0  # GB/s between GPUs, as printed
PIECES = 2000  # of a parameter that is loaded piece by piece


def bandwidth_needs(runs: counted.Runs) -> Demo:
    """Demo 3."""
    needed = {need.what: need.bandwidth for need in ait.needs() if need.given == "efficiency"}
    source, formula = "lecture 7.3; ZeRO-Infinity sec. 4", "formula of lecture 7.3; ZeRO-Infinity sec. 4"
    exercise, paper = "lecture exercise 7", "ZeRO-Infinity sec. 4.2"
    walked, state = _walked_ait(), _walked_states()
    block = sum(param.numel for param in gpt(1, 2048, 16, 50_257).spec.params if param.name.startswith("h."))
    activations = RECOMPUTE_FLOPS * block / (2 * 2 * 2048)  # an input of float16 a block, stored and loaded
    rows = [[need.what, need.ait, need.bandwidth / 1e9, 100 * need.efficiency, need.given] for need in ait.needs()]
    return Demo("What bandwidth must a slow memory have?", "7.3", [
        *of_kind("planned",
                 equal("AIT of parameters and gradients, seq bsz: 6 operations a parameter and token over the bytes "
                       "that a step at stage 3 gathers and reduces", formula, ait.ait_params(ait.SEQ, 1), walked),
                 equal("AIT of optimizer states, seq bsz / 4: 8 operations over what an update reads and writes",
                       formula, ait.ait_optimizer(ait.SEQ, 1), RECOMPUTE_FLOPS * ait.SEQ / (2 * state)),
                 between("AIT of activation checkpoints, width 2048, 24 hd: 8 operations over a block's input twice; "
                         "biases and norms add up to", formula, 0, 0.1,
                         100 * (activations / ait.ait_activations(2048) - 1), "%")),
        *counted.intensity(runs),
        *of_kind("simulated",
                 between("70 GB/s suffice for parameters and gradients at batch 1: computing takes of the time", source,
                         50, None, _share(walked, 70e9), "%"),
                 between("1.5 TB/s suffice for optimizer states at batch 2", source, 90, None,
                         _share(RECOMPUTE_FLOPS * 2 * ait.SEQ / (2 * state), 1.5e12), "%"),
                 between("2 GB/s suffice for activation checkpoints of width 2048", paper, 50, None,
                         _share(activations, 2e9), "%"),
                 between("One PCIe link of 12 GB/s does not for parameters and gradients at batch 1", "lecture 7.3",
                         None, 50, _share(walked, ait.PCIE), "%"),
                 given="70 TFLOP/s, no overlap"),
        rounds_to("Parameters and gradients at batch 2 need for 90 %", exercise, "308",
                  needed["parameters and gradients, batch 2"] / 1e9, "GB/s"),
        rounds_to("Optimizer states at batch 2 need for 90 % (the paper: about 1.5)", exercise, "1.23",
                  needed["optimizer states, batch 2"] / 1e12, "TB/s"),
        between("Activation checkpoints of width 8192 need for 50 % less than", paper, None, 1,
                ait.bandwidth_for(0.5, ait.ait_activations(8192)) / 1e9, "GB/s"),
    ], table(["what", "AIT", "bandwidth GB/s", "efficiency %", "given"], rows),
        "70 TFLOP/s of a V100 in practice and sequence 1024 are the paper's; that an efficiency below 50 % is what "
        "`the difficulty` means is ours, and so are the numbers of per cent (50.6 at 70 GB/s).",
        {"04-efficiency": figures.efficiency}, {"needs": [vars(need) for need in ait.needs()]})


@cache
def _moved() -> tuple[int, int, int]:
    """Parameters; bytes that a step at stage 3 has to gather and reduce; what an update reads, bytes a parameter."""
    psi, ranks = 2**30, 16
    step = set_up(flat(psi).spec, ranks, StepSettings("3"))
    sent = sum(send.nbytes for send in plan_traffic(step.lists.step(), step.geometry))
    update = plan_memory(step.lists.step(), step.geometry).at_rest["optim"] * ranks // psi
    return psi, sent * ranks // (ranks - 1), update


def _walked_ait() -> float:
    """Operations a byte of parameters and gradients, sequence 1024, batch 1. Without recompute, which adds a third of
    the operations and of the bytes."""
    psi, moved, _ = _moved()
    return TRAIN_FLOPS * psi * ait.SEQ / moved


def _walked_states() -> int:
    """Bytes a parameter that an update reads: optimizer states, and the gradient in float32."""
    return _moved()[2] + 4


def _share(intensity: float, bandwidth: float, peak: float = ait.PEAK) -> float:
    """Percent of the time spent computing a million operations, then moving what they need."""
    computing, moving = 1e6 / peak, 1e6 / intensity / bandwidth
    return 100 * computing / (computing + moving)


def loading(runs: counted.Runs) -> Demo:
    """Demo 4."""
    counts, owner = (1, 2, 4, 8, 16, 32, 64), ait.owner_broadcast() / 1e9
    by = {tier: [ait.bandwidth_centric(ranks, tier) / 1e9 for ranks in counts] for tier in ait.READ_TOGETHER}
    played = {tier: [_loaded(ranks, speed) / 1e9 for ranks in counts] for tier, speed in ait.READ_TOGETHER.items()}
    source = "lecture 7.4; ZeRO-Infinity sec. 6.1"
    faster = next(ranks for ranks in range(1, 65) if _loaded(ranks, ait.READ_TOGETHER["cpu"]) > ait.owner_broadcast())
    together = {tier: 64 * DGX2 * speed / 1e12 for tier, speed in ait.READ_TOGETHER.items()}
    return Demo("Bandwidth-centric partitioning against broadcasting from the owner", "7.4", [
        *of_kind("simulated", *[
            holds(f"Effective bandwidth from {name} rises with the ranks, up to the 70 GB/s that GPUs pass on",
                  f"formula of {source}",
                  ", ".join(f"{min(ranks * link, PASSED_ON):g}" for ranks in counts) + " GB/s",
                  ", ".join(f"{value:.3g}" for value in played[tier]),
                  all(isclose(min(ranks * link, PASSED_ON), value, rel_tol=0.005)
                      for ranks, value in zip(counts, played[tier], strict=True)))
            for tier, (name, link) in TIER.items()],
            equal("Ranks from which it is faster than an owner's whole link, CPU memory", "ours", 5, faster),
            given="links of 3.0 and 1.6 GB/s a rank, each piece read while the one before is gathered"),
        definition("Broadcast from the owner: one PCIe link, however many ranks there are", "lecture 7.3, 7.4", owner,
                   "GB/s"),
        equal("Each of 16 ranks loads 1/16 of the parameters: what they keep at stage 3, together over 2 psi",
              f"formula of {source}",
              [1 / 16, 1.0], _kept_shares(), kind="planned"),
        *counted.loading(runs),
        *of_kind("published",
                 between("3.0 GB/s a GPU, 64 DGX-2 nodes together: more than the 3 TB/s that are printed", source, 3,
                         3.5, together["cpu"], "TB/s"),
                 between("1.6 GB/s a GPU from NVMe: more than the 1.5 TB/s that are printed", source, 1.5, 2,
                         together["nvme"], "TB/s")),
    ], table(["ranks", "all-gather, CPU GB/s", "all-gather, NVMe GB/s", "owner GB/s"],
             [[ranks, *[by[tier][i] for tier in TIER], owner] for i, ranks in enumerate(counts)]),
        "3.0 and 1.6 GB/s a GPU are the paper's, when all GPUs of a node read together; below 4 ranks an owner's whole "
        "link is faster.",
        {"04-loading": figures.loading}, {"ranks": counts, "played": played, **by})


def _loaded(ranks: int, link: float) -> float:
    """Bytes a second: a parameter is cut into pieces, and each of them in `ranks` parts, which the ranks read, each
    over its own link, and then all-gather at the speed of GPUs, while they read on."""
    piece, read, gathered = 1e6, 0.0, 0.0
    for _ in range(PIECES):
        read += piece / ranks / link
        gathered = max(gathered, read) + piece / ait.GPU_LINK
    return PIECES * piece / gathered


def _kept_shares(ranks: int = 16) -> list[float]:
    """Of the float16 parameters: what one rank keeps, and all together."""
    psi = 2**30
    step = set_up(flat(psi).spec, ranks, StepSettings("3"))
    kept = plan_memory(step.lists.step(), step.geometry).at_rest["param"]
    return [kept / (2 * psi), ranks * kept / (2 * psi)]
