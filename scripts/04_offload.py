"""States off the device: optimal partition, delayed updates, bandwidth, loading, the largest model.

Needs neither ranks nor MPI.
"""

from __future__ import annotations

from collections.abc import Sequence

import claims
from claims import Demo, between, equal, holds, rounds_to

import figures
from mpizero.machine import RECOMPUTE_FLOPS
from mpizero.papers import intensity as ait
from mpizero.papers import offload, partition
from mpizero.text import table

EXAMPLE = "python scripts/04_offload.py --json offload.json"
UPDATE = {"p32", "m32", "v32", "update", "float2half"}  # the update and the states that it reads and writes
# ZeRO-Offload's table 1: nodes on the host -> bytes a parameter that a step moves, bytes a parameter on the device
TABLE_1 = {
    frozenset(): (0, 16), frozenset({"g16"}): (4, 14), frozenset(UPDATE): (4, 4), frozenset(UPDATE | {"g16"}): (4, 2),
}
DGX2 = 16  # GPUs
BATCHES = (1, 2, 4, 8, 16, 32)
TIER = {"cpu": "CPU memory", "nvme": "NVMe"}
CLOSE = 1.5  # times: bounds by division against models that ran


def partitions() -> Demo:
    """Demo 1."""
    every, best, infinity = list(partition.partitions()), partition.best(), partition.infinity()
    few = {frozenset(each.host): (each.traffic, each.device_bytes) for each in every
           if each.traffic <= partition.MINIMUM}
    six = [each for each in every if each.traffic == 6]
    shown = sorted((each for each in every if each.traffic <= 6), key=lambda each: (each.traffic, -each.device_bytes))
    source, zero_infinity = "lecture 7.1; ZeRO-Offload sec. 3", "lecture 7.1; ZeRO-Infinity sec. 5"
    return Demo("Which nodes should leave the device? All 128 answers", "7.1", [
        equal("Partitions, with forward and backward fixed on the device", source, 128, len(every)),
        equal("Least traffic of a partition that offloads anything", source, 4,
              min(each.traffic for each in every if each.host), "M bytes"),
        equal("Partitions that move at most 4M bytes", source, 4, len(few)),
        holds("They are table 1's: traffic and device memory 0 and 16M, 4M and 14M, 4M and 4M, 4M and 2M",
              "lecture 7.1; ZeRO-Offload table 1", "4 rows, the same nodes and bytes",
              f"{sum(TABLE_1.get(host) == found for host, found in few.items())} rows", few == TABLE_1),
        equal("Partitions of least device memory among them: the optimum is unique", source, 1, len(best)),
        equal("Data that the optimum leaves on the device", source, "p16",
              " ".join(node for node in partition.SIZES if node not in best[0].host)),
        equal("Partitions that move 6M bytes", source, 6, len(six)),
        equal("Of those, leave nothing on the device", zero_infinity, 1, sum(each.device_bytes == 0 for each in six)),
        holds("It is ZeRO-Infinity's choice, which takes off the device", zero_infinity,
              "every node but forward and backward",
              " ".join(infinity.host), infinity in six and set(infinity.host) == set(partition.FREE)),
    ], table(["traffic / M", "on the device / M", "nodes on the host"],
             [[each.traffic, each.device_bytes, " ".join(each.host) or "-"] for each in shown]),
        data={"partitions": [vars(each) for each in every]})


