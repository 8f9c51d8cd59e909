"""scripts/run_hosts.sh: ranks across hosts that are made of namespaces, where this machine lets root make some."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.launch import ROOT, clean_environment, launch, mpirun
from tests.support.load import scaled
from tests.test_hostfiles import alive, wait_until

SCRIPT = ["bash", str(ROOT / "scripts" / "run_hosts.sh")]
HYBRID = ("--stage", "3", "--shard-size", "2", "--log-every", "1000000")
# What a rank finds of its host. A shared file system is meant to be shared; these are not.
FACTS = r"""
import json, os, subprocess, sys
from pathlib import Path
own = {name: os.readlink(f"/proc/self/ns/{name}") for name in ("net", "uts", "ipc", "mnt", "pid")}
own |= {"shm": os.stat("/dev/shm").st_dev, "name": os.uname().nodename}
own |= {name: Path(name).read_text() for name in ("/proc/sys/kernel/random/boot_id", "/etc/machine-id")
        if os.path.exists(name)}
facts = {"own": own, "cores": sorted(os.sched_getaffinity(0)),
         "queue": subprocess.run(["tc", "qdisc", "show", "dev", "eth0"], capture_output=True, text=True).stdout}
sys.stdout.write(json.dumps(facts) + "\n")
"""
RANK_TESTS = ["tests/comm/test_collectives.py", "tests/engine/test_stages.py::test_golden_bytes_on_real_ranks"]


def environment() -> dict[str, str]:
    return clean_environment({"PYTHON": sys.executable})


def run(*words: str | Path, seconds: float = 120.0) -> subprocess.CompletedProcess[str]:
    """The script with these words, and this Python's mpirun unless they name one."""
    return subprocess.run([*SCRIPT, *map(str, words)], cwd=ROOT, env=environment(), stdin=subprocess.DEVNULL, text=True,
                          errors="replace", capture_output=True, timeout=scaled(seconds))


@pytest.fixture(scope="module")
def hosts():
    """run(...), with `--mpirun` behind the first two numbers; skips where no hosts can be made."""
    check = run("--check", "--rate", "1gbit", "--mpirun", mpirun())
    if check.returncode == 2:
        pytest.skip(check.stderr.strip())
    assert check.returncode == 0, check

    def start(hosts, ranks, *words):
        end = run(hosts, ranks, "--mpirun", mpirun(), *words)
        # Open MPI's own launcher, over the stand-in for ssh: seen once in some hundred starts
        lost = "A daemon failed to report back after being spawned" in end.stdout + end.stderr
        return run(hosts, ranks, "--mpirun", mpirun(), *words) if lost else end

    return start


@pytest.mark.parametrize("words, why", [
    ([], "two numbers come first"),
    (["--stage", "3", "2", "4"], "two numbers come first"),
    (["0", "4"], "two numbers come first"),
    (["3", "2"], "2 ranks are not enough for 3 hosts"),
    (["2", "4", "--rate"], "--rate needs a value"),
    (["2", "4", "--rate", "fast"], "--rate fast: write 1gbit"),
    (["2", "4", "--rate", "bit"], "--rate bit: write 1gbit"),
    (["2", "4", "--rate", "0gbit"], "--rate 0gbit: write 1gbit"),
    (["2", "4", "--rate", "1.5.2gbit"], "--rate 1.5.2gbit: write 1gbit"),
    (["2", "4", "--exec"], "--exec needs a command"),
    (["2", "4", "--json", "F", "--exec", "true"], "not --json"),
])
def test_a_mistake_gets_one_sentence(words, why):
    end = run(*words)
    assert end.returncode == 2 and end.stdout == ""
    assert end.stderr.startswith("run_hosts.sh: error: ") and why in end.stderr and end.stderr.count("\n") == 1


def test_help_shows_the_command():
    end = run("--help")
    assert end.returncode == 0
    assert "bash scripts/run_hosts.sh 2 4 --stage 3 --shard-size 2 --rate 1gbit --json F\n" in end.stdout


