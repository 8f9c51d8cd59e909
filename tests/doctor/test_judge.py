"""What is wrong, by facts of machines that nobody has here."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from mpizero.doctor.findings import Finding, merged, wrong
from mpizero.doctor.judge import judge
from tests.doctor.samples import GB, facts, speeds


def found(facts, subject, speeds=None):
    """The findings of a subject as (level, seen, cure)."""
    return [(each.level, each.seen, each.cure) for each in judge(facts, speeds) if each.subject == subject]


def test_nothing_is_wrong():
    told = judge(facts(), speeds())
    assert {each.level for each in told} == {"ok"} and not any(each.cure for each in told) and not wrong(told)
    assert [each.subject for each in told] == [
        "mpirun", "threads", "placement", "cores", "binding", "BLAS", "versions", "memory"]


def test_a_warning_is_not_wrong_and_an_error_is():
    assert not wrong([Finding("x", "warning", "seen"), Finding("x", "ok", "seen")])
    assert wrong([Finding("x", "ok", "seen"), Finding("x", "error", "seen")])


@pytest.mark.parametrize("started, level, text", [
    ({"program": "/usr/bin/orterun"}, "warning", "/usr/bin/orterun started these ranks, but mpi4py loads Open MPI"),
    ({"program": "", "found": "/usr/bin/mpirun"}, "warning", "/usr/bin/mpirun is the first in PATH, but"),
    ({"program": "", "found": "", "name": ""}, "warning", "none is in PATH"),
    ({"expected": ""}, "ok", "/opt/mpi/bin/prterun belongs to Open MPI"),
])
def test_mpirun_of_another_tree(started, level, text):
    (told,) = found(facts(started=started), "mpirun")
    assert told[0] == level and text in told[1]
    assert (level == "ok") == (told[2] == "") and (level == "ok" or "start with /opt/mpi/bin/mpirun" in told[2])


def test_thread_level_is_told():
    assert found(facts(thread_level="FUNNELED"), "threads")[0][:2] == (
        "ok", "MPI provides MPI_THREAD_FUNNELED: one thread at a time may call MPI, so no thread of its own sends "
        "messages")
    assert found(facts(), "threads") == [("ok", "MPI provides MPI_THREAD_MULTIPLE", "")]


GIVEN = (("a", 2), ("b", 2))


@pytest.mark.parametrize("places, started, level, cure", [
    ("aabb", {"hosts": GIVEN}, "ok", ""),
    ("aaaa", {"hosts": GIVEN, "crowds": True}, "error", "--map-by slot:OVERSUBSCRIBE"),
    ("aaaa", {"hosts": GIVEN}, "error", "two of these names are one machine"),
    ("aa", {"hosts": GIVEN, "crowds": True}, "ok", ""),  # they fit
    ("aaaa", {"hosts": (("a", None), ("b", None))}, "warning", "slots=N"),
    ("aabb", {"hosts": (*GIVEN, ("c", 2))}, "warning", "ppr:2:node"),
    ("aaaa", {}, "ok", ""),
])
def test_placement(places, started, level, cure):
    (told,) = found(facts(places, started), "placement")
    assert told[0] == level and cure in told[2] and bool(cure) == bool(told[2])


def test_more_ranks_than_cores_and_what_it_costs():
    crowded = facts("aaab", cores=(0, 1), host={"cores": 2})
    told = found(crowded, "cores", speeds(rates=(9e9, 8e9, 7e9, 2e10)))
    assert [each[0] for each in told] == ["warning", "ok"]
    assert "3 ranks share 2 cores: together, each computes at 35 % of the speed that it has alone" in told[0][1]
    assert "mpirun -n 2" in told[0][2] and "OMPI_MCA_mpi_yield_when_idle=1" in told[0][2]
    assert "OMPI" not in found(facts(cores=(0, 1), host={"cores": 2}, library="MPICH 5.0.2"), "cores")[0][2]
    assert found(facts(quota=2), "cores")[0][0] == "warning"  # a container's


def test_all_ranks_on_one_core():
    (told,) = found(facts(cores=(3,)), "binding")
    assert told[:2] == ("error", "4 ranks are bound to core 3, while the host has 8") and "--bind-to none" in told[2]
    assert not found(facts(cores=(3,)), "cores")  # once is enough
    assert found(facts("a", cores=(3,)), "binding")[0][:2] == ("ok", "1 of 1 are bound, to core 3 together")
    assert found(facts(cores=(0, 1), host={"cores": 2}), "binding")[0][0] == "ok"  # there are no more


def test_blas_threads():
    (told,) = found(facts(blas_threads=4, variables={"OMP_NUM_THREADS": "4"}), "BLAS")
    assert told[0] == "warning" and "(OMP_NUM_THREADS=4): 16 threads fight for 8 cores" in told[1]
    assert "export OMP_NUM_THREADS=2" in told[2] and "-x OMP_NUM_THREADS" in told[2]
    assert found(facts(blas_threads=2), "BLAS")[0][0] == "ok"
    assert found(facts("a", blas_threads=8), "BLAS")[0][0] == "ok"
    assert found(facts(cores=(0, 1), host={"cores": 2}), "BLAS")[0][0] == "ok"  # `cores` tells
    assert "does not tell" in found(facts(blas_threads=None), "BLAS")[0][1]


@pytest.mark.parametrize("change, text", [
    ({"versions": {"numpy": "1.26"}}, "the version of numpy is 2.4 on ranks 0-2 on a, 1.26 on rank 3 on b"),
    ({"versions": {"numpy": "2.4", "python": "3.12"}}, "the version of python is"),
    ({"library": "MPICH 4.0"}, "the MPI library is"),
])
def test_versions_that_differ(change, text):
    alike = facts("aaab")
    other = replace(alike, ranks=(*alike.ranks[:3], replace(alike.ranks[3], **change)))
    (told,) = found(other, "versions")
    assert told[0] == "error" and text in told[1] and told[2]


def test_memory():
    assert found(facts(), "memory") == [("ok", "64 GB, 16 GB a rank", "")]
    (told,) = found(facts(host={"limit": 8 * GB}), "memory")
    assert told[0] == "warning" and "8 GB of 64 GB" in told[1] and "2GB a rank (plan fit --device-memory)" in told[2]
    (told,) = found(facts(host={"swap_used": GB}), "swap")
    assert told[0] == "warning" and "1 GB are swapped out" in told[1] and told[2]
    assert not found(facts(host={"swap_used": GB // 10}), "swap")


@pytest.mark.parametrize("places, host, told", [
    ("aaaa", {"shm_total": 64 * 2**20, "shm_free": 64 * 2**20}, True),  # Docker's
    ("aaaa", {"shm_free": 63 * 2**20}, True), ("aaaa", {"shm_free": 64 * 2**20}, False),
    ("a", {"shm_total": 64 * 2**20}, False), ("aaaa", {"shm_total": None, "shm_free": None}, False),
])
def test_shared_memory(places, host, told):
    seen = found(facts(places, host=host), "/dev/shm")
    assert bool(seen) == told and all(each[0] == "warning" and "--shm-size" in each[2] for each in seen)


def test_the_clock_of_cores():
    assert found(facts(host={"governor": "powersave", "driver": "acpi-cpufreq"}), "clock")[0][0] == "warning"
    assert not found(facts(host={"governor": "powersave"}), "clock")  # intel_pstate's is no lowest frequency


def test_other_programs_and_stragglers():
    assert "keep 3.0 cores busy" in found(facts(), "other load", speeds(busy=3.0))[0][1]
    assert not found(facts(), "other load", speeds(busy=1.9)) + found(facts(), "other load", speeds(busy=math.nan))
    slow = speeds(rates=(1e10, 1e10, 1e10, 5e9))
    (told,) = found(facts("aaab"), "stragglers", slow)
    assert "1 rank (3 on b) compute at 50 % of the others' speed" in told[1] and told[0] == "warning"
    assert not found(facts("aaab", cores=(0, 1), host={"cores": 2}), "stragglers", speeds(rates=(5e9, 5e9, 1e10, 1e10)))


def test_what_is_the_same_on_hosts_is_told_once():
    told = merged(judge(facts("aabbc", host={"swap_used": GB}, hosts={"c": {"swap_used": 0}})))
    assert [each.hosts for each in told if each.subject == "swap"] == [("a", "b")]
    assert [each.hosts for each in told if each.subject == "cores"] == [("a", "b"), ("c",)]
    assert [each.hosts for each in told if each.subject == "placement"] == [()]
