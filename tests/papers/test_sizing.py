"""Unit sizing: the peak against the number of collectives, and FSDP's padding."""

from __future__ import annotations

import pytest

from mpizero.layout import ParamSpec, flatten
from mpizero.machine import LECTURE, LECTURE_TOKENS
from mpizero.papers.sizing import choices, cut, merged, sizing
from mpizero.planner import plan_memory, plan_traffic
from mpizero.planner.model import blocks
from tests.schedule.toys import chain, step

BLOCK = 12 * 5120**2


def test_flat_parameter_of_a_linear_on_16_ranks():
    """FSDP's figure 3: 12 weights and 3 biases."""
    layout = flatten("linear", [ParamSpec("weight", (4, 3)), ParamSpec("bias", (3,))], 16)
    assert (layout.numel, layout.padded_numel - layout.numel, layout.shard_numel(16)) == (15, 1, 1)
    assert layout.shard(15, 16) == slice(15, 16)  # the last rank holds the pad alone


def test_a_block_on_1000_ranks():
    layout = flatten("block", [ParamSpec("weight", (12, 5120, 5120))], 1000)
    assert (layout.numel, layout.padded_numel - layout.numel) == (314_572_800, 200)


def test_peak_and_collectives_are_the_plans():
    """sum(psi_i) / F + max psi_i parameters, three collectives a unit: what walking the actions gives."""
    for sizes in [(5, 7, 3), (64,), (100, 1, 1, 30)]:
        actions, geometry = step("3", chain(sizes), 4)
        row, plan = sizing("", sizes, 4, 2, LECTURE), plan_memory(actions, geometry)
        assert 2 * row.peak_elements == max(point.live["param"] + point.live["unsharded_param"]
                                            for point in plan.points)
        assert row.collectives == len(plan_traffic(actions, geometry)) == 3 * row.units == 3 * len(sizes)


def test_lectures_machine():
    """A block of the 13B model on 64 ranks."""
    assert round(1e3 * LECTURE.compute_seconds(BLOCK, LECTURE_TOKENS, 2), 2) == 20.84
    assert round(1e3 * LECTURE.compute_seconds(BLOCK, LECTURE_TOKENS, 4), 2) == 41.67
    assert round(1e3 * LECTURE.ring_seconds(2 * BLOCK, 64), 2) == 13.02
    assert round(LECTURE.compute_seconds(blocks().spec.psi, LECTURE_TOKENS), 2) == 2.53


def test_small_units_trade_collectives_for_memory():
    sizes = [param.numel for param in blocks().spec.params]
    rows = choices(sizes, 64, 2, LECTURE)
    assert [row.collectives for row in rows] == sorted(row.collectives for row in rows)
    assert [row.peak_elements for row in rows] == sorted((row.peak_elements for row in rows), reverse=True)
    whole, segment = rows[0], next(row for row in rows if row.label == "a stage")
    assert (whole.units, segment.units, segment.collectives) == (1, 41, 123)
    assert segment.peak_elements == sum(sizes) // 64 + BLOCK and whole.peak_elements == sum(sizes) // 64 + sum(sizes)
    assert all(row.seconds - row.latency_seconds == pytest.approx(rows[0].seconds - rows[0].latency_seconds, rel=1e-3)
               for row in rows)


def test_cutting_and_merging_lose_nothing():
    assert merged([1, 2, 3, 4, 5], 2) == [3, 7, 5] and cut([7, 2], 3) == [3, 2, 2, 1, 1]
