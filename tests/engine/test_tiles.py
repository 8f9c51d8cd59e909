"""Tiles: the same result to rounding for every number of them, the same bits at every stage, planned to the byte."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from mpizero.engine.export import sha256
from mpizero.engine.job import prepare
from mpizero.engine.trainer import run_steps
from mpizero.errors import ConfigError, OutOfDeviceMemory
from mpizero.memory.kinds import ACTIVATION
from mpizero.schedule import STRATEGIES
from tests.engine.plans import run_as_planned
from tests.engine.runs import GPT, MLP, run
from tests.engine.test_need import dies_below, fits_exactly

SMALL = replace(MLP, hidden=7, steps=2, clip=0.5, batch_size=2, tiles=3)
TEXTS = replace(GPT, layers=3, steps=2, batch_size=1, tiles=2)
OPTIONS = {
    "float16": {"dtype": "float16", "accumulation": 2, "overlap": "on", "backward_prefetch": 2, "forward_prefetch": 1},
    "bfloat16": {"dtype": "bfloat16", "accumulation": 4, "no_sync": True, "sum_dtype": "float32"},
    "recompute": {"recompute": True, "accumulation": 2, "recompute_interval": 2, "overlap": "on"},
    "offload": {"offload": "optimizer=cpu", "overlap": "on", "recompute": True},
    "limited": {"backward_prefetch": 9, "forward_prefetch": 9, "limit_all_gathers": 2, "keep_last_unit": True},
    "frozen": {"freeze": ("w?e.*", "h.0.ln*", "h.0.*bias", "h.0.attn.c_attn*", "h.2.mlp.c_fc.*"), "recompute": True,
               "wrap": "2kB"},
}


@pytest.mark.parametrize("config, name", [
    (SMALL, "plain"), (SMALL, "float16"), (TEXTS, "bfloat16"), (SMALL, "recompute"), (TEXTS, "recompute"),
    (TEXTS, "offload"), (TEXTS, "limited"), (TEXTS, "frozen")], ids=lambda value: getattr(value, "model", value))
def test_same_bits_at_every_stage_as_planned(group, config, name):
    """Whatever else is set, and with uneven tiles: 3 of 7 and 32 rows."""
    if name == "bfloat16":
        pytest.importorskip("ml_dtypes")
    config = replace(config, **OPTIONS.get(name, {}))
    plain = replace(config, stage="0", recompute=False, recompute_interval=1, offload=None)
    expected = run_as_planned(plain, group)[1]
    assert len(set(expected.losses)) == config.steps
    for stage in STRATEGIES:
        assert run_as_planned(replace(config, stage=stage), group)[1] == expected, stage
