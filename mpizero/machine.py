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


@dataclass(frozen=True)
class Gpu:
    """A device as its data sheet has it: memory in bytes; rates as in `Machine`, so bandwidths are of one direction,
    half of the sum of both that data sheets print for links. None: not in the sheet; `Machine`'s default holds."""

    name: str
    memory: int
    peak_flops: float  # dense, 16-bit operands; half of what sheets print "with sparsity"
    memory_bandwidth: float
    intra_bandwidth: float  # NVLink
    host_bandwidth: float | None  # PCIe
    source: str


_V100, _A100 = "NVIDIA V100 data sheet, January 2020", "NVIDIA A100 data sheet, June 2021"
GPUS = {
    # 125 TFLOPS float16 (it has no bfloat16); 900 GB/s; NVLink 300 GB/s and PCIe 3 32 GB/s, both directions
    "v100": Gpu("V100 SXM2 32GB", 32 * 10**9, 125e12, 900e9, 150e9, 16e9, _V100),
    "v100-16gb": Gpu("V100 SXM2 16GB", 16 * 10**9, 125e12, 900e9, 150e9, 16e9, _V100),
    # 312 TFLOPS; 2,039 GB/s (40 GB: 1,555); NVLink 600 GB/s, PCIe 4 64 GB/s
    "a100": Gpu("A100 SXM 80GB", 80 * 10**9, 312e12, 2039e9, 300e9, 32e9, _A100),
    "a100-40gb": Gpu("A100 SXM 40GB", 40 * 10**9, 312e12, 1555e9, 300e9, 32e9, _A100),
    # 1,979 TFLOPS with sparsity, 989.4 dense (H100 architecture white paper, table 2); 3.35 TB/s; NVLink 900 GB/s,
    # PCIe 5 128 GB/s
    "h100": Gpu("H100 SXM 80GB", 80 * 10**9, 989.4e12, 3.35e12, 450e9, 64e9, "NVIDIA H100 data sheet, 2023"),
    # as the H100, but 141 GB at 4.8 TB/s
    "h200": Gpu("H200 SXM 141GB", 141 * 10**9, 989.4e12, 4.8e12, 450e9, 64e9, "NVIDIA H200 data sheet, 2024"),
    # of DGX B200's eight: 1,440 GB at 64 TB/s, NVLink 14.4 TB/s; HGX B200's: 36 PFLOPS with sparsity
    "b200": Gpu("B200 SXM 180GB", 180 * 10**9, 2.25e15, 8e12, 900e9, None,
                "NVIDIA DGX B200 data sheet and Blackwell architecture brief, 2024"),
}


LECTURE_TOKENS = 16_384  # of a rank in a step
LECTURE = Machine()
