"""What the papers report of their runs: numbers held against one another, and against plans.

Needs neither ranks nor MPI. Nobody trains 32T parameters here. But a throughput, a number of GPUs and a share of the
peak must fit together, and a model must fit into the memory that it is said to have had.
"""

from __future__ import annotations

from collections.abc import Sequence

import claims
from claims import Demo, between, equal, holds, of_kind, quoted, rounds_to

from mpizero.machine import TRAIN_FLOPS
from mpizero.papers import partition
from mpizero.papers import published as pub
from mpizero.papers.intensity import NODE
from mpizero.planner import plan_memory
from mpizero.planner.model import flat
from mpizero.schedule import StepSettings, set_up
from mpizero.text import table

EXAMPLE = "python scripts/06_published.py --json published.json"
ALL_STATES = 20  # bytes a parameter, as ZeRO-Infinity counts
V100 = pub.MEMORY["V100"] / 1e9  # GB


def zero() -> Demo:
    """Demo 1."""
    source = "lecture 8.1; ZeRO sec. 10"
    alone, parts, whole = _states(13e9, "2", 128), _states(170e9 / 16, "2", 25), _states(170e9 / 16, "0", 25)
    return Demo("ZeRO's runs", "1, 8.1", [
        *of_kind("published",
                 rounds_to("15 PFLOP/s on 400 V100 are, of their peak (printed: over 30 %)", source, "30",
                           pub.ZERO.of_peak, "%"),
                 between("40B of Megatron-LM over two DGX-2, about 5 TFLOP/s a V100: of the peak less than",
                         pub.MEGATRON.source, None, 5, pub.MEGATRON.of_peak, "%"),
                 quoted("Models larger than before by a factor of, and trained faster by up to", source, [8, 10]),
                 quoted("Turing-NLG", source, 17, "billion parameters")),
        *of_kind("planned",
                 between("13B without model parallelism, P_os+g on 128 ranks: model states fit a V100", source, None,
                         V100, alone, "GB"),
                 between("170B, P_os+g, MP 16 x 25 ranks: model states fit a V100", source, None, V100, parts, "GB"),
                 between("170B, MP 16 alone, does not fit a V100", source, V100, None, whole, "GB")),
    ], _table(), "the peak, 125 TFLOP/s of a V100 and 312 of an A100, is that of the data sheets; MP 16 is what ZeRO "
        "uses for its large models.",
        data={"runs": [vars(run) for run in pub.RUNS]})


def infinity() -> Demo:
    """Demo 2."""
    source = pub.INFINITY.source
    memory = {name: gpus * pub.MEMORY[gpu] for name, (_, gpus, gpu) in pub.FILLED.items()}
    filled = {name: 100 * ALL_STATES * params / memory[name] for name, (params, *_) in pub.FILLED.items()}
    v100, a100 = list(memory.values())[:2]
    states, node = ALL_STATES * pub.LARGEST, {tier: pub.NODES * size for tier, size in NODE.items()}
    return Demo("ZeRO-Infinity's runs", "8.2", [
        *of_kind("published",
                 equal("800 V100 of 32 GB and 320 A100 of 80 GB, each said to be needed for 1T: the same memory",
                       source, v100 / 1e12, a100 / 1e12, "TB"),
                 holds("What is said to fill GPUs does, with 20 bytes a parameter: most of their memory, not all",
                       source, "70 to 100 %", ", ".join(f"{name}: {share:.0f} %" for name, share in filled.items()),
                       all(70 < share < 100 for share in filled.values())),
                 between("40 % of the peak of 512 V100 are over 25 PFLOP/s", source, 25, 26,
                         0.4 * pub.INFINITY.gpus * pub.PEAK["V100"] / 1e15, "PFLOP/s"),
                 holds("The larger the model the lower: over 25 PFLOP/s at best, 43 TFLOP/s a GPU at 10T, 34 at 20T",
                       source, "falling", ", ".join(f"{run.flops / run.gpus / 1e12:.3g}" for run in
                                                    (pub.INFINITY, pub.INFINITY_10T, pub.INFINITY_20T)) + " TFLOP/s",
                       pub.INFINITY.flops > pub.INFINITY_10T.flops > pub.INFINITY_20T.flops),
                 between("32T over 650B is about 50", source, 47.5, 52.5,
                         pub.LARGEST / pub.FILLED["650B, the most under 3D parallelism"][0], "times"),
                 equal("80 GB over 16 GB: a GPU's memory has grown by a factor of", source, 5.0,
                       pub.MEMORY["A100"] / 16e9),
                 quoted("Bandwidth-centric partitioning offloads gradients on 64 GPUs faster by nearly", source, 2,
                        "times")),
        between("32T at 20 bytes fit the NVMe of 32 nodes", source, None, node["nvme"] / 1e12, states / 1e12, "TB"),
        between("and not GPUs and CPU memory together", source, (node["gpu"] + node["cpu"]) / 1e12, None,
                states / 1e12, "TB"),
    ], table(["system", "parameters", "GPUs", "GPU memory, TB", "20 bytes a parameter, %"],
             [[name, f"{params / 1e9:,g}B", f"{gpus} {gpu}", memory[name] / 1e12, filled[name]]
              for name, (params, gpus, gpu) in pub.FILLED.items()]),
        "a DGX-2 has 16 V100 of 32 GB, 1.5 TB of CPU memory and 28 TB of NVMe; 70 to 100 % is what we call filled.",
        data={"filled": filled})


