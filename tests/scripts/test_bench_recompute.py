"""scripts/bench_recompute.py: what it says of runs, and when it says that something is wrong."""

from __future__ import annotations

import json

import pytest

from mpizero.errors import ConfigError
from tests.scripts.written import SCRIPTS

TINY = ("--layers", "4", "--d-model", "16", "--heads", "2", "--context", "8", "--batch-size", "2", "--rounds", "1",
        "--steps", "1", "--dtype", "float32")


@pytest.fixture
def bench(load):
    return load("bench_recompute")


@pytest.mark.launches
def test_on_ranks(launch, tmp_path):
    end = launch(2, SCRIPTS / "bench_recompute.py", *TINY, "--intervals", "1", "4", "--json", tmp_path / "F",
                 timeout=200)
    assert end.status == 0, end.output
    rows = json.loads((tmp_path / "F").read_text())["rows"]
    kept = 2 * 8 * 16 * 4  # of one input
    assert [(row["interval"], row["kept_inputs"]) for row in rows] == [(None, 0), (1, 4 * kept), (4, kept)]
    assert all(row["same_bits"] and row["kept_inputs"] == row["planned_kept_inputs"] for row in rows)
    assert rows[0]["peak_to_first"] == rows[0]["seconds_to_first"] == 1 > rows[1]["peak_to_first"]
    assert len(end.stdout.splitlines()) == 2 + len(rows) and "interval 4" in end.stdout


def test_ratios_are_taken_within_a_round(bench):
    assert bench.ratio([9, 2, 6, 30], [1, 2, 3, 10]) == 2


@pytest.mark.parametrize("flag", ["rounds", "steps"])
def test_nothing_to_measure(bench, flag):
    with pytest.raises(ConfigError, match=f"--{flag} 0 leaves nothing to measure"):
        bench.main([f"--{flag}", "0"])
