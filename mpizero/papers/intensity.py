"""What bandwidth must a slow memory have? ZeRO-Infinity (arXiv:2104.07857), sec. 4, 6.1 and table 2's single node.

AIT, arithmetic intensity: operations per byte moved. bw in bytes a second, peak in operations a second.
"""

from __future__ import annotations

from dataclasses import dataclass

PEAK = 70e12  # operations a second of a V100 in practice: ZeRO-Infinity sec. 4.2
SEQ = 1024

PCIE = 12e9  # of one device's link alone
GPU_LINK = 70e9  # between GPUs: the cap of what all-gathers can pass on
# bytes a second and device, when all devices of a node read: ZeRO-Infinity sec. 6.1
READ_TOGETHER = {"cpu": 3.0e9, "nvme": 1.6e9}


def ait_params(seq: int, batch: int) -> float:
    """Parameters (loaded for forward, backward and recompute) and gradients (stored once)."""
    return seq * batch


def ait_optimizer(seq: int, batch: int) -> float:
    """Optimizer states: 16 bytes a parameter, read and written."""
    return seq * batch / 4


def ait_activations(hidden: int, interval: int = 1) -> float:
    """Activation checkpoints, one every `interval` blocks, stored and loaded."""
    return 24 * hidden * interval


def efficiency(ait: float, bandwidth: float, peak: float = PEAK) -> float:
    """Share of the time spent computing, when moving and computing do not overlap."""
    return ait * bandwidth / (ait * bandwidth + peak)


def bandwidth_for(wanted: float, ait: float, peak: float = PEAK) -> float:
    """The bandwidth at which efficiency is `wanted`."""
    return wanted * peak / ((1 - wanted) * ait)


@dataclass(frozen=True)
class Need:
    """A claim of ZeRO-Infinity sec. 4.2 or of an exercise, computed. given: bandwidth or efficiency."""

    what: str
    ait: float
    bandwidth: float
    efficiency: float
    given: str


def needs(seq: int = SEQ) -> list[Need]:
    """Peak 70 TFLOP/s. seq: tokens of a sample, the papers' unless told."""
    def at(what: str, ait: float, bandwidth: float) -> Need:
        return Need(what, ait, bandwidth, efficiency(ait, bandwidth), "bandwidth")

    def wanted(what: str, ait: float, share: float) -> Need:
        return Need(what, ait, bandwidth_for(share, ait), share, "efficiency")

    return [at("parameters and gradients, batch 1", ait_params(seq, 1), 70e9),
            wanted("parameters and gradients, batch 2", ait_params(seq, 2), 0.9),
            wanted("optimizer states, batch 2", ait_optimizer(seq, 2), 0.9),
            at("optimizer states, batch 2", ait_optimizer(seq, 2), 1.5e12),
            at("activation checkpoints, hd 2048", ait_activations(2048), 2e9)]


# -- loading parameters -----------------------------------------------------------------------------------------------


def bandwidth_centric(ranks: int, tier: str) -> float:
    """Every parameter cut into `ranks` pieces: each rank reads 1/N over its own link, then they all-gather.
    ZeRO-Infinity sec. 6.1."""
    return min(ranks * READ_TOGETHER[tier], GPU_LINK)


def owner_broadcast() -> float:
    """Each parameter belongs to one rank, which reads it over its one link and broadcasts it: the other links idle."""
    return PCIE


# -- the largest model ------------------------------------------------------------------------------------------------

GPU, ACTIVATIONS = 32e9, 4e9  # a V100, and what is kept for activations and working memory
NODE = {"gpu": 512e9, "cpu": 1.5e12, "nvme": 28e12}  # a DGX-2


@dataclass(frozen=True)
class Largest:
    """bound: parameters, by division; published: what the papers report, lowest and highest."""

    system: str
    where: str
    capacity: float
    bytes_per_param: int
    published: tuple[float, float]

    @property
    def bound(self) -> float:
        return self.capacity / self.bytes_per_param


def largest_models() -> list[Largest]:
    """ZeRO-Infinity counts 20 bytes a parameter. Published: PyTorch and ZeRO-Offload on one V100; ZeRO-Infinity on one
    node, fig. 6."""
    return [Largest("replicated, one GPU", "16 bytes on the GPU", GPU - ACTIVATIONS, 16, (1.4e9, 1.4e9)),
            Largest("ZeRO-Offload, one GPU", "2 bytes on the GPU, the rest on the CPU", GPU - ACTIVATIONS, 2,
                    (13e9, 13e9)),
            Largest("ZeRO-Infinity, one node", "20 bytes on the CPU", NODE["cpu"], 20, (70e9, 100e9)),
            Largest("ZeRO-Infinity, one node", "20 bytes on NVMe", NODE["nvme"], 20, (1e12, 1e12))]
