"""What other programs and papers say a rank needs, beside ours, and why each differs.

P parameters, N ranks, L parameters of the largest leaf module. FSDP2: its note on memory, docs.pytorch.org
(fully_shard), and arXiv:2304.11277, sec. 3.2.1. DeepSpeed: estimate_zero2_model_states_mem_needs and
estimate_zero3_model_states_mem_needs. Megatron: its guide's page on the distributed optimizer. accelerate:
estimate_training_usage, behind `accelerate estimate-memory`. Formulas as of 2025.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from mpizero.dtypes import ITEMSIZE
from mpizero.layout import ADAM, OptimizerSpec, optimizer_bytes
from mpizero.papers.states import plain, stage_bytes


@dataclass(frozen=True)
class Estimate:
    """Bytes of one device as `source` has them; why they are not ours."""

    source: str
    device_bytes: int | float
    why: str


def deepspeed(psi: int, ranks: int, stage: str, largest_leaf: int) -> Estimate | None:
    """2P + 18P/N for stages 1 and 2, 4L + 18P/N for stage 3, without offload; there is none for stage 0."""
    shared = Fraction(18 * psi, ranks)
    if stage == "0":
        return None
    if stage == "3":
        return Estimate("DeepSpeed, stage 3", plain(4 * largest_leaf + shared),
                        "18 = our 16 less a float16 gradient, plus one in float32; 4L: the largest layer whole, not "
                        "our largest unit")
    return Estimate("DeepSpeed, stages 1 and 2", plain(2 * psi + shared),
                    "18 = 2 + 4 + 12: a resident float32 gradient too; and gradients are divided at stage 1 as at "
                    "stage 2")


def megatron(psi: int, ranks: int, stage: str, dtype: str) -> list[Estimate]:
    """4 + 16/d, 6 + 12/d or 8 + 8/d, by parameter and gradient type, with its distributed optimizer, which is stage 1;
    without, d = 1."""
    def estimate(label: str, whole: int, divided: int, why: str) -> Estimate:
        scope = "" if stage == "0" else "stage 1, it has no other; "
        return Estimate(f"Megatron, {label}", plain(psi * (whole + Fraction(divided, 1 if stage == "0" else ranks))),
                        scope + why)

    if dtype == "float32":
        return [estimate("float32 parameters and gradients", 8, 8,
                         "the same count: parameters are their own master weights")]
    return [estimate("16-bit gradients", 4, 16, "16 = 12 + 4: the optimizer keeps a float32 copy of its gradients"),
            estimate("float32 gradients", 6, 12, "6 = 2 + 4: gradients are summed over microbatches in float32, whole")]


def fsdp(psi: int, ranks: int, stage: str, dtype: str, largest_unit: int) -> Estimate | None:
    """Of stages 2 and 3, with mixed precision: 16P/N of float32 shards; and while it works, stage 3 has two units whole
    and one whole gradient, stage 2 (reshard_after_forward=False) all parameters and one gradient."""
    if stage not in ("2", "3"):
        return None
    shared, size = Fraction(16 * psi, ranks), ITEMSIZE[dtype]
    if stage == "3":
        return Estimate("PyTorch FSDP2, fully_shard", plain(shared + 3 * size * largest_unit),
                        "16 = 4 + 4 + 8: float32 parameters and gradients, two moments; its peak, so with a unit, the "
                        "next, a gradient")
    return Estimate("PyTorch FSDP2, no reshard", plain(shared + size * (psi + largest_unit)),
                    "reshard_after_forward=False: 16 = 4 + 4 + 8 in float32 shards, and all parameters whole in a step")


def accelerate(psi: int, dtype: str) -> Estimate:
    """The largest of what lives in four moments: loading, backward, Adam's states, step."""
    size = 4 * psi  # always starts from float32
    moments = {"model": size, "gradients": size, "optimizer": 2 * size, "step": 4 * size}
    if dtype != "float32":
        moments |= {"gradients": size + size // 2, "step": 2 * size}
    return Estimate("accelerate estimate-memory", max(moments.values()),
                    "takes the maximum of its four moments, not the sum of what lives together; one process: N divides "
                    "nothing")


def papers(psi: int, ranks: int, stage: str, dtype: str, optimizer: OptimizerSpec = ADAM) -> list[Estimate]:
    """ZeRO's closed form, with the optimizer's K, and ZeRO-Infinity's 20 bytes."""
    k = optimizer_bytes(optimizer, dtype)
    where = "table 1" if k == optimizer_bytes(ADAM, dtype) else f"sec. 5 with K = {k}"
    found = [Estimate(f"ZeRO, {where}", stage_bytes(psi, stage, ranks, dtype, optimizer=optimizer),
                      "after backward, without padding; peaks are not in it")]
    if stage == "3":
        found.append(Estimate("ZeRO-Infinity, sec. 3", plain(Fraction(20 * psi, ranks)),
                              "20 = 16 + 4: counts a resident float32 gradient"))
    return found


def others(psi: int, ranks: int, stage: str, dtype: str, largest_leaf: int, largest_unit: int,
           optimizer: OptimizerSpec = ADAM) -> list[Estimate]:
    """All of them, for one stage. None counts activations. But for ZeRO's form, all are of Adam."""
    two = (fsdp(psi, ranks, stage, dtype, largest_unit), deepspeed(psi, ranks, stage, largest_leaf))
    return [*papers(psi, ranks, stage, dtype, optimizer), *(each for each in two if each),
            *megatron(psi, ranks, stage, dtype), accelerate(psi, dtype)]