def test_who_may_not_is_told_why():
    """As root without the right to it, or as a user."""
    bare = ["setpriv", "--bounding-set", "-sys_admin", "--inh-caps", "-sys_admin"] if os.geteuid() == 0 else []
    end = subprocess.run([*bare, *SCRIPT, "--check", "--mpirun", mpirun()], env=environment(), capture_output=True,
                         text=True, timeout=scaled(60))
    assert end.returncode == 2 and end.stderr.startswith("run_hosts.sh: error: ") and end.stderr.count("\n") == 1
    assert re.search("only root may|Linux|is missing|root may not make namespaces here .*: allow it", end.stderr)


@pytest.mark.launches
def test_hosts_share_nothing_in_which_an_mpi_could_meet(hosts):
    end = hosts(2, 3, "--pin", "--rate", "200mbit", "--exec", sys.executable, "-c", FACTS)
    assert end.returncode == 0, end
    facts = [json.loads(line) for line in end.stdout.splitlines() if line.startswith("{")]
    facts.sort(key=lambda rank: rank["own"]["name"])
    names, cores = [rank["own"]["name"] for rank in facts], sorted(os.sched_getaffinity(0))
    assert names == ["host0", "host0", "host1"]
    assert facts[0]["own"] == facts[1]["own"]
    assert not set(map(str, facts[0]["own"].values())) & set(map(str, facts[2]["own"].values()))
    assert [rank["cores"] for rank in facts] == [[cores[0]]] * 2 + [[cores[1 % len(cores)]]]
    assert all("tbf" in rank["queue"] and "200Mbit" in rank["queue"] for rank in facts)


@pytest.mark.launches
def test_rank_tests_pass_across_hosts(hosts):
    end = hosts(2, 4, "--exec", sys.executable, "-m", "pytest", "--with-mpi", "-q", *RANK_TESTS)
    assert end.returncode == 0, end.stdout + end.stderr
    assert re.search(r"\d+ passed", end.stdout)


@pytest.mark.launches
@pytest.mark.parametrize("shards", [2, 4])
def test_bytes_between_hosts_are_the_planned_ones(hosts, tmp_path, shards):
    """By the traffic log to the byte, by the interfaces within 5 %: these see headers, agreement and barriers, too."""
    end = hosts(2, 4, *HYBRID, "--shard-size", shards, "--hidden", "256", "--steps", "10", "--rate", "1gbit", "--json",
                tmp_path / "summary.json")
    assert end.returncode == 0, end
    assert "4 ranks: 0-1 on host0, 2-3 on host1" in end.stdout
    summary = json.loads((tmp_path / "summary.json").read_text())
    for rank, row in enumerate(summary["traffic"]):
        # of gathers and reductions of a shard group inside a host nothing leaves it: only what crosses replicas does
        leaves = row["by_op"]["all_reduce"] if shards == 2 else row["sent_bytes_per_step"] * (rank % 2)
        assert row["inter_host_bytes_per_step"] == row["planned_between_hosts_bytes_per_step"] == leaves
    assert [(host["name"], host["ranks"]) for host in summary["hosts"]] == [("host0", [0, 1]), ("host1", [2, 3])]
    for host in summary["hosts"]:
        planned = host["planned_inter_host_bytes_per_step"]
        assert host["inter_host_bytes_per_step"] == planned > 0
        assert planned < host["interface_payload_bytes_per_step"] < host["interface_bytes_per_step"] < 1.05 * planned


