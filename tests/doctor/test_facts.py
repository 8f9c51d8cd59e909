"""What hosts, ranks and launchers say of themselves."""

from __future__ import annotations

import json
import math
import os
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from threadpoolctl import threadpool_info

from mpizero.doctor.host import Host, Interface, sent_bytes, this_host
from mpizero.doctor.launched import crowds, given_hosts, started
from mpizero.doctor.rank import Rank, blas_in_use, this_rank
from mpizero.doctor.speed import block_flops, busy_cores, seconds

DEV = """Inter-|   Receive                                                |  Transmit
 face |bytes packets errs drop fifo frame compressed multicast|bytes packets errs drop fifo colls carrier compressed
    lo:     100 0 0 0 0 0 0 0 200 0 0 0 0 0 0 0
  eth0:    5889 32 0 0 0 0 0 0 4909 20 0 0 0 0 0 0
"""
ROUTE = """Iface	Destination	Gateway 	Flags	RefCnt	Use	Metric	Mask		MTU	Window	IRTT
eth1	000200C0	00000000	0001	0	0	0	00FFFFFF	0	0	0
eth0	00000000	010200C0	0003	0	0	0	00000000	0	0	0
"""


def write(root, **files):
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.fixture
def root(tmp_path):
    """A host's /proc and /sys."""
    write(tmp_path, proc__meminfo="MemTotal: 1000 kB\nMemAvailable: 400 kB\nSwapTotal: 50 kB\nSwapFree: 20 kB\n",
          proc__cpuinfo="processor : 0\nmodel name\t: A  CPU\n", proc__net__dev=DEV, proc__net__route=ROUTE,
          sys__class__net__eth0__speed="25000\n", sys__class__net__eth0__operstate="up\n",
          sys__class__net__eth0__device="", sys__class__net__lo__speed="-1\n")
    return tmp_path


def test_a_host(root):
    host = this_host(root, {"lo": "127.0.0.1", "eth0": "10.0.0.7"}.__getitem__)
    assert (host.processor, host.memory, host.swap_used, host.limit) == ("A CPU", 1_024_000, 30 * 1024, None)
    assert (host.route, host.shm_total, host.governor) == ("eth0", None, "")
    assert host.interfaces == (Interface("lo", "127.0.0.1", "", False, None, 200),
                               Interface("eth0", "10.0.0.7", "up", True, 25e9, 4909))
    assert sent_bytes(root) == {"lo": 200, "eth0": 4909}
    assert Host.from_json(json.loads(json.dumps(asdict(host)))) == host


@pytest.mark.parametrize("text, limit", [("512000\n", 512_000), ("max\n", None), ("9223372036854771712\n", None)])
def test_the_limit_of_a_container(root, text, limit):
    write(root, sys__fs__cgroup__memory__max=text)
    (root / "sys/fs/cgroup/memory/max").rename(root / "sys/fs/cgroup/memory.max")
    assert this_host(root, str).limit == limit


def test_this_host_and_rank():
    host, rank = this_host(), this_rank(None)
    assert host.memory > 0 and host.cores >= len(rank.cores) and host.interfaces
    assert "127.0.0.1" in [each.address for each in host.interfaces if each.name == "lo"]
    assert rank.versions["numpy"] == np.__version__ and set(rank.cores) == os.sched_getaffinity(0)
    assert Rank.from_json(json.loads(json.dumps(asdict(rank)))) == rank


def test_threads_of_blas_as_threadpoolctl_counts_them(tmp_path):
    counted = [each["num_threads"] for each in threadpool_info() if each["user_api"] == "blas"]
    name, threads = blas_in_use()
    assert name and (threads is None or threads in counted)
    if any(each["internal_api"] == "openblas" for each in threadpool_info()):
        assert threads in counted
    assert blas_in_use(tmp_path / "none")[1] is None


