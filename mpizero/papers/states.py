"""Model states in closed form, beside what the papers print. GB = 1e9 bytes.

ZeRO (arXiv:1910.02054) and ZeRO-Infinity (arXiv:2104.07857). Exact plans come from walking actions
(`planner.footprint`); these are the formulas that they must agree with.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from mpizero.dtypes import ITEMSIZE
from mpizero.layout import ADAM, REPLICATED, OptimizerSpec, optimizer_bytes
from mpizero.schedule import STRATEGIES

GB = 10**9
# bytes per parameter, mixed precision: ZeRO sec. 3.1
STATES = {"param": 2, "grad": 2, "master": 4, "exp_avg": 4, "exp_avg_sq": 4}
FP32_GRAD = 4  # a resident float32 gradient, which DeepSpeed's report and ZeRO-Infinity (sec. 3) count too
NAMES = {"0": "baseline", "1": "P_os", "2": "P_os+g", "3": "P_os+g+p"}  # as in ZeRO's tables

TABLE_1_RANKS = (1, 4, 16, 64, 256, 1024)
# parameters -> stage -> GB as printed: large cells truncated, small ones rounded
TABLE_1: dict[int, dict[str, tuple[float, ...]]] = {
    7_500_000_000: {"1": (120, 52.5, 35.6, 31.4, 30.4, 30.1), "2": (120, 41.3, 21.6, 16.6, 15.4, 15.1),
                    "3": (120, 30, 7.5, 1.88, 0.47, 0.12)},
    128_000_000_000: {"1": (2048, 896, 608, 536, 518, 513), "2": (2048, 704, 368, 284, 263, 257),
                      "3": (2048, 512, 128, 32, 8, 2)},
    1_000_000_000_000: {"1": (16000, 7000, 4750, 4187, 4046, 4011), "2": (16000, 5500, 2875, 2218, 2054, 2013),
                        "3": (16000, 4000, 1000, 250, 62.5, 15.6)},
}
TABLE_2_DEVICE, TABLE_2_RANKS = 32 * GB, 64
# model parallelism -> stage -> billions of parameters as ZeRO prints them: the rounded values of MP = 1 times MP
TABLE_2 = {
    1: {"0": 2, "1": 7.6, "2": 14.4, "3": 128}, 2: {"0": 4, "1": 15.2, "2": 28.8, "3": 256},
    4: {"0": 8, "1": 30.4, "2": 57.6, "3": 512},
    8: {"0": 16, "1": 60.8, "2": 115.2, "3": 1000}, 16: {"0": 32, "1": 121.6, "2": 230.4, "3": 2000},
}
# billions that really ran with P_os: activations, buffers, fragmentation
TABLE_2_MEASURED = {1: 6.2, 2: 12.5, 4: 25, 8: 50, 16: 100}


@dataclass(frozen=True)
class Cell:
    """One value of a paper's table, beside ours. `difference` is relative to the printed one."""

    label: str
    stage: str
    count: int  # ranks, or the degree of model parallelism
    computed: int | float
    printed: int | float

    @property
    def difference(self) -> float:
        return abs(self.computed - self.printed) / self.printed


def bytes_per_parameter(fp32_grad: bool = False) -> int:
    """16 as ZeRO counts (2 + 2 + K, K = 12), or 20 with a resident float32 gradient."""
    return sum(STATES.values()) + (FP32_GRAD if fp32_grad else 0)


def form(stage: str, dtype: str = "float16", sum_dtype: str | None = None,
         optimizer: OptimizerSpec = ADAM) -> tuple[int, int]:
    """(a, b) of a psi + b psi/N, the bytes on a rank after backward: of Adam (16, 0), (4, 12), (2, 14), (0, 16). From
    the strategy's placement and the optimizer's K. ZeRO sec. 5. sum_dtype: of gradients that are reduced by then; None:
    dtype."""
    keep, size = STRATEGIES[stage].placement, ITEMSIZE[dtype]
    reduced = keep.grads is keep.optim  # stage 1 reduces after backward
    grad = ITEMSIZE[sum_dtype or dtype] if reduced else size
    parts = ((keep.params, size), (keep.grads, grad), (keep.optim, optimizer_bytes(optimizer, dtype)))
    whole, divided = (sum(nbytes for kept, nbytes in parts if (kept is not REPLICATED) is sharded)
                      for sharded in (False, True))
    return whole, divided


def form_text(stage: str, dtype: str = "float16", ranks: str = "N", sum_dtype: str | None = None,
              optimizer: OptimizerSpec = ADAM) -> str:
    """`4 psi + 12 psi/N`."""
    whole, divided = form(stage, dtype, sum_dtype, optimizer)
    return " + ".join(([f"{whole} psi"] if whole else []) + ([f"{divided} psi/{ranks}"] if divided else []))


def per_parameter(stage: str, ranks: int, dtype: str = "float16", sum_dtype: str | None = None,
                  optimizer: OptimizerSpec = ADAM) -> Fraction:
    """Bytes per parameter on a rank after backward, of which `ranks` share what is sharded."""
    whole, divided = form(stage, dtype, sum_dtype, optimizer)
    return whole + Fraction(divided, ranks)


def stage_bytes(psi: int, stage: str, ranks: int, dtype: str = "float16",
                sum_dtype: str | None = None, optimizer: OptimizerSpec = ADAM) -> int | float:
    """Model-state bytes on a rank after backward, without padding. An int wherever it is whole."""
    return plain(psi * per_parameter(stage, ranks, dtype, sum_dtype, optimizer))


def plain(value: Fraction) -> int | float:
    """The int that `value` is, or else the nearest float."""
    return int(value) if value.denominator == 1 else float(value)


def table_1() -> list[Cell]:
    """ZeRO's table 1 (and figure 1), bytes: 54 values. The largest difference is 2.34 %: 0.1172 GB, printed as 0.12."""
    return [Cell(f"{psi / GB:g}B", stage, ranks, stage_bytes(psi, stage, ranks), printed * GB)
            for psi, stages in TABLE_1.items() for stage, row in stages.items()
            for ranks, printed in zip(TABLE_1_RANKS, row, strict=True)]


def largest_model(device_bytes: int, stage: str, ranks: int, model_parallel: int = 1) -> int | float:
    """Parameters whose model states fill `device_bytes` on each of `ranks` x `model_parallel` devices."""
    return plain(model_parallel * device_bytes / per_parameter(stage, ranks))


def table_2() -> list[Cell]:
    """ZeRO's table 2, parameters: the largest model that 32 GB devices hold in theory, 64-way data parallelism."""
    return [Cell(f"MP {mp}", stage, mp, largest_model(TABLE_2_DEVICE, stage, TABLE_2_RANKS, mp), printed * GB)
            for mp, row in TABLE_2.items() for stage, printed in row.items()]


def largest_difference(cells: list[Cell]) -> float:
    return max(cell.difference for cell in cells)


def working_memory(hidden: int) -> int:
    """MSWM: float16 parameters and gradients of the largest operator, the Linear hd -> 4 hd, which must lie on the
    device in one piece even when all states are elsewhere. ZeRO-Infinity sec. 3, eq. 4."""
    return 2 * STATES["param"] * hidden * 4 * hidden


def fused_buffer(psi: int) -> int:
    """All gradients copied into one float32 buffer, for one large all-reduce or a norm. It grows with the model;
    constant-size buffers (C_B) do not. ZeRO sec. 3.2, 6.2."""
    return FP32_GRAD * psi
