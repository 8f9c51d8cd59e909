"""scripts/bench_loading.py: what N links make of loading, and what is counted of it."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from mpizero.errors import ConfigError
from mpizero.schedule.actions import AllGatherParam, FetchParam, Forward
from tests.scripts.written import SCRIPTS


@pytest.fixture
def bench(load):
    return load("bench_loading")


@pytest.mark.launches
def test_two_links(launch, tmp_path):
    """However slow the machine: nothing is faster than its link, and the owner's link carries twice as much."""
    end = launch(2, SCRIPTS / "bench_loading.py", "--hidden", "16", "--from", "cpu", "--ranks", "2", "--rate", "15kB/s",
                 "--steps", "1", "--bound", "0.6", "--json", tmp_path / "F", timeout=200)
    assert end.status == 0, end.output
    (row,) = json.loads((tmp_path / "F").read_text())["rows"]
    psi = 32 * 16 + 3 * 16 * 16 + 16 * 16 + 4 * 16 + 16
    assert row["whole_bytes"] == 4 * psi and row["planned_ratio"] == 2 and row["off_plan"] == 0
    assert row["planned_seconds"] == {"3": 2 * psi / 15e3, "3-broadcast": 4 * psi / 15e3}
    assert row["seconds"]["3"] >= row["planned_seconds"]["3"] and row["ratio"] > 0.8
    assert "ratios at most" in end.stdout and "as planned" in end.stdout


def test_seconds_until_units_are_whole(bench):
    def record(action, begin, end, phase="forward"):
        return SimpleNamespace(action=action, begin_s=begin, end_s=end, phase=phase)

    records = [record(FetchParam(0), 0, 3), record(AllGatherParam(0), 3.5, 4), record(Forward(0, 0), 4, 9),
               record(FetchParam(1), 9, 11), record(FetchParam(0), 11, 99, "backward")]
    assert bench.whole_after(records) == 4 + 2


def test_mistakes(bench):
    """Said before ranks meet: a test of one process must not wait for others."""
    with pytest.raises(ConfigError, match="--steps 0 leaves nothing to measure"):
        bench.main(["--steps", "0"])
    with pytest.raises(ConfigError, match="--ranks 1 4 cannot be measured on 2 started"):
        bench.counts_of([1, 4], 2)
    assert bench.counts_of(None, 3) == [1, 2]
