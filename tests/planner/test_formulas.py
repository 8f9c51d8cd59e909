"""Closed forms against the list of actions, for units of any number of segments."""

from __future__ import annotations

import pytest

from mpizero.layout import named_policy
from mpizero.layout.models import GPTConfig, gpt_spec
from mpizero.planner import (
    formula_after_backward, formula_sent, gathered_more, plan_memory, plan_traffic, sent_bytes,
)
from mpizero.schedule import StepSettings, set_up

SPEC = gpt_spec(GPTConfig(layers=4, d_model=16, heads=2, context=8, vocab=32))
TIED = 32 * 16 + 8 * 16  # the embedding's unit, which the head reads too: tokens and positions


def made(stage, wrap, shards=4):
    return set_up(SPEC, 4, StepSettings(stage, shards), dtype="float32",
                  policy=named_policy(wrap, SPEC, "float32"))


@pytest.mark.parametrize("shards", [2, 4])
@pytest.mark.parametrize("wrap", ["layer", "block", "30KB", "40KB", "1MB"])
@pytest.mark.parametrize("stage", ["3", "3-broadcast"])
def test_what_is_sent(stage, wrap, shards):
    setup = made(stage, wrap, shards)
    for rank in range(shards):
        geometry = setup.geometry.at(rank)
        assert sent_bytes(plan_traffic(setup.lists.step(), geometry)) == formula_sent(geometry, 3)


def test_what_is_gathered_more():
    """A tied unit, once more in forward and in backward; nothing where its two segments are neighbours, as are all of
    one unit; and nothing where nobody gathers."""
    assert gathered_more(made("3", "block").geometry) == 2 * TIED
    assert gathered_more(made("3", "1MB").geometry) == gathered_more(made("2", "block").geometry) == 0


def test_larger_units_send_no_more_than_smaller_ones():
    """Blocks that share a unit are gathered together, once for all of them."""
    sent = [sent_bytes(plan_traffic(made("3", wrap).lists.step(), made("3", wrap).geometry))
            for wrap in ("block", "30KB", "1MB")]
    assert sent == sorted(sent, reverse=True)


@pytest.mark.parametrize("stage", ["0", "1", "1-allreduce", "2", "3", "3-broadcast"])
@pytest.mark.parametrize("offload", ["optimizer=cpu", "params=cpu,optimizer=cpu"])
def test_what_is_off_the_device_does_not_count(stage, offload):
    if "params" in offload and stage != "3":
        pytest.skip("parameters that are kept whole rest on the device")
    setup = set_up(SPEC, 4, StepSettings(stage, offload=offload))
    plan = plan_memory(setup.lists.step(), setup.geometry)
    assert plan.after_backward_bytes == formula_after_backward(setup.geometry)
