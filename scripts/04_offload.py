"""States off the device: optimal partition, delayed updates, bandwidth, loading, the largest model.

Needs neither ranks nor MPI; with --runs, what the ranks of small_runs.py counted stands beside it. Demos 3 and 4 stand
in bandwidth.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from math import isclose

import claims
import counted
from bandwidth import bandwidth_needs, loading
from claims import Claim, Demo, between, equal, holds, of_kind, quoted

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
BATCHES = (1, 2, 4, 8, 16, 32)
CLOSE = 1.5  # times: bounds by division against models that ran


def partitions(runs: counted.Runs) -> Demo:
    """Demo 1."""
    every, best, infinity = list(partition.partitions()), partition.best(), partition.infinity()
    few = {frozenset(each.host): (each.traffic, each.device_bytes) for each in every
           if each.traffic <= partition.MINIMUM}
    six = [each for each in every if each.traffic == 6]
    split = [each.traffic for each in every if 0 < len(UPDATE & set(each.host)) < len(UPDATE)]
    without = [each.traffic for each in every if "p16" in each.host]
    shown = sorted((each for each in every if each.traffic <= 6), key=lambda each: (each.traffic, -each.device_bytes))
    source, zero_infinity = "lecture 7.1; ZeRO-Offload sec. 3", "lecture 7.1; ZeRO-Infinity sec. 5"
    return Demo("Which nodes should leave the device? All 128 answers", "7.1", [
        equal("Different partitions, with forward and backward fixed on the device", source, 128,
              len({frozenset(each.host) for each in every})),
        equal("Least traffic of a partition that offloads anything", source, 4,
              min(each.traffic for each in every if each.host), "M bytes"),
        equal("Least traffic if the float32 states, update and float2half are not on one side", source, 6, min(split),
              "M bytes"),
        equal("Least traffic if p16 leaves the device", source, 6, min(without), "M bytes"),
        equal("Partitions that move at most 4M bytes", source, 4, len(few)),
        holds("They are table 1's: traffic and device memory 0 and 16M, 4M and 14M, 4M and 4M, 4M and 2M",
              "lecture 7.1; ZeRO-Offload table 1", "4 rows, the same nodes and bytes",
              f"{sum(TABLE_1.get(host) == found for host, found in few.items())} rows", few == TABLE_1),
        equal("Partitions of least device memory among them: the optimum is unique", source, 1, len(best)),
        equal("Data that the optimum leaves on the device", source, "p16",
              " ".join(node for node in partition.SIZES if node not in best[0].host)),
        equal("Partitions that move 6M bytes and leave nothing on the device", zero_infinity, 1,
              sum(each.device_bytes == 0 for each in six)),
        equal("Partitions that move 6M bytes, counted here", "ours", 6, len(six)),
        holds("The one is ZeRO-Infinity's choice, which takes off the device", zero_infinity,
              "every node but forward and backward",
              " ".join(infinity.host), infinity in six and set(infinity.host) == set(partition.FREE)),
        *counted.partitions(runs, best[0], infinity),
    ], table(["traffic / M", "on the device / M", "nodes on the host"],
             [[each.traffic, each.device_bytes, " ".join(each.host) or "-"] for each in shown]),
        data={"partitions": [vars(each) for each in every]})


# -- delayed update ----------------------------------------------------------------------------------------------------


def delayed_update() -> Demo:
    """Demo 2."""
    steps = [offload.offload_step(offload.PUBLISHED_PARAMS, batch) for batch in BATCHES]
    eight, gains = steps[BATCHES.index(8)], [step.gain for step in steps]
    source = "lecture 7.2; ZeRO-Offload sec. 6.2"
    rows = [[step.batch, step.gpu, step.cpu, step.seconds, step.delayed_seconds, step.gain,
             step.flops / step.seconds / 1e12, step.flops / step.delayed_seconds / 1e12] for step in steps]
    first = next(i for i, step in enumerate(steps) if step.gpu >= step.cpu)
    return Demo("A step of ZeRO-Offload, with and without the delayed parameter update (DPU)", "7.2", [
        *of_kind("simulated",
                 between("10B parameters on one V100, micro batch 8: more than", source, 40, None,
                         eight.flops / eight.seconds / 1e12, "TFLOP/s"),
                 between("DPU at micro batch 8 makes a step faster by as much as published, over model sizes", source,
                         *offload.PUBLISHED_DELAYED, eight.gain, "times"),
                 holds("DPU gains the more the smaller the batch, as long as the GPU computes longer than the CPU "
                       "updates", "lecture 7.2; ZeRO-Offload sec. 5", "falling",
                       ", ".join(f"batch {BATCHES[i]}: {gain:.3g}" for i, gain in enumerate(gains) if i >= first),
                       gains[first:] == sorted(gains[first:], reverse=True) and len(gains[first:]) > 2),
                 between("Gradients go down while backward computes: their seconds over backward's, micro batch 8",
                         "lecture 7.2; ZeRO-Offload sec. 4", None, 1, eight.down / eight.backward),
                 holds("100 steps on a GPU and a CPU, played one by one with an update a step late, take 100 times the "
                       "longer of both, but for the first and the last",
                       "ours", ", ".join(f"{step.delayed_seconds:.3f}" for step in steps) + " s a step",
                       ", ".join(f"{_played(step) / 99:.3f}" for step in steps),
                       all(isclose(_played(step), 99 * step.delayed_seconds) for step in steps)),
                 given="a V100 at half its peak, PCIe of 12 GB/s"),
        *_other_gpus(), *_published_updates(),
    ], table(["micro batch", "GPU s", "CPU s", "step s", "with DPU s", "times faster", "TFLOP/s", "with DPU"], rows),
        "a V100 at half of its 125 TFLOP/s, sequence 1024, recompute, 12 GB/s of PCIe each way, and CPU-Adam as "
        "published. An estimate: it shows trend and size, not the published seconds.",
        data={"steps": [vars(step) for step in steps]})


def _played(step: offload.OffloadStep, count: int = 100) -> float:
    """Seconds between the end of the first and of the last of `count` steps: the GPU computes step i with what the CPU
    has updated after step i - 2."""
    gpu = cpu = before = first = 0.0
    for i in range(count):
        gpu = max(gpu, before) + step.gpu
        before, cpu = cpu, max(cpu, gpu) + step.cpu
        first = cpu if i == 0 else first
    return cpu - first


def _other_gpus() -> list[Claim]:
    """Over shares of the V100's peak that are really computed, and speeds of PCIe."""
    steps = {(share, pcie): offload.offload_step(offload.PUBLISHED_PARAMS, 8, machine=replace(
        offload.V100, efficiency=share, host_bandwidth=pcie)) for share in (0.3, 0.4, 0.5, 0.6) for pcie in (6e9, 16e9)}
    low, high = offload.PUBLISHED_DELAYED
    enough = {share for (share, _), step in steps.items() if step.flops / step.seconds > 40e12}
    return of_kind(
        "simulated",
        equal("DPU's gain is in the published range on each", "lecture 7.2; ZeRO-Offload sec. 6.2", len(steps),
              sum(low <= step.gain <= high for step in steps.values())),
        equal("But more than 40 TFLOP/s take a V100 that computes at least at this share of its peak", "ours", 40,
              round(100 * min(enough)), "%"), given="8 machines: 30 to 60 % of the peak, PCIe of 6 and of 16 GB/s")