@pytest.mark.parametrize("arguments, hosts", [
    ("mpirun --hostfile F -n 4 python", (("host0", 2), ("host1", 4))),
    ("mpirun --hostfile=F", (("host0", 2), ("host1", 4))),
    ("mpiexec -f M -n 4", (("host0", 2), ("host1", None))),
    ("mpirun --host a:2,b -n 3", (("a", 2), ("b", None))), ("mpirun -hosts a,b,a,b", (("a", 2), ("b", 2))),
    ("mpirun -n 4 python", ()), ("mpirun --hostfile nowhere", ()), ("mpirun --hostfile", ()), ("", ()),
])
def test_hosts_that_an_mpirun_was_given(tmp_path, arguments, hosts):
    (tmp_path / "F").write_text("# two\nhost0 slots=2 # fast\n\nhost1 slots = 4\n")
    (tmp_path / "M").write_text("host0:2\nhost1\n")
    assert given_hosts(arguments.split(), {}, tmp_path) == hosts
    assert given_hosts([], {"HYDRA_HOST_FILE": "M"}, tmp_path) == (("host0", 2), ("host1", None))


@pytest.mark.parametrize("arguments, policy, told", [
    ("--oversubscribe", "", True), ("--map-by :OVERSUBSCRIBE", "", True), ("", ":oversubscribe", True),
    ("--map-by=:oversubscribe", "", True), ("--map-by slot:OVERSUBSCRIBE", "", False),
    ("", "slot:oversubscribe", False),
    ("-n 4", "", False)])
def test_whether_all_ranks_go_to_the_first_host(arguments, policy, told):
    assert crowds(arguments.split(), {"PRTE_MCA_rmaps_default_mapping_policy": policy}) == told


def test_the_mpirun_above(tmp_path):
    """Through a shell and a proxy; its folder and environment are not its ranks'."""
    proc, home = tmp_path / "proc", tmp_path / "home"
    home.mkdir()
    (home / "F").write_text("a slots=1\nb slots=1\n")
    parents = {os.getpid(): (71, "python"), 71: (72, "/bin/sh"), 72: (73, "/x/hydra_pmi_proxy"),
               73: (1, "mpirun\0--hostfile\0F\0python")}
    for number, (above, words) in parents.items():
        folder = proc / str(number)
        folder.mkdir(parents=True)
        (folder / "status").write_text(f"Name: x\nPPid:\t{above}\n")
        (folder / "cmdline").write_text(words + "\0")
    (proc / "73" / "environ").write_text("A=1\0PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe\0")
    (proc / "73" / "cwd").symlink_to(home)
    (proc / "73" / "exe").symlink_to("/opt/mpi/bin/prterun")
    above = started("", {"PATH": ""}, proc)
    assert (above.program, above.arguments) == ("/opt/mpi/bin/prterun", ("mpirun", "--hostfile", "F", "python"))
    assert above.hosts == (("a", 1), ("b", 1)) and above.crowds
    nothing = started("", {"PATH": ""}, tmp_path)
    assert (nothing.program, nothing.hosts, nothing.crowds, nothing.found) == ("", (), False, "")


def test_cores_that_are_busy(tmp_path):
    stat = tmp_path / "stat"
    stat.write_text("cpu  10 0 10 100 20 0 0 0 0 0\ncpu0 1 2 3\n")
    texts = iter(["cpu  10 0 10 100 20 0 0 0 0 0\n", "cpu  40 0 20 150 30 0 0 0 0 0\n"])  # 40 of 100 ticks

    class Stat(type(Path())):
        def read_text(self, **_):
            return next(texts)

    assert busy_cores(Stat(stat), 0) == pytest.approx(0.4 * (os.cpu_count() or 1))
    assert math.isnan(busy_cores(tmp_path / "none", 0))


def test_work_of_a_block():
    """6 operations a weight of its four products and token, and attention's 12 T C."""
    tokens, width, context = 256, 256, 128
    weights = 12 * width**2 + 13 * width  # with biases and norms
    assert block_flops() == tokens * (6 * weights + 12 * context * width)


def test_a_rate_counts_every_call(monkeypatch):
    """Turns of a core that two ranks share come between calls."""
    clock = iter([0.0, 0.1, 0.3, 0.3])
    monkeypatch.setattr("mpizero.doctor.speed.time.perf_counter", lambda: next(clock))
    calls = []
    assert seconds(lambda: calls.append(1)) == pytest.approx(0.15) and len(calls) == 3
