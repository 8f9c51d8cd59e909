"""The benchmark of collectives: definitions, not speed."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest

from mpizero import bench
from mpizero.bench import collectives_table, main
from mpizero.comm.benchmark import UNEQUAL, Row, measure, unequal
from mpizero.errors import ConfigError

KEYS = {"op", "bytes", "dtype", "ours_s", "mpi_s", "ratio", "algbw", "busbw"}


@pytest.mark.parametrize("in_place", [False, True])
def test_rows(group, in_place):
    rows = measure(group, [1000, 4096], "float64", repeat=3, in_place=in_place)
    whole = 8 * group.size  # a size is rounded up to whole elements a rank
    assert [(row.op, row.bytes) for row in rows] == [
        (op, -(-size // whole) * whole) for size in (1000, 4096)
        for op in ("reduce_scatter", "all_gather", "all_reduce", "broadcast", "reduce", UNEQUAL)]
    for row in rows:
        sent = (2 if row.op == "all_reduce" else 1) * (group.size - 1) / group.size
        sent = 1 if row.op in ("broadcast", "reduce") else sent
        assert row.ours_s > 0 and row.mpi_s > 0 and row.dtype == "float64"
        assert np.isclose(row.ratio, row.mpi_s / row.ours_s)
        assert np.isclose(row.algbw, row.bytes / row.ours_s)
        assert np.isclose(row.busbw, row.algbw * sent)  # nccl-tests


def test_unequal_shards():
    """One element has moved; together they are as many."""
    assert [unequal(12, size) for size in (1, 2, 4)] == [[12], [7, 5], [4, 2, 3, 3]]


def test_both_sides_gather_unequal_shards(group, monkeypatch):
    from mpizero.comm import benchmark

    whole = np.arange(6 * group.size, dtype=np.float32)
    counts = unequal(whole.size, group.size)
    begin = sum(counts[:group.rank])
    for shard in (whole[begin:][:counts[group.rank]], None):
        flat = np.zeros(whole.size, np.float32)
        flat[begin:][:counts[group.rank]] = whole[begin:][:counts[group.rank]]
        benchmark.reference.mpi_all_gather_unequal(group, flat, shard, counts)
        assert np.array_equal(flat, whole)
    sent = []
    monkeypatch.setattr(benchmark, "broadcast", lambda group, part, root: sent.append((part.size, root)))
    benchmark._calls(group, whole.size, "float32", False)[-1][1]()
    assert sent == [(count, rank) for rank, count in enumerate(counts)]


def test_both_sides_are_called_as_often(group, monkeypatch):
    """Ours and MPI's, in turn."""
    from mpizero.comm import benchmark

    calls = []
    both = ("op", lambda: calls.append("ours"), lambda: calls.append("mpi"))
    monkeypatch.setattr(benchmark, "_calls", lambda *_: [both])
    measure(group, [8], repeat=3)
    one = ["ours"] * benchmark.IN_A_ROW + ["mpi"] * benchmark.IN_A_ROW
    assert calls == one * (3 + benchmark.WARM_UP)


@pytest.mark.parametrize("room, fits", [(8000, True), (7999, False), (None, True)])
def test_sizes_beyond_the_memory_of_a_host(monkeypatch, room, fits):
    """Of two of its ranks, four arrays each."""
    monkeypatch.setattr(bench, "available_bytes", lambda: room)
    world = SimpleNamespace(rank=1, hosts=("other", "own", "own"))
    if fits:
        bench._check_room(world, "--sizes 1000 B", 4000)
    else:
        with pytest.raises(ConfigError, match="^--sizes 1000 B: 2 ranks on this host would take 8 KB .* use a smaller"):
            bench._check_room(world, "--sizes 1000 B", 4000)


def test_command_line(launch, tmp_path):
    path = tmp_path / "rows.json"
    finished = launch(2, "-m", "mpizero.bench", "collectives", "--sizes", "4KiB,1MiB", "--repeat", "3", "--json", path)
    assert finished.status == 0, finished.output
    rows = json.loads(path.read_text())["rows"]
    assert len(rows) == 12 and all(set(row) == KEYS for row in rows)
    assert {row["bytes"] for row in rows} == {4096, 2**20}
    assert finished.stdout.count("reduce_scatter") == 2  # rank 0 alone prints


@pytest.mark.parametrize("arguments, text", [
    (["collectives", "--sizes", "big"], "'big' is not a size"),
    (["collectives", "--repeat", "0"], "--repeat 0"),
    (["collectives", "--dtype", "float16"], "float16"),
])
def test_mistakes(arguments, text):
    with pytest.raises(ConfigError, match=text):
        main(arguments)


def test_no_command(launch):
    finished = launch(None, "-m", "mpizero.bench")
    assert finished.status == 2 and "Traceback" not in finished.output
    [line] = finished.stderr.splitlines()
    assert line.startswith("mpizero: error: ") and "COMMAND" in line


def test_the_table_has_milliseconds_and_gigabytes():
    rows = [Row("all_gather", 2**20, "float32", 0.0125, 0.025, 2.0, 3.5e9, 1.75e9)]
    assert collectives_table(rows).splitlines()[2].split() == ["all_gather", "1", "MiB", "float32", "12.5", "25", "2",
                                                               "3.5", "1.75"]
