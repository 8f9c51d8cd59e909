"""Activations: the papers' numbers, and the table of bytes that operators of a model report themselves."""

from __future__ import annotations

import pytest

from mpizero.dtypes import ITEMSIZE
from mpizero.nn.gpt import GPTConfig, gpt
from mpizero.nn.loss import cross_entropy_saved_bytes
from mpizero.nn.mlp import mlp
from mpizero.planner import activations as act
from mpizero.schedule.actions import Backward, Forward, Unshard

SMALL, LARGE = dict(hidden=1600, batch=32, seq=1024, layers=48), dict(hidden=8192, batch=32, seq=1024, layers=125)  # ZeRO's 1.5B and 100B


def test_gpt2_in_whole_and_recomputed():
    assert 2 * act.transformer_activations(**SMALL) == 60_397_977_600  # float16: 60.4 GB
    assert act.recompute_checkpoints(**SMALL) == 5_033_164_800


def test_100b_model_on_16_devices():
    """By its own formula the paper's 33 GB and 2 GB would be twice as much: both are reported."""
    checkpoints = act.recompute_checkpoints(**LARGE)
    assert (checkpoints, act.partitioned(checkpoints, 16)) == (67_108_864_000, 4_194_304_000)
    assert checkpoints / act.PRINTED_100B_CHECKPOINTS == pytest.approx(2, rel=0.02)
    assert act.partitioned(checkpoints, 16) / act.PRINTED_100B_PARTITIONED == pytest.approx(2, rel=0.05)
    assert isinstance(act.partitioned(checkpoints, 16), int)


def test_a_step_by_hand():
    """Two Linears without a cast, 4 -> 3 -> 2, and 5 samples in float32: x, y of each, the loss; then what each backward leaves."""
    model = act.mlp_bytes(3, 2, 4, 2, samples=5, dtype="float32")
    x, y, logits, targets, loss = 80, 60, 40, 40, 40
    actions = [Forward(0, 0), Unshard(1), Forward(1, 0), Backward(1, 0), Backward(0, 0)]
    forward = x + targets + y
    assert act.plan_activations(actions, model) == [forward, forward, forward + logits + loss, x + y + y, 0]  # y, and dy as large
    assert model.after_forward == forward + logits + loss


def test_interval_and_working_memory():
    assert act.recompute_checkpoints(1600, 32, 1024, 48, interval=4) == 5_033_164_800 // 4
    assert act.recompute_working_memory(hidden=1600, heads=25, batch=2, seq=1024) == 2 * 1024 * (16 * 1600 + 2 * 25 * 1024)


def test_partitioning_sends_less_than_a_tenth_more():
    megatron, gather = act.partitioned_traffic(1024, 8192)
    assert gather / megatron == 1 / 12 < 0.1


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_tables_are_what_operators_report(dtype):
    size = ITEMSIZE[dtype]
    model, planned = mlp(hidden=10, layers=3, inputs=7, classes=5), act.mlp_bytes(10, 3, 7, 5, samples=6, dtype=dtype)
    assert [stage.saved for stage in planned.stages] == [stage.saved_bytes((6,), size) for stage in model.stages]
    assert planned.loss == cross_entropy_saved_bytes(6, size)
    model = gpt(GPTConfig(layers=2, d_model=8, heads=2, context=6, vocab=11))
    planned = act.gpt_bytes(2, 8, 2, 11, batch=3, seq=6, dtype=dtype)
    assert [stage.saved for stage in planned.stages] == [stage.saved_bytes((3, 6), size) for stage in model.stages]
    assert planned.loss == cross_entropy_saved_bytes(18, size)
