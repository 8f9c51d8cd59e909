"""scripts/bench_efficiency.py: operations over bytes, and what it makes of a step's seconds."""

from __future__ import annotations

import json

import pytest

from mpizero.errors import ConfigError
from tests.scripts.written import SCRIPTS

TINY = ("--layers", "4", "--d-model", "16", "--heads", "2", "--context", "8", "--rounds", "1", "--batches", "2")


@pytest.fixture
def bench(load):
    return load("bench_efficiency")


@pytest.mark.launches
def test_a_run(launch, tmp_path):
    """However slow the machine: bytes and operations, and that no move was faster than its link."""
    end = launch(None, SCRIPTS / "bench_efficiency.py", *TINY, "--states", "params", "checkpoints", "--intervals", "2",
                 "--limit", "200kB/s", "--bound", "0.9", "--json", tmp_path / "F", timeout=200)
    assert end.status == 0, end.output
    params, kept = json.loads((tmp_path / "F").read_text())["rows"]
    assert params["paper_ait"] == 8 * 2 and 0.8 < params["ait"] / params["paper_ait"] < 1.2
    assert kept["bytes"] == 2 * 2 * 2 * 8 * 16 * 4 // 2 and kept["paper_ait"] == 24 * 16 * 2
    for row in (params, kept):
        assert row["rate"] == 200e3 and row["off_plan"] == 0 and row["reached"] <= 200e3
        assert row["efficiency"] <= row["formula"] * 1.001  # a link may be late, and never early
        assert row["flops"] == pytest.approx(row["ait"] * row["bytes"])
    assert "as planned" in end.stdout


def test_what_is_made_of_seconds(bench):
    """1000 operations in 2 of 4 seconds, and 100 bytes over a link of 50 a second."""
    assert bench.judged(1000, 100, 50.0, (3.0, 0.0), (4.0, 2.0), (2.5, 1.0)) == {
        "peak": 500.0, "efficiency": 0.5, "formula": 0.5, "beside": 0.75, "overlapped": 1.2, "most": 1.0}


def test_nothing_to_measure(bench):
    with pytest.raises(ConfigError, match="--rounds 0 leaves nothing to measure"):
        bench.main(["--rounds", "0"])
