"""Which ranks share a host, how they are numbered, and how many cores they have."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mpizero.comm import TrafficLog, hosts, needlessly_spread
from mpizero.comm.hosts import Place, by_host, host_names, is_crowded, this_place
from mpizero.layout import Axis, MeshShape
from mpizero.report.log import read_log

JOBS = Path(__file__).with_name("jobs.py")
# by the launcher's rank
WRAP = """case $((${OMPI_COMM_WORLD_RANK:-$PMI_RANK} % 2)) in 0) host=a;; *) host=b;; esac
exec unshare --uts sh -c 'hostname "$0"; exec "$@"' $host "$@"
"""


def place(name, mark="", cores=(0,), quota=None):
    return Place(name, (name, mark), cores, quota)


def test_this_process():
    here = this_place()
    assert here == this_place() and here.name == os.uname().nodename == here.identity[0]
    assert set(here.cores) == os.sched_getaffinity(0)
    assert len(here.identity) == 4 and any("net:[" in mark for mark in here.identity)


def test_cores_of_a_bound_process():
    """As many as it may use, not as the machine has."""
    everywhere = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(everywhere)})
        assert this_place().cores == (min(everywhere),)
    finally:
        os.sched_setaffinity(0, everywhere)


@pytest.mark.parametrize("names, order", [
    ("aaaa", [0, 1, 2, 3]), ("abab", [0, 2, 1, 3]), ("baab", [0, 3, 1, 2]), ("abcab", [0, 3, 1, 4, 2])])
def test_ranks_of_a_host_are_neighbours(names, order):
    """Rank 0 stays rank 0."""
    assert by_host([place(name) for name in names]) == order


def test_two_hosts_of_one_name():
    places = [place("node", "x"), place("node", "y"), place("other", "z"), place("node", "x"), place("node", "w")]
    assert by_host(places) == [0, 3, 1, 2, 4]
    assert host_names(places) == ["node", "node#2", "other", "node", "node#3"]


@pytest.mark.parametrize("places, crowded", [
    ([place("a", cores=(0, 1))] * 2, False),
    ([place("a", cores=(0, 1))] * 3, True),
    ([place("a", cores=(0,))] * 2, True),  # bound to one core together
    ([place("a", cores=(0,)), place("a", cores=(1,))], False),  # to one each
    ([place("a", cores=(0, 1)), place("a", cores=(1, 2)), place("a", cores=(0,))], False),  # to overlapping ones
    ([place("a", cores=range(64), quota=2)] * 3, True),
    ([place("a", cores=range(64), quota=3)] * 3, False),
])
def test_more_ranks_than_cores(places, crowded):
    assert is_crowded(places) is crowded


@pytest.mark.parametrize("text, cores", [
    ("max 100000", None), ("200000 100000", 2), ("150000 100000", 2), ("1000 100000", 1), ("", None)])
def test_quota(text, cores):
    assert hosts._quota(text) == cores


@pytest.mark.parametrize("where, shape, spread", [
    ("aabb", MeshShape(2, 2), []),
    ("abab", MeshShape(2, 2), [[0, 1], [2, 3]]),
    ("aaab", MeshShape(2, 2), [[2, 3]]),  # uneven hosts
    ("aabb", MeshShape(1, 4), []),  # no host has room for four
    ("aaabbb", MeshShape(3, 2), [[2, 3]]),
    ("ab", MeshShape(2, 1), []),
    ("aabb", MeshShape(1, 2, 2), []),  # no host has room for two times two
    ("aaaaabbb", MeshShape(2, 2, 2), [[4, 6]]),
])
def test_shard_groups_that_span_hosts_without_need(where, shape, spread):
    assert [list(group) for group in needlessly_spread(where, shape)] == spread


@pytest.mark.parametrize("where, found", [("aabb", []), ("aaab", [[2, 3]]), ("abab", [[0, 1], [2, 3]])])
def test_tensor_parallel_ranks_that_span_hosts(where, found):
    assert [list(group) for group in hosts.spread(where, MeshShape(1, 2, 2), Axis.TENSOR)] == found


def test_near_is_on_this_host(world):
    from mpizero.comm.channel import Channel

    channel = Channel(world.using(log=TrafficLog()), "test")
    assert [channel.is_near(rank) for rank in range(world.size)] == [
        host == world.hosts[world.rank] for host in world.hosts]


@pytest.fixture
def dealt(launch, tmp_path):
    """Run Python on four ranks that believe to be on hosts a, b, a, b."""
    if subprocess.run(["unshare", "--uts", "true"], capture_output=True).returncode:
        pytest.skip("cannot give ranks a host name of their own: needs root")
    wrap = tmp_path / "wrap.sh"
    wrap.write_text(WRAP)

    def run(*arguments):
        command = list(map(str, ["/bin/sh", wrap, sys.executable, *arguments]))
        end = launch(4, "-c", f"import os; os.execv('/bin/sh', {command!r})")
        assert end.status == 0, end.output
        return end.stdout

    return run


def test_each_rank_is_where_it_is_said_to_be(dealt):
    lines = dealt(JOBS, "tells_its_host").splitlines()
    assert sorted(lines) == ["0 is on a of aabb", "1 is on a of aabb", "2 is on b of aabb", "3 is on b of aabb"]


def test_ranks_dealt_round_robin(dealt, tmp_path):
    """Shard groups of two stay inside hosts. Across them go the sums over replicas alone: an all-reduce of psi/2
    float16 in a ring of two, of which a rank sends 2 (2-1)/2 = 1 times the bytes: psi/2 * 2."""
    flags = ["--stage", "3", "--shard-size", "2", "--steps", "2", "--log", tmp_path / "log"]
    header = dealt("-m", "mpizero.train", *flags)
    log = read_log(tmp_path / "log")
    assert [rank["host"] for rank in log.trace["ranks"]] == ["a", "a", "b", "b"] and "on b" in header
    psi = log.summary["psi"]
    assert psi == 32656
    assert [between(rank, log.trace["ranks"]) for rank in log.trace["ranks"]] == [psi] * 4
    offsets = {(rank["host"], rank["clock_offset_s"], rank["clock_uncertainty_s"]) for rank in log.trace["ranks"]}
    [(_, mine, exact), (_, theirs, about)] = sorted(offsets)
    assert mine == exact == 0 and 0 < about and abs(theirs) <= about  # it is one clock in truth


def between(rank, ranks):
    """Bytes that a rank sent to other hosts, without the step's agreement."""
    return sum(message["bytes"] for each in rank["collectives"] if each["op"] != "agree" for message in each["sends"]
               if ranks[message["to"]]["host"] != rank["host"])
