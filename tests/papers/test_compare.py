"""Other programs' estimates, by their formulas; each with a reason."""

from __future__ import annotations

import pytest

from mpizero.layout import optimizer_spec
from mpizero.papers import compare

P, L, U = 13 * 10**9, 163_840_000, 314_636_800


def bytes_of(stage, ranks, dtype="float16"):
    return {estimate.source: estimate.device_bytes for estimate in compare.others(P, ranks, stage, dtype, L, U)}


def test_deepspeed():
    """2P + 18P/N for stages 1 and 2; 4L + 18P/N for stage 3."""
    for stage in "12":
        assert bytes_of(stage, 64)["DeepSpeed, stages 1 and 2"] == 2 * P + 18 * P // 64
    assert bytes_of("3", 64)["DeepSpeed, stage 3"] == 4 * L + 18 * P // 64
    assert not any("DeepSpeed" in source for source in bytes_of("0", 64))


def test_fsdp():
    """Float32 shards of parameters, gradients and moments, 16P/N; two units and a gradient whole, or all parameters."""
    assert bytes_of("3", 64)["PyTorch FSDP2, fully_shard"] == 16 * P // 64 + 6 * U
    assert bytes_of("3", 64, "float32")["PyTorch FSDP2, fully_shard"] == 16 * P // 64 + 12 * U
    assert bytes_of("2", 64)["PyTorch FSDP2, no reshard"] == 16 * P // 64 + 2 * P + 2 * U
    assert not any("FSDP2" in source for stage in "01" for source in bytes_of(stage, 64))


def test_megatron():
    """4 + 16/d, 6 + 12/d, 8 + 8/d by parameter and gradient type."""
    def megatrons(*arguments):
        return [n for source, n in bytes_of(*arguments).items() if "Megatron" in source]

    assert megatrons("1", 8) == [4 * P + 16 * P // 8, 6 * P + 12 * P // 8]
    assert megatrons("1", 8, "float32") == [8 * P + 8 * P // 8]
    assert megatrons("1", 1) == megatrons("0", 64) == [20 * P, 18 * P]


def test_accelerate_takes_a_maximum():
    for stage, ranks in (("2", 64), ("0", 1)):
        assert bytes_of(stage, ranks)["accelerate estimate-memory"] == max(4, 6, 8, 8) * P
    assert bytes_of("2", 64, "float32")["accelerate estimate-memory"] == 16 * P


def test_papers():
    assert bytes_of("2", 64)["ZeRO, table 1"] == 2 * P + 14 * P // 64
    assert bytes_of("3", 64)["ZeRO-Infinity, sec. 3"] == 20 * P // 64
    lion = {estimate.source: estimate.device_bytes
            for estimate in compare.others(P, 64, "2", "float16", L, U, optimizer_spec("lion"))}
    assert lion["ZeRO, sec. 5 with K = 8"] == 2 * P + 10 * P // 64 and "ZeRO, table 1" not in lion


@pytest.mark.parametrize("stage", "0123")
def test_every_difference_has_a_reason_of_one_line(stage):
    for estimate in compare.others(P, 64, stage, "float16", L, U):
        assert 20 < len(estimate.why) < 110 and "\n" not in estimate.why and isinstance(estimate.device_bytes, int)
