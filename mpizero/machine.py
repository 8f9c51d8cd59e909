"""The machine that an estimate of time assumes. Bytes need none of this: they are exact."""

from __future__ import annotations

from dataclasses import dataclass

# per parameter and token: forward 2, backward 4, forward again 2. ZeRO-Infinity sec. 4.1
RECOMPUTE_FLOPS, TRAIN_FLOPS = 8, 6


@dataclass(frozen=True)
class Machine:
    """Rates of one rank unless a comment says otherwise; bandwidths are bytes a second in one direction.

    The defaults are one machine, not a law: an H100 at half its peak, as the lecture (CMU 15-779 Fall 2025, lecture 13)
    assumes for its 13B model, in hosts with PCIe 5.
    """

    peak_flops: float = 989.4e12  # dense bfloat16, data sheet
    efficiency: float = 0.5
    alpha: float = 10e-6  # seconds that a message takes however short it is
    inter_bandwidth: float = 50e9  # between hosts
    intra_bandwidth: float = 450e9  # inside a host: NVLink 4, data sheet
    memory_bandwidth: float = 3.35e12  # of the device's own memory: HBM3, data sheet
    host_bandwidth: float = 50e9  # device to host and back: assumed, of the 64 GB/s of PCIe 5 x16
    nvme_bandwidth: float = 1.6e9  # reads and writes together, when all ranks of a host use it: ZeRO-Infinity sec. 6.1
    # parameters a second that all CPUs of a host update: ZeRO-Offload (arXiv:2101.06840), table 4
    host_adam: float = 10e9 / 2.57

    @property
    def flops(self) -> float:
        """What a rank really computes in a second."""
        return self.peak_flops * self.efficiency

    def message_seconds(self, nbytes: float, rounds: int, bandwidth: float) -> float:
        """The alpha-beta model of `rounds` messages of `nbytes` in all."""
        return rounds * self.alpha + nbytes / bandwidth

    def ring_seconds(self, nbytes: float, ranks: int, bandwidth: float | None = None) -> float:
        """A ring all-gather or reduce-scatter of `nbytes` over `ranks` ranks.

        Between hosts, unless another bandwidth is given.
        """
        return self.message_seconds(nbytes * (ranks - 1) / ranks, ranks - 1, bandwidth or self.inter_bandwidth)

    def compute_seconds(self, params: float, tokens: float, per_param: float = TRAIN_FLOPS) -> float:
        """per_param: operations per parameter and token; 2 for a forward, 4 for a backward, 6 for both."""
        return per_param * params * tokens / self.flops


LECTURE_TOKENS = 16_384  # of a rank in a step
LECTURE = Machine()
