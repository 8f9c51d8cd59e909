"""From timed rings to rates, to predictions, and to what is wrong with links."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mpizero.doctor.fit import Timing, fitted, misses, nics_of
from mpizero.doctor.host import Interface
from mpizero.doctor.judge_links import carrier, judge
from mpizero.doctor.machine import Links, as_machine, compute_rates, described, link_rates
from mpizero.plan.measured import BY_DTYPE
from tests.doctor.samples import ETH, HOST, LO, facts, speeds

SIZES = [4**power * 1024 for power in range(8)]
SLOW = Interface("eth1", "10.1.0.1", "up", True, 1e9, 0)


def timings(alpha, bandwidth, ranks=4, leaving=0, per_host=4, links=1, where="inside a"):
    """Of a machine that is just so."""
    return [Timing(where, "all_gather", ranks, size,
                   (ranks - 1) * alpha + size * (ranks - 1) / ranks * max(leaving, links) / links / bandwidth, leaving,
                   per_host) for size in SIZES]


@pytest.mark.parametrize("alpha, bandwidth", [(1e-5, 1e9), (2e-3, 1e8), (1e-6, 2e10), (1e-4, 1e7)])
@pytest.mark.parametrize("ranks", [2, 5])
def test_a_fit_finds_what_is_there(alpha, bandwidth, ranks):
    assert fitted(timings(alpha, bandwidth, ranks)) == pytest.approx((alpha, bandwidth), rel=1e-3)


def test_disturbed_timings_do_not_move_a_fit():
    rows = timings(1e-5, 1e9)
    rows[1], rows[6] = (replace(row, seconds=50 * row.seconds) for row in (rows[1], rows[6]))
    assert fitted(rows) == pytest.approx((1e-5, 1e9), rel=0.02)


def test_what_only_latency_or_only_bandwidth_can_explain():
    alpha, _ = fitted([replace(row, seconds=3e-3) for row in timings(1e-5, 1e9)])
    assert alpha == pytest.approx(1e-3, rel=0.01)
    _, bandwidth = fitted(timings(1e-13, 1e9))
    assert bandwidth == pytest.approx(1e9, rel=0.01)


def links(alpha=1e-4, bandwidth=1e9, beside=1):
    """Two hosts of two ranks; of rings side by side, so many have a link each."""
    return Links(tuple(timings(1e-5, 4e9, 2, per_host=2)),
                 tuple(timings(alpha, bandwidth, 2, 1, 1, where="between hosts")
                       + timings(alpha, bandwidth, 4, 1, 2, where="over all ranks")),
                 tuple(timings(alpha, bandwidth, 2, 2, 2, beside, where="2 at once")), ({"eth0": 10**9},) * 2)


@pytest.mark.parametrize("beside", [1, 2])
def test_plans_tell_the_times_of_rings_again(beside):
    """By the model of all plans, from rates that rings have told: inside, between, and side by side."""
    seen = links(beside=beside)
    rates = link_rates(seen)
    assert rates["nics"] == beside and not rates["all_nics"]
    assert misses(seen.all, as_machine(rates))[1] < 2e-3
    assert misses(timings(3e-5, 4e9, 2), as_machine(rates))[1] > 0.3


def test_links_that_side_by_side_rings_share():
    assert nics_of(timings(1e-4, 1e9, 2, 4, 4, 2), 1e-4, 1e9) == 2
    assert nics_of([replace(row, seconds=1e-9) for row in timings(1e-4, 1e9, 2, 4, 4)], 1e-4, 1e9) == 4  # no more rings


def test_rates_of_computing_are_those_of_the_slowest():
    rates, by_dtype = compute_rates(speeds(rates=(1e10, 8e9, 2e10, 1e10)), "aabb")
    assert by_dtype["float32"] == {"peak_flops": 8e9, "efficiency": 0.625, "update_bandwidth": 28e8, "host_adam": 2e8}
    assert rates == {**by_dtype["float16"], "memory_bandwidth": 6e9, "host_bandwidth": 3e9}
    assert by_dtype["float16"]["efficiency"] == 0.5


def test_updates_of_a_host_are_those_of_all_its_ranks():
    """Of the host that is slowest; a plan reads the rate of its dtype."""
    seen = replace(speeds(), update={"float16": (1e8, 2e8, 4e8, 1e8), "float32": (3e8, 1e8, 5e8, 1e8)})
    rates, by_dtype = compute_rates(replace(seen, matmul={dtype: seen.matmul[dtype] for dtype in seen.update}), "aabb")
    assert rates["host_adam"] == by_dtype["float16"]["host_adam"] == 3e8
    assert by_dtype["float32"]["host_adam"] == 4e8
    assert set(BY_DTYPE) == set(by_dtype["float32"])


def test_a_host_alone_has_what_its_interface_states():
    none = Links(tuple(timings(1e-5, 4e9)))
    found = described(speeds(), none, "aaaa", HOST, "2026-11-30T10:00:00+00:00")
    assert found["machine"]["inter_bandwidth"] == 1.25e9 and found["sources"]["inter_bandwidth"] == "stated by eth0"
    assert found["sources"]["intra_alpha"] == "measured on 4 ranks of 1 host, 2026-11-30" and "alpha" not in found[
        "machine"]
    assert found["ranks_per_host"] == 4 and found["machine"]["nics"] == 1
    silent = replace(HOST, interfaces=(LO, replace(ETH, speed=None)))
    assert "inter_bandwidth" not in described(speeds(), none, "aaaa", silent, "2026")["machine"]
    assert "inter_bandwidth" not in described(speeds(), none, "aaaa", replace(HOST, route=""), "2026")["machine"]


# -- what is wrong -----------------------------------------------------------------------------------------------------


def found(seen, subject, **more):
    told = judge(facts("aabb", **more), seen, link_rates(seen))
    return [(each.level, each.seen, each.cure) for each in told if each.subject == subject]


def test_good_links():
    told = judge(facts("aabb"), links(), link_rates(links()))
    assert {each.level for each in told} == {"ok"}
    assert [each.subject for each in told] == ["inside hosts", "between hosts"]
    assert "a message between hosts takes 100 us, and 1 GB/s, over eth0" in told[1].seen
    assert not judge(facts("a"), Links(), link_rates(Links()))


def test_messages_that_take_long():
    slow = replace(links(), inside=tuple(timings(1e-3, 4e9, 2, per_host=2)))
    assert found(slow, "inside hosts")[0][0] == "warning" and "--bind-to none" in found(slow, "inside hosts")[0][2]
    crowded = found(slow, "inside hosts", cores=(0,), host={"cores": 1})
    assert crowded[0][0] == "ok" and "waiting for a core" in crowded[0][1]
    assert found(links(alpha=1e-2), "between hosts")[0][0] == "warning"


def test_slower_than_the_interface_states():
    (told,) = found(links(bandwidth=3e8), "between hosts")
    assert told[0] == "warning" and "24 % of what eth0 states" in told[1] and "OMPI_MCA" not in told[2]
    several = {"interfaces": (LO, ETH, SLOW)}
    assert "OMPI_MCA_btl_tcp_if_include=NAME" in found(links(bandwidth=3e8), "between hosts", host=several)[0][2]
    silent = {"interfaces": (replace(ETH, speed=None),)}
    assert found(links(bandwidth=3e8), "between hosts", host=silent)[0][0] == "ok"
    assert found(links(bandwidth=3e7), "between hosts", host=silent)[0][0] == "warning"


@pytest.mark.parametrize("library, cure", [("Open MPI v5.0.11", "OMPI_MCA_btl_tcp_if_include=eth0"),
                                           ("MPICH 5.0.2", "UCX_NET_DEVICES=eth0")])
def test_messages_over_the_wrong_interface(library, cure):
    docker = Interface("docker0", "172.17.0.1", "up", False, None, 0)
    for wrong in (docker, SLOW):
        seen = replace(links(bandwidth=1e8), carried=({wrong.name: 10**9, "eth0": 1000},) * 2)
        told = found(seen, "interface", host={"interfaces": (LO, ETH, wrong)}, library=library)
        assert [each[0] for each in told] == ["warning"] * 2 and all(cure in each[2] for each in told)
        assert wrong.name in told[0][1]


def test_which_interface_carries():
    assert carrier((LO, ETH, SLOW), {"lo": 5, "eth0": 900, "eth1": 10}, 1000) is ETH
    assert carrier((LO, ETH), {"lo": 5, "eth0": 90}, 1000) is None and carrier((), {}, 1000) is None
    seen = replace(links(), carried=({"eth0": 10},) * 2)
    assert "RDMA" in found(seen, "interface")[0][1] and "over no interface" in found(seen, "between hosts")[0][1]
