"""The machine that an estimate of time assumes, and where each of its figures comes from. Bytes need none of this.

[Note: Rings across hosts]
Ranks fill hosts in order. Along an axis of the mesh many rings run at once, all alike; of the host that most of them
leave, `Route.leaving` do. Each carries `nbytes` out of it, so leaving x nbytes leave the host, over its NICs:

* one ring, as mpizero runs and as the lecture counts: a ring crosses the border between two hosts at one rank, so over
  one NIC, however many there are; rings that leave side by side have a NIC each, as far as there are as many.
* all NICs, as NCCL: a collective is cut up over several rings that cross the border at different ranks, so all NICs of
  the host share what leaves it (github.com/NVIDIA/nccl-tests, issue 277).

Either way a ring that also goes on inside hosts is no faster than the links there. Links run at their full rates: what
a cluster reaches of them, nccl-tests measures, and flags say.
"""

from __future__ import annotations

from dataclasses import dataclass

# per parameter and token: forward 2, backward 4, forward again 2. ZeRO-Infinity sec. 4.1
RECOMPUTE_FLOPS, TRAIN_FLOPS = 8, 6


@dataclass(frozen=True)
class Route:
    """Where the rings of an axis run: how many leave the host that most of them leave (0: all stay inside)."""

    leaving: int = 1
    ranks_per_host: int = 8


BETWEEN_HOSTS = Route()


@dataclass(frozen=True)
class Machine:
    """Rates of one rank unless a comment says otherwise; bandwidths are bytes a second in one direction.

    The defaults are one machine, not a law: an H100 at half its peak, as the lecture (CMU 15-779 Fall 2025, lecture 13)
    assumes for its 13B model, with a NIC of 400 Gb/s for each, of which a ring uses one. See `SOURCES`.
    """

    peak_flops: float = 989.4e12  # 16-bit operands, dense
    efficiency: float = 0.5
    alpha: float = 10e-6  # seconds that a message takes however short it is
    inter_bandwidth: float = 50e9  # of a NIC
    intra_bandwidth: float = 450e9  # inside a host
    memory_bandwidth: float = 3.35e12  # of the device's own memory
    host_bandwidth: float = 64e9  # device to host and back
    nvme_bandwidth: float = 1.6e9  # reads and writes together, when all ranks of a host use it
    host_adam: float = 10e9 / 2.57  # parameters a second that all CPUs of a host update
    nics: int | None = None  # of a host; None: one a rank
    all_nics: bool = False  # see [Note: Rings across hosts]
    intra_alpha: float | None = None  # of a message inside a host; None: alpha
    update_bandwidth: float | None = None  # what an optimizer makes of the memory's; None: all of it

    @property
    def flops(self) -> float:
        """What a rank really computes in a second."""
        return self.peak_flops * self.efficiency

    def wire_seconds(self, nbytes: float, rounds: int, route: Route = BETWEEN_HOSTS) -> float:
        """Of a ring in which each rank sends `nbytes`, in `rounds` messages: the alpha-beta model, with the slowest
        link that the ring goes over."""
        slowest = nbytes / self.intra_bandwidth if route.leaving < route.ranks_per_host else 0.0
        if route.leaving:
            nics = self.nics or route.ranks_per_host
            used = nics if self.all_nics else min(route.leaving, nics)
            slowest = max(slowest, nbytes * (route.leaving / used) / self.inter_bandwidth)
        alpha = self.alpha if route.leaving or self.intra_alpha is None else self.intra_alpha
        return rounds * alpha + slowest

    def ring_seconds(self, nbytes: float, ranks: int, route: Route = BETWEEN_HOSTS) -> float:
        """A ring all-gather or reduce-scatter of `nbytes` over `ranks` ranks."""
        return self.wire_seconds(nbytes * (ranks - 1) / ranks, ranks - 1, route)

    def compute_seconds(self, params: float, tokens: float, per_param: float = TRAIN_FLOPS) -> float:
        """per_param: operations per parameter and token; 2 for a forward, 4 for a backward, 6 for both."""
        return per_param * params * tokens / self.flops


LECTURE_TOKENS = 16_384  # of a rank in a step
LECTURE = Machine()
# of the defaults: assumed, where no data sheet has them
SOURCES = {
    "peak_flops": "NVIDIA H100 data sheet, 2023", "intra_bandwidth": "NVIDIA H100 data sheet, 2023",
    "memory_bandwidth": "NVIDIA H100 data sheet, 2023", "host_bandwidth": "NVIDIA H100 data sheet, 2023",
    "inter_bandwidth": "NVIDIA DGX H100 data sheet, 2023", "efficiency": "assumed", "alpha": "assumed",
    "nvme_bandwidth": "ZeRO-Infinity, sec. 6.1", "host_adam": "ZeRO-Offload, table 4"}
