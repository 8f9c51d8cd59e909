"""Clocks of hosts, held against rank 0's."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from mpizero.comm import Offset, all_gather_values, clock, clock_offset
from mpizero.report.log import read_log
from mpizero.report.perfetto import perfetto

AHEAD = 1000.0  # seconds
# rank 1 in a time namespace of its own
WRAP = """test ${OMPI_COMM_WORLD_RANK:-$PMI_RANK} = 0 && exec "$0" "$@"
exec unshare --time --monotonic 1000 "$0" "$@" """


def test_offset_and_uncertainty(group, monkeypatch):
    """Ranks on hosts a and b in turn, those of b with a clock of their own."""
    group.hosts, truth = tuple("ab"[rank % 2] for rank in range(group.size)), time.perf_counter
    if group.rank % 2:
        monkeypatch.setattr(time, "perf_counter", lambda: truth() + AHEAD)
    found = clock_offset(group)
    if group.rank % 2:
        assert 0 < found.uncertainty < AHEAD / 2 and abs(found.seconds - AHEAD) <= found.uncertainty
    else:
        assert found == Offset(0.0, 0.0)


def test_ranks_of_a_host_have_one_offset(group):
    """It is measured once: two measures would differ."""
    group.hosts = ("a",) + ("b",) * (group.size - 1)
    table = all_gather_values(group, [clock_offset(group).seconds])[1:, 0]
    assert len(set(table.tolist())) == min(1, group.size - 1)


def test_the_shortest_round_counts(monkeypatch):
    """Rounds take 8, 2 and 6 s; the other clock shows 103 in the middle of the second, where this one shows 11."""
    now, theirs = iter([0.0, 8.0, 10.0, 12.0, 20.0, 26.0]), iter([90.0, 103.0, 140.0])

    class Channel:
        def exchange(self, send, dest, recv, source):
            recv[0] = next(theirs)

    monkeypatch.setattr(clock, "ROUNDS", 3)
    monkeypatch.setattr(time, "perf_counter", lambda: next(now))
    monkeypatch.setattr(clock, "_finish", lambda requests: None)
    assert clock._ask(Channel()) == Offset(11.0 - 103.0, 1.0)


def test_a_time_namespace(launch, tmp_path):
    """Two hosts in truth one: no time of the step is off by a thousand seconds, and no message flies backwards."""
    if subprocess.run(["unshare", "--time", "true"], capture_output=True).returncode:
        pytest.skip("cannot make a time namespace: needs root and Linux 5.6")
    command = ["/bin/sh", "-c", WRAP, sys.executable, "-m", "mpizero.train", "--stage", "3", "--steps", "3", "--log",
               str(tmp_path / "log")]
    end = launch(2, "-c", f"import os; os.execv('/bin/sh', {command!r})")
    assert end.status == 0, end.output
    trace = read_log(tmp_path / "log").trace
    first, second = trace["ranks"]
    assert second["host"] == first["host"] + "#2"
    assert (first["clock_offset_s"], first["clock_uncertainty_s"]) == (0, 0)
    assert abs(second["clock_offset_s"] - AHEAD) <= second["clock_uncertainty_s"] < 1
    assert max(row["end_s"] for rank in trace["ranks"] for row in rank["actions"]) < AHEAD / 2
    about = perfetto(trace)["otherData"]
    assert about["messages"] == 32 and about["messages_without_arrow"] <= 8  # on a busy machine clocks are known less
