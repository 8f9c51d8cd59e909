"""Activations over a step, by hand. That operators really leave the bytes of these tables: see
tests/nn/test_memory.py."""

from __future__ import annotations

import pytest

from mpizero.layout.models import GPTConfig, MLPSizes, gpt_spec, mlp_spec
from mpizero.memory.kinds import ACTIVATION
from mpizero.planner import plan_memory
from mpizero.planner.activations import storage_bytes, storages
from mpizero.schedule import values as v
from mpizero.schedule.actions import Phase
from tests.schedule.toys import setup

TWO_LINEARS = mlp_spec(MLPSizes(hidden=3, layers=2, inputs=4, classes=2))
SAMPLES = 5


def live(actions, geometry, table):
    """Bytes after each action that is no mark, update or reduction."""
    points = plan_memory(actions, geometry, table).points
    return [point.live[ACTIVATION] for point in points if not isinstance(point.action, Phase)]


def test_a_step_by_hand():
    """Two Linears without a cast, 4 -> 3 -> 2, and 5 samples in float32: x, y of each, the loss; then what each
    backward leaves."""
    made, table = setup("0", TWO_LINEARS, 1), TWO_LINEARS.activations((SAMPLES,), "float32")
    x, y, logits, targets, loss = 80, 60, 40, 40, 40
    forward = x + targets + y
    assert live(made.lists.accumulate, made.geometry, table) == [
        x + targets, forward, forward + logits, forward + logits + loss,
        # dlogits in the logits' place; y, and dy as large; reductions between
        x + y + logits, x + y + y, x + y + y, 0, 0, 0]
    assert table.after_forward == forward + logits + loss


def test_a_step_with_a_cast_by_hand():
    """In float16 the first Linear keeps the data as it casts it, so the data itself goes."""
    made, table = setup("0", TWO_LINEARS, 1), TWO_LINEARS.activations((SAMPLES,), "float16")
    x, cast, y, logits, targets, loss = 80, 40, 30, 20, 40, 40
    assert live(made.lists.accumulate, made.geometry, table) == [
        x + targets, cast + y + targets, cast + y + targets + logits, cast + y + targets + logits + loss,
        cast + y + logits, cast + y + y, cast + y + y, 0, 0, 0]
    assert table.after_forward == cast + y + targets + logits + loss


def test_an_evaluation_keeps_no_more_than_one_output():
    made, table = setup("3", TWO_LINEARS, 1), TWO_LINEARS.activations((SAMPLES,), "float32")
    x, y, logits, targets = 80, 60, 40, 40
    after_y, after_logits = [y + targets] * 3, [logits + targets] * 2  # forward, Reshard, Unshard; forward, Reshard
    assert live(made.lists.evaluate, made.geometry, table) == [x + targets] * 2 + after_y + after_logits + [0]


def test_microbatches_follow_one_another():
    """Each frees what it took, so two need no more than one."""
    table = TWO_LINEARS.activations((SAMPLES,), "float32")
    once, twice = (setup("2", TWO_LINEARS, 4, accumulation=count) for count in (1, 2))
    assert max(live(twice.lists.step(), twice.geometry, table)) == max(live(once.lists.step(), once.geometry, table))


@pytest.mark.parametrize("stage", ["0", "2", "3"])
def test_a_gpt_by_hand(stage):
    """2 blocks of width 8 and 2 heads, 3 texts of 6 tokens of 11: per token 10 C + H + 4 numbers of a block, in float16
    and (heads, statistics) float32."""
    spec = gpt_spec(GPTConfig(layers=2, d_model=8, heads=2, context=6, vocab=11))
    made, table = setup(stage, spec, 2), spec.activations((3, 6), "float16")
    tokens = 18
    flow, block, logits = tokens * 8 * 2, tokens * (9 * 8 * 2 + (2 + 4) * 4), tokens * 11 * 2
    ids, head, loss = 8 * tokens, 2 * 4 * tokens, 2 * 4 * tokens
    kept = ids + 3 * flow + 2 * block + head + logits + loss + ids  # ids again: the targets
    points = plan_memory(made.lists.step(), made.geometry, table).points
    assert max(point.live[ACTIVATION] for point in points) == table.after_forward == kept
    after = {type(point.action).__name__: point.live[ACTIVATION] for point in reversed(points)}  # of each, the first
    assert (after["LoadBatch"], after["Forward"]) == (2 * ids, 2 * ids + flow)
    assert after["LossBackward"] == kept - loss - ids
    assert after["Backward"] == kept - loss - ids - logits - head  # and dx has come in the place of x
    assert points[-1].live[ACTIVATION] == 0


def test_values_share_storages():
    """What two values hold is counted once, and lives until both are gone."""
    table = TWO_LINEARS.activations((SAMPLES,), "float32")
    assert storages(v.saved(0, 1), table) == (v.saved(0, 1), v.x(0, 1), v.x(1, 1))  # backward of ReLU reads its output
    assert storages(v.saved(1, 1), table) == (v.saved(1, 1), v.x(1, 1))
    assert storages(v.saved(2, 1), table) == (v.saved(2, 1), v.x(2, 1), v.targets(1))
    assert storages(v.dy(1, 1), table) == (v.x(2, 1),) and storages(v.dy(0, 1), table) == (v.dy(0, 1),)
    assert storages(v.x(1, 1), table) == (v.x(1, 1),)


def test_values_of_units_are_no_activations():
    table = TWO_LINEARS.activations((SAMPLES,), "float32")
    with pytest.raises(AssertionError, match=r"grad\[0\] is no activation"):
        storages(v.grad(0), table)
    with pytest.raises(AssertionError, match=r"grad\[0\] is no activation"):
        storage_bytes(v.grad(0), table)


def test_without_a_table_there_are_none():
    made = setup("2", TWO_LINEARS, 2)
    assert all(ACTIVATION not in point.live for point in plan_memory(made.lists.step(), made.geometry).points)
