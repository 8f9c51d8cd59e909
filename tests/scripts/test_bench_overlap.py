"""scripts/bench_overlap.py: what it says of runs, and when it says that something is wrong."""

from __future__ import annotations

import argparse
import json
from types import SimpleNamespace

import pytest

from mpizero.errors import ConfigError
from mpizero.plan.measured import read_machine
from tests.scripts.written import SCRIPTS

TINY = ("--layers", "4", "--d-model", "16", "--heads", "2", "--batch-size", "1", "--rounds", "1", "--steps", "1")
MACHINE = {"machine": {"peak_flops": 1e11, "efficiency": 0.5, "memory_bandwidth": 1e10, "alpha": 1e-5,
                       "inter_bandwidth": 1e8, "intra_bandwidth": 1e9}, "by_dtype": {}, "sources": {},
           "ranks_per_host": 2}


@pytest.fixture
def bench(load):
    return load("bench_overlap")


def options(**more):
    return argparse.Namespace(**{"dtype": "float32", "layers": 1, "heads": 2, "d_model": 16, "batch_size": 1,
                                 "units": False} | more)


def test_on_ranks(launch, tmp_path):
    """On one host: no hybrid cases, and nothing between hosts."""
    (tmp_path / "machine.json").write_text(json.dumps(MACHINE))
    end = launch(2, SCRIPTS / "bench_overlap.py", *TINY, "--machine", tmp_path / "machine.json",
                 "--json", tmp_path / "F", timeout=200)
    assert end.status == 0, end.output
    rows = {row["case"]: row for row in json.loads((tmp_path / "F").read_text())["rows"]}
    assert list(rows) == ["off", "on", "on, prefetch 1", "on, prefetch 3", "on, prefetch 3, limit 2"]
    assert all(row["same_bits"] and row["peak_is_planned"] and len(row["rounds"]) == 1 for row in rows.values())
    assert all(row["seconds"] > 0 < row["simulated"] and row["between_hosts_bytes_per_step"] == 0
               for row in rows.values())
    peaks = [row["peak_bytes"] for row in rows.values()]
    assert peaks[0] <= peaks[1] <= peaks[2] == peaks[4] < peaks[3]  # the limit bounds what prefetching three takes
    assert rows["off"]["to_first"] == rows["off"]["simulated_to_first"] == 1
    assert len(end.stdout.splitlines()) == 2 + len(rows) + 5 and "the simulator" in end.stdout


@pytest.mark.parametrize("hosts, size", [("ab", 0), ("aabb", 2), ("aaaa", 0)])
def test_hybrid_cases_where_hosts_have_ranks_to_share_within(bench, hosts, size):
    found = bench.configs(options(), SimpleNamespace(size=len(hosts), hosts=tuple(hosts)))
    hybrid = [config["shard_size"] for name, config in found.items() if name.startswith("hybrid")]
    assert hybrid == [size] * (2 if size else 0) and len(found) == len(bench.CASES) + len(hybrid)


@pytest.mark.parametrize("words, said", [
    (["--steps", "0"], "--steps 0 leaves nothing to measure"), (["--rounds", "-2"], "--rounds -2 leaves nothing"),
    (["--layers", "0"], "--layers 0 is impossible"), (["--layer", "2", "--foo"], "unrecognized arguments: --layer"),
    (["--heads", "3"], "--heads"),
])
def test_mistakes_are_told_before_anything_is_measured(bench, monkeypatch, words, said):
    monkeypatch.setattr(bench, "start", None)  # nobody calls it
    with pytest.raises(ConfigError, match=said):
        bench.main(words)


def test_units_of_other_sizes(bench):
    world = SimpleNamespace(size=4, hosts=("a", "a", "b", "b"))
    found = bench.configs(options(units=True), world)
    assert [config["wrap"] for config in found.values()] == ["layer", "block", "6MB", "12MB", "24MB"]
    assert all(config["overlap"] == "on" and "shard_size" not in config for config in found.values())


def test_a_machine_of_one_host_says_nothing_of_links_between_hosts(bench, tmp_path):
    (tmp_path / "F").write_text(json.dumps({**MACHINE, "machine": {
        name: rate for name, rate in MACHINE["machine"].items() if name not in ("alpha", "inter_bandwidth")}}))
    told = options(machine=read_machine(str(tmp_path / "F")))
    assert bench.read(told, SimpleNamespace(hosts=("a", "a"))).peak_flops == 1e11
    with pytest.raises(ConfigError, match="was measured on one host, so it says nothing of links between hosts"):
        bench.read(told, SimpleNamespace(hosts=("a", "b")))


def played(finish):
    return SimpleNamespace(finish=finish, compute=1.0, communication=2.0)


def case(name, rounds, simulated, shape=1, weights="a", peaks=(5, 5)):
    memory = [{"peak": peaks[0], "planned_peak": peaks[1]}]
    traffic = [{"between_hosts_bytes_per_step": 7, "messages_per_step": 3}] * 2
    told = {"traffic": traffic, "memory": memory, "weights_sha256": weights}
    return SimpleNamespace(name=name, rounds=[99.0, *rounds], told=told, played=played(simulated),
                           job=SimpleNamespace(geometry=shape))


def test_a_row(bench):
    """The first round counts nothing; ratios are those within rounds; hidden is beside `off` of the same mesh."""
    cases = [case("off", [4.0, 8.0, 6.0], 6.0), case("on", [3.0, 4.0, 6.0], 4.0, weights="b", peaks=(5, 6)),
             case("hybrid, off", [2.0, 2.0, 2.0], 2.0, shape=2), case("hybrid, on", [1.0, 1.0, 1.0], 1.5, shape=2)]
    first, on, hybrid, both = (bench.row(each, cases) for each in cases)
    assert (first["seconds"], first["to_first"], first["hidden"]) == (6.0, 1.0, None)
    assert (on["seconds"], on["to_first"], on["simulated_to_first"]) == (4.0, 0.75, 4 / 6)
    assert on["hidden"] == 1.0 / 2
    assert not on["same_bits"] and not on["peak_is_planned"] and first["same_bits"] and first["peak_is_planned"]
    assert hybrid["hidden"] is None and both["hidden"] == pytest.approx((2.0 - 1.0) / 0.5)
    assert both["to_first"] == 1 / 6 and both["between_hosts_bytes_per_step"] == 14
    told = bench.show({"rows": [first, on, hybrid, both], "busy_cores": 0.1})
    assert "cores busy" in bench.show({"rows": [first], "busy_cores": 1.5}) and "cores busy" not in told
    assert told.splitlines()[-2:] == ["on: other weights than without overlap", "on: the peak is not the planned one"]
