"""ZeRO-Offload's unique optimum, by enumeration."""

from __future__ import annotations

from mpizero.papers.partition import EDGES, FIXED, FREE, MINIMUM, best, infinity, partitions

GROUP = {"p32", "m32", "v32", "update", "float2half"}


def test_all_partitions():
    found = list(partitions())
    assert len(found) == 128 == len({partition.host for partition in found})
    assert all(partition.traffic >= MINIMUM for partition in found if partition.host)


def test_exactly_four_send_no_more_than_4_bytes_a_parameter():
    rows = {(frozenset(partition.host), partition.traffic, partition.device_bytes) for partition in partitions()
            if partition.traffic <= 4}
    assert rows == {(frozenset(), 0, 16), (frozenset({"g16"}), 4, 14), (frozenset(GROUP), 4, 4),
                    (frozenset(GROUP | {"g16"}), 4, 2)}


def test_the_optimum_is_unique():
    (only,) = best(params=10**9)
    assert (set(only.host), only.traffic, only.device_bytes) == (GROUP | {"g16"}, 4 * 10**9, 2 * 10**9)


def test_six_send_6_one_of_which_is_zero_infinitys():
    six = [partition for partition in partitions() if partition.traffic == 6]
    assert len(six) == 6 and [partition for partition in six if partition.device_bytes == 0] == [infinity()]
    assert set(infinity().host) == set(FREE)


def test_every_node_lies_on_a_cycle():
    """So any partition cuts two edges at least."""
    for node in (FIXED, *FREE):
        reached, frontier = set(), {node}
        while frontier:
            frontier = {target for source, target, _ in EDGES if source in frontier} - reached
            reached |= frontier
        assert node in reached
