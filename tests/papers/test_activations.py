"""Activations in closed form: the papers' numbers."""

from __future__ import annotations

import pytest

from mpizero.layout.models import GPTConfig
from mpizero.papers import activations as act

# ZeRO's 1.5B and 100B
SMALL = {"hidden": 1600, "batch": 32, "seq": 1024, "layers": 48}
LARGE = {"hidden": 8192, "batch": 32, "seq": 1024, "layers": 125}


def test_gpt2_in_whole_and_recomputed():
    assert 2 * act.transformer_activations(**SMALL) == 60_397_977_600  # float16: 60.4 GB
    assert act.recompute_checkpoints(**SMALL) == 5_033_164_800


def test_100b_model_on_16_devices():
    """By its own formula the paper's 33 GB and 2 GB would be twice as much: both are reported."""
    checkpoints = act.recompute_checkpoints(**LARGE)
    assert (checkpoints, act.partitioned(checkpoints, 16)) == (67_108_864_000, 4_194_304_000)
    assert (act.PRINTED_100B_CHECKPOINTS, act.PRINTED_100B_PARTITIONED) == (33e9, 2e9)
    assert checkpoints / act.PRINTED_100B_CHECKPOINTS == pytest.approx(2, rel=0.02)
    assert act.partitioned(checkpoints, 16) / act.PRINTED_100B_PARTITIONED == pytest.approx(2, rel=0.05)
    assert isinstance(act.partitioned(checkpoints, 16), int) and act.partitioned(7, 2) == 3.5


def test_interval():
    assert act.recompute_checkpoints(1600, 32, 1024, 48, interval=4) == 5_033_164_800 // 4


# -- PyTorch -----------------------------------------------------------------------------------------------------------

SIZES = GPTConfig(layers=2, d_model=64, heads=4, context=32, vocab=96)
BATCH = 3
# python tests/papers/golden_torch.py
GOLDEN = {"torch": "2.13.0+cpu", "flash": 198_912, "eager": 296_704, "head": 24_960, "loss": 110_600}


def parts(**options):
    """Bytes of a block with its input, of the head with its own, of the loss."""
    table = act.pytorch(SIZES, (BATCH, 32), "bfloat16", **options)
    flow, block, head = table.segments[0].output, table.segments[1], table.segments[-1]
    return block.kept + flow, head.kept + flow, table.loss_kept


def test_what_pytorch_really_keeps():
    """The same to the byte but for what differs on CPUs: statistics of norms have 2 bytes there, not 4; dropout's masks
    2, not 1; and eager attention's causal mask (s s bytes) is counted, though all blocks could share one."""
    tokens, h, heads, seq = BATCH * 32, 64, 4, 32
    block, head, loss = parts()
    assert block == GOLDEN["flash"] + 2 * 4 * tokens and head == GOLDEN["head"] + 2 * 2 * tokens
    assert loss == GOLDEN["loss"] - 8  # two numbers
    masks = tokens * (2 * h + heads * seq)
    assert parts(eager=True)[0] == GOLDEN["eager"] + 2 * 4 * tokens - masks - seq * seq


def test_korthikanti():
    """34 s b h + 5 a s^2 b a block, sec. 4.1; 32 s b h with flash attention and no dropout. Statistics apart."""
    s, b, h, a = 32, BATCH, 64, 4
    assert parts(eager=True)[0] - 16 * s * b == 34 * s * b * h + 5 * a * s * s * b
    assert parts()[0] - 16 * s * b == 32 * s * b * h + 4 * a * s * b


def test_a_fused_loss_keeps_no_number_a_logit():
    assert parts(fused_loss=True) == (*parts()[:2], 2 * 4 * BATCH * 32)