@pytest.mark.launches
def test_tensor_parallel_ranks_across_hosts_send_more(hosts, tmp_path):
    """scripts/tensor_across_hosts.sh of a small model: bytes as planned. Inside hosts what crosses is of shards, of a
    rank's part of the parameters: gathered twice and reduced once, and the tied embedding gathered twice more."""
    flags = ["--mpirun", mpirun(), "--layers", "1", "--d-model", "16", "--context", "8", "--data", __file__]
    end = subprocess.run(["bash", "scripts/tensor_across_hosts.sh", "--rate", "200mbit", "--json",
                          tmp_path / "rows.json", *flags, "--steps", "2"], cwd=ROOT, env=environment(), text=True,
                         stdin=subprocess.DEVNULL, errors="replace", capture_output=True, timeout=scaled(120))
    assert end.returncode == 0, end
    inside, across = json.loads((tmp_path / "rows.json").read_text())
    part = 256 * 16 // 2 + 8 * 16 + (16 * 48 + 48 + 16 * 16 + 16 * 64 + 64 + 64 * 16) // 2 + 8 * 16
    assert inside["counted"] == inside["planned"] == 2 * (3 * part + 2 * 256 * 16 // 2)
    tokens, sums = 8 * 8, 3 + 3  # embedding and two of a block forward, head and two of a block backward
    targets = 3 * 4 * 3 * tokens  # three numbers of float32 to each of three others
    shares = 2 * 3 * (tokens * 16 // 4) * 2 * sums + targets
    copied = 2 * 3 * (8 * 16 + 8 * 16) // 4 * 2
    assert across["counted"] == across["planned"] == shares + copied
    assert across["interface"] > across["counted"] and "times the bytes" in end.stdout


@contextlib.contextmanager
def training(log: Path):
    """The script, training without an end on two hosts, and the first process of each; all are gone after the test."""
    words = ["2", "4", "--mpirun", mpirun(), *HYBRID, "--steps", "1000000", "--log", str(log)]
    child = subprocess.Popen([*SCRIPT, *words], cwd=ROOT, env=environment(), stdin=subprocess.DEVNULL, text=True,
                             errors="replace", stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    first = []
    try:
        wait_until(lambda: child.poll() is not None or (log / "steps.jsonl").exists())
        assert child.poll() is None, child.communicate()
        first = [int(pid) for pid in re.findall(r"is process (\d+)", child.stdout.readline())]
        assert len(first) == 2
        time.sleep(1)  # somewhere within steps
        yield child, first
        wait_until(lambda: not any(map(alive, first)))
    finally:
        child.kill()
        child.wait()
        for pid in filter(alive, first):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.launches
@pytest.mark.parametrize("event", ["has died", "is cut off"])
def test_a_host_that_is_lost_ends_the_job_and_is_named(hosts, tmp_path, event):
    with training(tmp_path / "log") as (child, first):
        begin = time.monotonic()
        if event == "has died":
            os.kill(first[1], signal.SIGKILL)
        else:
            subprocess.run(["nsenter", "-t", str(first[1]), "-n", "ip", "link", "set", "eth0", "down"], check=True)
        output, _ = child.communicate(timeout=scaled(60))
        assert time.monotonic() - begin < scaled(15)
    assert child.returncode > 0 and f"run_hosts.sh: host1 {event}" in output and "run_hosts.sh: host0" not in output
    if event == "is cut off":  # else mpirun may notice before ssh does
        assert "ssh-or-end: host1 is lost" in output


@pytest.mark.launches
@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGKILL])
def test_a_signal_ends_the_job_and_its_hosts(hosts, tmp_path, number):
    """One that mpirun heeds ends it in good order; after KILL nobody cleans up, and nothing is left."""
    with training(tmp_path / "log") as (child, first):
        child.send_signal(number)
        output, _ = child.communicate(timeout=scaled(20))
    if number == signal.SIGUSR1:
        assert child.returncode == 128 + number and "interrupted by SIGUSR1" in output


@pytest.mark.launches
def test_where_there_is_one_host_nothing_leaves_it(tmp_path):
    """scripts/host_bytes.py alone, as it would be started on real hosts."""
    end = launch(2, "scripts/host_bytes.py", "--stage", "2", "--steps", "2", "--json", tmp_path / "summary.json")
    assert end.status == 0, end.output
    summary = json.loads((tmp_path / "summary.json").read_text())
    (host,) = summary["hosts"]
    assert host["ranks"] == [0, 1] and host["inter_host_bytes_per_step"] == 0 <= host["interface_bytes_per_step"]
    assert [row["inter_host_bytes_per_step"] for row in summary["traffic"]] == [0, 0]