def delayed_update() -> Demo:
    """Demo 2."""
    steps = [offload.offload_step(offload.PUBLISHED_PARAMS, batch) for batch in BATCHES]
    eight, gains, update = steps[BATCHES.index(8)], [step.gain for step in steps], offload.PUBLISHED_UPDATE
    source = "lecture 7.2; ZeRO-Offload sec. 6.2"
    rows = [[step.batch, step.gpu, step.cpu, step.seconds, step.delayed_seconds, step.gain,
             step.flops / step.seconds / 1e12, step.flops / step.delayed_seconds / 1e12] for step in steps]
    return Demo("A step of ZeRO-Offload, with and without the delayed parameter update (DPU)", "7.2", [
        between("10B parameters on one V100, micro batch 8: more than", source, 40, None,
                eight.flops / eight.seconds / 1e12, "TFLOP/s", how="estimated"),
        between("DPU at micro batch 8 makes a step faster by as much as published, over model sizes", source,
                *offload.PUBLISHED_DELAYED, eight.gain, "times", how="estimated"),
        holds("DPU gains the more the smaller the batch, as long as the GPU computes longer than the CPU updates",
              "lecture 7.2; ZeRO-Offload sec. 5", "falling from batch 2 on",
              ", ".join(f"{gain:.3g}" for gain in gains[1:]),
              gains[1:] == sorted(gains[1:], reverse=True), how="estimated"),
        between("Gradients go down while backward computes: their seconds over backward's, micro batch 8",
                "lecture 7.2; ZeRO-Offload sec. 4", None, 1, eight.down / eight.backward, how="estimated"),
        between("10B updated by CPU-Adam (2.57 s) and by PyTorch on the CPU (14.76 s): more than five times as fast",
                "lecture 7.2; ZeRO-Offload table 4", 5, None, update["PyTorch's Adam on the CPU"] / update["CPU-Adam"],
                "times", how="published"),
    ], table(["micro batch", "GPU s", "CPU s", "step s", "with DPU s", "times faster", "TFLOP/s", "with DPU"], rows),
        "a V100 at half of its 125 TFLOP/s, sequence 1024, recompute, 12 GB/s of PCIe each way, and CPU-Adam as "
        "published. An estimate: it shows trend and size, not the published seconds.",
        data={"steps": [vars(step) for step in steps]})


def bandwidth_needs() -> Demo:
    """Demo 3."""
    params, optimizer = ait.ait_params(ait.SEQ, 1), ait.ait_optimizer(ait.SEQ, 1)
    activations = ait.ait_activations(2048)
    share = {need.what: 100 * need.efficiency for need in ait.needs() if need.given == "bandwidth"}
    needed = {need.what: need.bandwidth for need in ait.needs() if need.given == "efficiency"}
    source = "lecture 7.3; ZeRO-Infinity sec. 4"
    rows = [[need.what, need.ait, need.bandwidth / 1e9, 100 * need.efficiency, need.given] for need in ait.needs()]
    return Demo("What bandwidth must a slow memory have?", "7.3", [
        equal("AIT of parameters and gradients: 8 operations a token for 4 x 2 bytes a parameter", source,
              RECOMPUTE_FLOPS * ait.SEQ / 8, params),
        equal("AIT of optimizer states: for 2 x 16 bytes", source, RECOMPUTE_FLOPS * ait.SEQ / 32, optimizer),
        equal("AIT of activation checkpoints of width 2048, one a block: 24 hd", source, 24.0 * 2048,
              float(activations)),
        between("70 GB/s suffice for parameters and gradients at batch 1: efficiency above", source, 50, None,
                share["parameters and gradients, batch 1"], "%"),
        rounds_to("70 GB/s, parameters and gradients at batch 1: efficiency by the formula", "lecture 7.3", "50.6",
                  share["parameters and gradients, batch 1"], "%"),
        rounds_to("Parameters and gradients at batch 2 need for 90 %", "lecture exercise 7", "308",
                  needed["parameters and gradients, batch 2"] / 1e9, "GB/s"),
        rounds_to("Optimizer states at batch 2 need for 90 % (the paper: about 1.5)", "lecture exercise 7", "1.23",
                  needed["optimizer states, batch 2"] / 1e12, "TB/s"),
        between("1.5 TB/s suffice for optimizer states at batch 2: efficiency above", source, 90, None,
                share["optimizer states, batch 2"], "%"),
        between("2 GB/s suffice for activation checkpoints of width 2048: efficiency above", source, 50, None,
                share["activation checkpoints, hd 2048"], "%"),
        between("Activation checkpoints of width 8192 need for 50 % less than", source, None, 1,
                ait.bandwidth_for(0.5, ait.ait_activations(8192)) / 1e9, "GB/s"),
        between("One PCIe link of 12 GB/s is the difficulty: efficiency for parameters and gradients at batch 1",
                "lecture 7.3", None, 20, 100 * ait.efficiency(params, ait.PCIE), "%"),
    ], table(["what", "AIT", "bandwidth GB/s", "efficiency %", "given"], rows),
        "70 TFLOP/s of a V100 in practice and sequence 1024 are the paper's; below 20 % stands for `a difficulty`.",
        {"04-efficiency": figures.efficiency}, {"needs": [vars(need) for need in ait.needs()]})


