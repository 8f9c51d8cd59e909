"""Closed forms of the papers: each number of ZeRO's tables, by equality or within what its rounding takes away."""

from __future__ import annotations

import pytest

from mpizero.layout import OPTIMIZERS, optimizer_spec
from mpizero.papers import states
from mpizero.planner import formula_after_backward
from mpizero.schedule import STRATEGIES
from tests.schedule.toys import chain, setup


def test_bytes_per_parameter():
    assert states.bytes_per_parameter() == 2 + 2 + 12 == 16
    assert states.bytes_per_parameter(fp32_grad=True) == 20


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 64, 1024])
def test_stages(ranks):
    """4 psi + 12 psi/N, 2 psi + 14 psi/N, 16 psi/N."""
    psi = 3 * 1024 * 1000
    forms = {"0": 16 * psi, "1": 4 * psi + 12 * psi // ranks, "1-allreduce": 4 * psi + 12 * psi // ranks,
             "2": 2 * psi + 14 * psi // ranks,
             "3": 16 * psi // ranks, "3-broadcast": 16 * psi // ranks}
    assert {stage: states.stage_bytes(psi, stage, ranks) for stage in STRATEGIES} == forms


def test_forms_in_words():
    half = ["16 psi", "4 psi + 12 psi/N", "2 psi + 14 psi/N", "16 psi/N"]
    full = ["16 psi", "8 psi + 8 psi/F", "4 psi + 12 psi/F", "16 psi/F"]
    assert [states.form_text(stage) for stage in "0123"] == half
    assert [states.form_text(stage, "float32", "F") for stage in "0123"] == full


def test_float32_sums_in_words():
    """What is reduced when backward ends has 4 bytes; stage 1 reduces later."""
    sums = ["18 psi", "4 psi + 12 psi/N", "2 psi + 16 psi/N", "18 psi/N"]
    assert [states.form_text(stage, sum_dtype="float32") for stage in "0123"] == sums


def mean_of_ranks(geometry):
    """Where units have owners, no rank holds as much as another."""
    return sum(formula_after_backward(geometry.at(rank)) for rank in range(geometry.shards)) / geometry.shards


@pytest.mark.parametrize("dtype, sums", [("float16", None), ("float32", None), ("float16", "float32")])
def test_stages_are_the_plans(dtype, sums):
    """The formula of a stage by name is that of a wrapped model under its placement, where nothing is padded."""
    for stage in STRATEGIES:
        geometry = setup(stage, chain((64, 128, 32)), 4, dtype=dtype, sum_dtype=sums).geometry
        assert mean_of_ranks(geometry) == states.stage_bytes(224, stage, 4, dtype, sums)


def test_forms_of_other_optimizers():
    """K = 8 of Lion; of SGD without momentum 4, or nothing beside float32."""
    lion, sgd = OPTIMIZERS["lion"], optimizer_spec("sgd", 0.0)
    assert [states.form_text(stage, optimizer=lion) for stage in "0123"] == [
        "12 psi", "4 psi + 8 psi/N", "2 psi + 10 psi/N", "12 psi/N"]
    assert [states.form(stage, optimizer=sgd) for stage in "0123"] == [(8, 0), (4, 4), (2, 6), (0, 8)]
    assert [states.form_text(stage, "float32", optimizer=sgd) for stage in "0123"] == [
        "8 psi", "8 psi", "4 psi + 4 psi/N", "8 psi/N"]
    for stage in STRATEGIES:
        geometry = setup(stage, chain((64, 128, 32)), 4, optimizer=lion).geometry
        assert mean_of_ranks(geometry) == states.stage_bytes(224, stage, 4, optimizer=lion)


def test_whole_bytes_are_ints():
    assert isinstance(states.stage_bytes(10, "3", 4), int)
    assert states.stage_bytes(10, "1", 7) == 400 / 7


def test_table_1():
    """The paper truncates large cells and rounds small ones: the worst is 0.1172 printed as 0.12."""
    cells = states.table_1()
    assert len(cells) == 3 * 3 * 6
    worst = max(cells, key=lambda cell: cell.difference)
    assert states.largest_difference(cells) == worst.difference == pytest.approx(0.0234375, rel=1e-12)
    assert (worst.label, worst.stage, worst.count) == ("7.5B", "3", 1024)
    assert (worst.computed, worst.printed / 1e9) == (117_187_500, 0.12)


@pytest.mark.parametrize("psi, stage, printed", [
    (7.5, "1", [120, 52.5, 35.6, 31.4, 30.4, 30.1]), (7.5, "2", [120, 41.3, 21.6, 16.6, 15.4, 15.1]),
    (7.5, "3", [120, 30, 7.5, 1.88, 0.47, 0.12]),
    (128, "1", [2048, 896, 608, 536, 518, 513]), (128, "2", [2048, 704, 368, 284, 263, 257]),
    (128, "3", [2048, 512, 128, 32, 8, 2]),
    (1000, "1", [16000, 7000, 4750, 4187, 4046, 4011]), (1000, "2", [16000, 5500, 2875, 2218, 2054, 2013]),
    (1000, "3", [16000, 4000, 1000, 250, 62.5, 15.6]),
])
def test_table_1_cell_by_cell(psi, stage, printed):
    """Truncated or rounded at the last digit that is printed."""
    for value, ranks in zip(printed, (1, 4, 16, 64, 256, 1024), strict=True):
        computed = gb(round(psi * 1e9), stage, ranks)
        unit = 10 ** -len(str(value).partition(".")[2])
        assert abs(computed - value) <= unit, (ranks, computed, value)


def test_table_2():
    """32 GB, 64-way data parallelism. The paper multiplies the values of MP = 1 after rounding them."""
    cells = {(cell.count, cell.stage): cell for cell in states.table_2()}
    assert [round(cells[1, stage].computed / 1e9, 1) for stage in "0123"] == [2, 7.6, 14.4, 128]
    assert [round(16 * round(cells[1, stage].computed / 1e9, 1), 1) for stage in "0123"] == [32, 121.6, 230.4, 2048]
    assert [cells[16, stage].printed for stage in "0123"] == pytest.approx([32e9, 121.6e9, 230.4e9, 2e12], rel=1e-12)
    assert all(cell.computed == pytest.approx(cell.count * cells[1, cell.stage].computed) for cell in cells.values())
    assert max(cell.difference for cell in cells.values() if cell.printed < 1e12) < 0.006
    assert list(states.TABLE_2_MEASURED.values()) == [6.2, 12.5, 25, 50, 100]
    assert all(measured * 1e9 < cells[mp, "1"].computed for mp, measured in states.TABLE_2_MEASURED.items())


def gb(psi, stage, ranks):
    return states.stage_bytes(psi, stage, ranks) / states.GB


def test_numbers_worth_remembering():
    assert [gb(7_500_000_000, stage, 64) for stage in "0123"] == [120, 31.40625, 16.640625, 1.875]
    assert gb(10**12, "3", 1024) == 15.625
    assert [round(gb(13 * 10**9, stage, 64), 1) for stage in "012"] == [208, 54.4, 28.8]
    assert gb(13 * 10**9, "3", 64) == 3.25


def test_working_memory_of_one_operator():
    assert states.working_memory(8192) == 4 * 8192 * 4 * 8192 == 1_073_741_824
    assert states.working_memory(65_536) == 68_719_476_736


def test_fused_buffer():
    sizes = {1_500_000_000: 6 * 10**9, 3 * 10**9: 12 * 10**9, 175 * 10**9: 700 * 10**9}
    assert {psi: states.fused_buffer(psi) for psi in sizes} == sizes