def fsdp_and_offload() -> Demo:
    """Demo 3."""
    offload, fsdp = "lecture 8.5; ZeRO-Offload sec. 6", pub.FSDP_1.source
    seventy, (optimum,) = 70 * 10**9, partition.best()
    usual = 100 * 4 / TRAIN_FLOPS
    return Demo("FSDP's and ZeRO-Offload's runs", "5.6, 6.3, 8.4, 8.5", [
        *of_kind("published", *[
            rounds_to(f"{run.params} on A100, {run.system.partition(', ')[2]}: {run.flops / run.gpus / 1e12:g} TFLOP/s "
                      "are, of the BF16 peak", run.source, f"{run.share}", run.of_peak, "%")
            for run in (pub.FSDP_1, pub.FSDP_2)],
            rounds_to("Backward is 4 of 6 operations: of an iteration, as FSDP has it", "lecture 6.3; FSDP sec. 5.4",
                      f"{pub.BACKWARD_SHARE:g}", usual, "%"),
            between("85.56 % of it where memory fragments: beside the same forward, a backward longer by", "ours", 2, 4,
                    pub.FRAGMENTED / (100 - pub.FRAGMENTED) * (100 - usual) / usual, "times"),
            between("13B on one V100 over PyTorch's 1.4B: about 10", "lecture 8.5; ZeRO-Offload abstract", 9, 10.5,
                    13 / 1.4, "times"),
            quoted("GPT-175B scales almost linearly on A100, from and to", fsdp, [128, 512], "GPUs"),
            quoted("T5 up to which FSDP is as fast as DDP", fsdp, 2.28, "billion parameters"),
            quoted("10B scales almost linearly on V100, up to", offload, 128, "GPUs")),
        between("70B on one DGX-2: the optimum partition leaves on the GPUs, of their 512 GB", offload, None,
                NODE["gpu"] / 1e9, optimum.device_bytes * seventy / 1e9, "GB"),
        between("and on the CPU, of its 1500 GB", offload, None, NODE["cpu"] / 1e9,
                (sum(partition.SIZES.values()) - optimum.device_bytes) * seventy / 1e9, "GB"),
        between("while replicated on 16 GPUs with tensors split it needs more than their 512 GB", offload,
                NODE["gpu"] / 1e9, None, _states(seventy, "0", 1), "GB", kind="planned"),
    ], data={"backward": usual})


def _states(psi: float, stage: str, ranks: int) -> float:
    """GB of model states on a rank after backward, by walking a step."""
    step = set_up(flat(int(psi)).spec, ranks, StepSettings(stage))
    return plan_memory(step.lists.step(), step.geometry).after_backward_bytes / 1e9


def _table() -> str:
    rows = [[run.system, run.params, f"{run.gpus} {run.gpu}", run.flops / run.gpus / 1e12, run.of_peak,
             "" if run.share is None else f"{run.share}", "over" if run.at_least else ""] for run in pub.RUNS]
    return table(["run", "parameters", "GPUs", "TFLOP/s each", "% of peak", "printed", ""], rows)


DEMOS = (zero, infinity, fsdp_and_offload)


def main(argv: Sequence[str] | None = None) -> int:
    """0 if every claim agrees."""
    asked = claims.options(__doc__, EXAMPLE, len(DEMOS), argv)
    return claims.tell(asked, __doc__, DEMOS)


if __name__ == "__main__":
    claims.alone(main)