def loading() -> Demo:
    """Demo 4."""
    counts, cap, owner = (1, 2, 4, 8, 16, 32, 64), ait.GPU_LINK / 1e9, ait.owner_broadcast() / 1e9
    by = {tier: [ait.bandwidth_centric(ranks, tier) / 1e9 for ranks in counts] for tier in ait.READ_TOGETHER}
    source = "lecture 7.4; ZeRO-Infinity sec. 6.1"
    together = {tier: 64 * DGX2 * speed / 1e12 for tier, speed in ait.READ_TOGETHER.items()}
    return Demo("Bandwidth-centric partitioning against broadcasting from the owner", "7.4", [
        *[holds(f"Twice the ranks load twice as fast from {TIER[tier]}, up to the 70 GB/s that GPUs pass on", source,
                "doubling up to 70", ", ".join(f"{value:g}" for value in values) + " GB/s",
                all(after == min(2 * before, cap) for before, after in zip(values, values[1:], strict=False)))
          for tier, values in by.items()],
        equal("Broadcast from the owner: one PCIe link, however many ranks there are", "lecture 7.3, 7.4", 12.0, owner,
              "GB/s"),
        between("The 16 GPUs of a DGX-2 load from CPU memory faster than an owner does", source, 1, None,
                by["cpu"][counts.index(DGX2)] / owner, "times"),
        between("64 DGX-2 nodes together, CPU memory: more than", source, 3, None, together["cpu"], "TB/s"),
        between("64 DGX-2 nodes together, NVMe: more than", source, 1.5, None, together["nvme"], "TB/s"),
    ], table(["ranks", "all-gather, CPU GB/s", "all-gather, NVMe GB/s", "owner GB/s"],
             [[ranks, *[by[tier][i] for tier in TIER], owner] for i, ranks in enumerate(counts)]),
        "3.0 and 1.6 GB/s a GPU are the paper's, when all GPUs of a node read together; below 4 ranks an owner's whole "
        "link is faster.",
        {"04-loading": figures.loading}, {"ranks": counts, **by})


def largest() -> Demo:
    """Demo 5."""
    models, source = ait.largest_models(), "lecture 7.5; ZeRO-Offload sec. 6; ZeRO-Infinity sec. 8"
    names = ("Replicated on one V100 of 32 GB", "ZeRO-Offload on one V100", "ZeRO-Infinity, CPU memory of a DGX-2",
             "ZeRO-Infinity, NVMe of a DGX-2")
    bounds = [each.bound for each in models]
    return Demo("The largest model", "7.5", [
        *[holds(f"{name}: the bound is the published size, but for a factor of {CLOSE}", source,
                _params(*each.published),
                _params(each.bound), each.published[0] / CLOSE <= each.bound <= each.published[1] * CLOSE)
          for name, each in zip(names, models, strict=True)],
        holds("Each system holds a larger model than the one before", "lecture 7.5", "rising",
              ", ".join(map(_params, bounds)), bounds == sorted(bounds)),
        between("NVMe of one node against replication: the published 1T is 700 times 1.4B",
                "lecture 8.2; ZeRO-Infinity sec. 8", 700, None,
                models[-1].published[0] / models[0].published[0], "times", how="published"),
    ], table(["system", "what takes room", "bound", "published"],
             [[each.system, each.where, _params(each.bound), _params(*each.published)] for each in models]),
        "division alone: 4 GB of each GPU kept for activations and 20 bytes a parameter for ZeRO-Infinity (the "
        "lecture's), 1.5 TB of CPU memory and 28 TB of NVMe in a DGX-2. That a bound comes within a factor of "
        f"{CLOSE} of what was published is a tolerance of ours: the lecture's table is lost.",
        data={"models": [{**vars(each), "bound": each.bound} for each in models]})


def _params(*sizes: float) -> str:
    """`70B to 100B`."""
    return " to ".join(dict.fromkeys(f"{size / 1e12:.3g}T" if size >= 1e12 else f"{size / 1e9:.3g}B" for size in sizes))


DEMOS = (partitions, delayed_update, bandwidth_needs, loading, largest)


def main(argv: Sequence[str] | None = None) -> int:
    """0 if every claim agrees."""
    asked = claims.options(__doc__, EXAMPLE, len(DEMOS), argv)
    return claims.tell(asked, __doc__, DEMOS)


if __name__ == "__main__":
    claims.alone(main)