def _published_updates() -> list[Claim]:
    """10B parameters."""
    update, table_4 = offload.PUBLISHED_UPDATE, "lecture 7.2; ZeRO-Offload table 4"
    ours, others = update["CPU-Adam"], update["PyTorch's Adam on the CPU"]
    step = RECOMPUTE_FLOPS * offload.PUBLISHED_PARAMS * 8 * ait.SEQ / 40e12
    return [
        quoted("Updates of 10B parameters by CPU-Adam, PyTorch's on the CPU, and on a GPU take", table_4,
               [ours, others, update["Adam on a GPU"]], "s"),
        between("CPU-Adam is called at least five times as fast as PyTorch's: by the seconds", "ZeRO-Offload sec. 6.2",
                5, None, others / ours, "times", kind="published"),
        between("At 40 TFLOP/s, micro batch 8 and sequence 1024 a step takes 16.4 s; without the 2.57 s of its update "
                "it is faster by as much as published", "lecture 7.2; ZeRO-Offload sec. 6.2, table 4",
                *offload.PUBLISHED_DELAYED, step / (step - ours), "times", kind="published"),
    ]


# -- the largest model -------------------------------------------------------------------------------------------------


def largest(runs: counted.Runs) -> Demo:
    """Demo 5."""
    models, source = ait.largest_models(), "lecture 7.5; ZeRO-Offload sec. 6; ZeRO-Infinity sec. 8"
    names = ("Replicated on one V100 of 32 GB", "ZeRO-Offload on one V100", "ZeRO-Infinity, CPU memory of a DGX-2",
             "ZeRO-Infinity, NVMe of a DGX-2")
    spare = [room for room in range(9) if all(each.published[0] * each.bytes_per_param <= ait.GPU - room * 1e9
                                              for each in models[:2])]
    return Demo("The largest model", "7.5", [
        *[holds(f"{name}: the published size is at most the bound by division, and not far below (a factor of {CLOSE}, "
                "ours)", source, _params(*each.published), _params(each.bound),
                each.published[0] <= each.bound <= each.published[1] * CLOSE)
          for name, each in zip(names, models, strict=True)],
        *counted.largest(runs),
        equal("With as much kept for activations, whole GB, both published sizes still fit: up to", "ours", 6,
              max(spare), "GB"),
        between("NVMe of one node against replication: 1T is about 700 times 1.4B", "lecture 8.2; ZeRO-Infinity sec. 8",
                650, 750, models[-1].published[0] / models[0].published[0], "times", kind="published"),
    ], table(["system", "what takes room", "bound", "published"],
             [[each.system, each.where, _params(each.bound), _params(*each.published)] for each in models]),
        "division alone: 4 GB of each GPU kept for activations and 20 bytes a parameter for ZeRO-Infinity (the "
        "lecture's), 1.5 TB of CPU memory and 28 TB of NVMe in a DGX-2. That a bound comes within a factor of "
        f"{CLOSE} of what was published is a tolerance of ours: the lecture's table is lost.",
        data={"models": [{**vars(each), "bound": each.bound} for each in models]})


def _params(*sizes: float) -> str:
    """`70B to 100B`."""
    return " to ".join(dict.fromkeys(f"{size / 1e12:.3g}T" if size >= 1e12 else f"{size / 1e9:.3g}B" for size in sizes))


COUNTED = (partitions, bandwidth_needs, loading, largest)
DEMOS = (partitions, delayed_update, bandwidth_needs, loading, largest)


def main(argv: Sequence[str] | None = None) -> int:
    """0 if every claim agrees."""
    asked = claims.options(__doc__, EXAMPLE, len(DEMOS), argv, runs=True)
    return claims.tell(asked, __doc__, [partial(demo, asked.runs) if demo in COUNTED else demo for demo in DEMOS])


if __name__ == "__main__":
    claims.alone(main)
