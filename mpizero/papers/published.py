"""Runs that the papers report, as they print them: they can be held against one another and against closed forms."""

from __future__ import annotations

from dataclasses import dataclass

PEAK = {"V100": 125e12, "A100": 312e12}  # operations a second, 16 bits, tensor cores: data sheets
MEMORY = {"V100": 32e9, "A100": 80e9}  # bytes


@dataclass(frozen=True)
class Run:
    """flops: operations a second of all `gpus` together. share: percent of their peak, as printed, if it is. at_least:
    the papers write `over`."""

    system: str
    params: str
    gpus: int
    gpu: str
    flops: float
    share: float | None
    at_least: bool
    source: str

    @property
    def of_peak(self) -> float:
        """Percent, from flops."""
        return 100 * self.flops / (self.gpus * PEAK[self.gpu])


MEGATRON = Run("Megatron-LM over two DGX-2", "40B", 32, "V100", 32 * 5e12, 5, False, "lecture 1; ZeRO sec. 1")
ZERO = Run("ZeRO-100B", "8B to 100B", 400, "V100", 15e15, 30, False, "lecture 8.1; ZeRO sec. 10")
INFINITY = Run("ZeRO-Infinity", "up to 20T", 512, "V100", 25e15, 40, True, "lecture 8.2; ZeRO-Infinity sec. 8")
INFINITY_10T = Run("ZeRO-Infinity", "10T", 512, "V100", 512 * 43e12, None, False, INFINITY.source)
INFINITY_20T = Run("ZeRO-Infinity", "20T", 512, "V100", 512 * 34e12, None, False, INFINITY.source)
FSDP_1 = Run("FSDP, batch 1", "175B", 512, "A100", 512 * 173e12, 55, False, "lecture 5.6; FSDP sec. 5.4")
FSDP_2 = Run("FSDP, batch 2", "175B", 512, "A100", 512 * 186e12, 60, False, "lecture 5.6; FSDP sec. 5.4")
OFFLOAD = Run("ZeRO-Offload", "10B", 1, "V100", 40e12, None, True, "lecture 7.2, 8.5; ZeRO-Offload sec. 6")
RUNS = (MEGATRON, ZERO, INFINITY, INFINITY_10T, INFINITY_20T, FSDP_1, FSDP_2, OFFLOAD)

# system -> parameters, GPUs, of which kind: models that fill the memory of GPUs. ZeRO-Infinity sec. 1
FILLED = {"1T under 3D parallelism": (10**12, 800, "V100"), "the same on A100": (10**12, 320, "A100"),
          "650B, the most under 3D parallelism": (650 * 10**9, 512, "V100"),
          "fine-tuning GPT-3": (175 * 10**9, 8 * 16, "V100")}
LARGEST, NODES = 32 * 10**12, 32  # parameters that ZeRO-Infinity trained, DGX-2 nodes
BACKWARD_SHARE, FRAGMENTED = 67.0, 85.56  # percent of FSDP's iteration: usually; and at 128 GPUs, batch 2
