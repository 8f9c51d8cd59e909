"""A step of ZeRO-Offload on one GPU, with and without the delayed parameter update (DPU).

ZeRO-Offload (arXiv:2101.06840), sec. 4, 5. Gradients go down while backward computes; the CPU updates; parameters go up
while it updates the next block. With DPU the update of step i runs beside forward and backward of step i + 1. An
estimate: it shows the trend, not the published seconds.
"""

from __future__ import annotations

from dataclasses import dataclass

from mpizero.machine import RECOMPUTE_FLOPS, Machine
from mpizero.papers.intensity import PCIE, SEQ

PUBLISHED_PARAMS = 10 * 10**9
# seconds, 10B parameters: table 4
PUBLISHED_UPDATE = {"CPU-Adam": 2.57, "PyTorch's Adam on the CPU": 14.76, "Adam on a GPU": 1.00}
PUBLISHED_DELAYED = (1.12, 1.59)  # times faster with DPU at micro batch 8, over model sizes: sec. 6.2
V100 = Machine(peak_flops=125e12, efficiency=0.5, host_bandwidth=PCIE)


@dataclass(frozen=True)
class OffloadStep:
    """Seconds. down and up: gradients and parameters over PCIe."""

    params: int
    batch: int
    forward: float
    backward: float
    down: float
    update: float
    up: float
    flops: float  # of the step, with recompute

    @property
    def gpu(self) -> float:
        return self.forward + max(self.backward, self.down)

    @property
    def cpu(self) -> float:
        return max(self.update, self.up)

    @property
    def seconds(self) -> float:
        return self.gpu + self.cpu

    @property
    def delayed_seconds(self) -> float:
        return max(self.gpu, self.cpu)

    @property
    def gain(self) -> float:
        """How many times faster DPU makes the step."""
        return self.seconds / self.delayed_seconds


def offload_step(params: int, batch: int, seq: int = SEQ, machine: Machine = V100) -> OffloadStep:
    """One step of `batch` samples of `seq` tokens with recompute."""
    tokens, wire = batch * seq, 2 * params / machine.host_bandwidth
    forward, backward = (machine.compute_seconds(params, tokens, count) for count in (2, RECOMPUTE_FLOPS - 2))
    return OffloadStep(params, batch, forward, backward, wire, params / machine.host_adam, wire,
                       RECOMPUTE_FLOPS * params * tokens)