# what stands between hosts where a machine was measured that was only one
ETHERNET = {"alpha": 50e-6, "inter_bandwidth": 1.25e9}
ETHERNET_SOURCE = "assumed, Ethernet of 10 Gb/s"


@dataclass(frozen=True)
class Gpu:
    """A device as its data sheet has it, in the host of its DGX. memory: the sheet's GB, of 1e9 bytes (a driver reports
    more: an H100 of 80 GB 85.5e9). Rates as in `Machine`: of one direction, half of the sum of both that sheets print
    for links. sources: by rate; ranks_per_nic: in the DGX."""

    name: str
    memory: int
    peak_flops: float  # dense, 16-bit operands; half of what sheets print "with sparsity"
    memory_bandwidth: float
    intra_bandwidth: float  # NVLink
    host_bandwidth: float  # PCIe
    inter_bandwidth: float  # a NIC of the DGX
    ranks_per_nic: int
    sheet: str
    host_sheet: str

    @property
    def sources(self) -> dict[str, str]:
        own = ("peak_flops", "memory_bandwidth", "intra_bandwidth", "host_bandwidth")
        return dict.fromkeys(own, self.sheet) | {"inter_bandwidth": self.host_sheet}


_V100 = ("NVIDIA V100 data sheet, January 2020", "NVIDIA DGX-1 data sheet, 2017 (4 NICs of 100 Gb/s for 8 GPUs)")
_A100 = ("NVIDIA A100 data sheet, June 2021", "NVIDIA DGX A100 data sheet, 2020 (8 NICs of 200 Gb/s)")
_H100 = ("NVIDIA H100 data sheet, 2023", "NVIDIA DGX H100 data sheet, 2023 (8 NICs of 400 Gb/s)")
_H200 = ("NVIDIA H200 data sheet, 2024", "NVIDIA DGX H200 data sheet, 2024 (8 NICs of 400 Gb/s)")
_B200 = ("NVIDIA DGX B200 data sheet, 2024, and for PCIe 5 x16 MLPerf's system descriptions",
         "NVIDIA DGX B200 data sheet, 2024 (8 NICs of 400 Gb/s)")
GPUS = {
    # 125 TFLOPS float16 (it has no bfloat16); 900 GB/s; NVLink 300 GB/s and PCIe 3 32 GB/s, both directions
    "v100": Gpu("V100 SXM2 32GB", 32 * 10**9, 125e12, 900e9, 150e9, 16e9, 12.5e9, 2, *_V100),
    "v100-16gb": Gpu("V100 SXM2 16GB", 16 * 10**9, 125e12, 900e9, 150e9, 16e9, 12.5e9, 2, *_V100),
    # 312 TFLOPS; 2,039 GB/s (40 GB: 1,555); NVLink 600 GB/s, PCIe 4 64 GB/s
    "a100": Gpu("A100 SXM 80GB", 80 * 10**9, 312e12, 2039e9, 300e9, 32e9, 25e9, 1, *_A100),
    "a100-40gb": Gpu("A100 SXM 40GB", 40 * 10**9, 312e12, 1555e9, 300e9, 32e9, 25e9, 1, *_A100),
    # 1,979 TFLOPS with sparsity, 989.4 dense (H100 architecture white paper, table 2); 3.35 TB/s; NVLink 900 GB/s,
    # PCIe 5 128 GB/s
    "h100": Gpu("H100 SXM 80GB", 80 * 10**9, 989.4e12, 3.35e12, 450e9, 64e9, 50e9, 1, *_H100),
    # as the H100, but 141 GB at 4.8 TB/s
    "h200": Gpu("H200 SXM 141GB", 141 * 10**9, 989.4e12, 4.8e12, 450e9, 64e9, 50e9, 1, *_H200),
    # of DGX B200's eight: 1,440 GB at 64 TB/s, NVLink 14.4 TB/s; HGX B200's: 36 PFLOPS with sparsity
    "b200": Gpu("B200 SXM 180GB", 180 * 10**9, 2.25e15, 8e12, 900e9, 64e9, 50e9, 1, *_B200),
}
