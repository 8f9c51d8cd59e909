"""Bytes between hosts in closed form: the lecture's 13B model on 8 hosts of 8. That lists of actions send them: see
test_links."""

from __future__ import annotations

from mpizero.papers.sharding import full_sharding, hybrid_sharding, hybrid_sharding_printed

M = 25_493_504_000


def test_13b_on_8_hosts_of_8():
    assert full_sharding(M, 64) == 3 * 63 * (M // 64) and round(full_sharding(M, 64) / 1e9, 2) == 75.29
    assert hybrid_sharding(M, 64, 8) == 2 * 7 * (M // 64) and round(hybrid_sharding(M, 64, 8) / 1e9, 2) == 5.58
    assert full_sharding(M, 64) / hybrid_sharding(M, 64, 8) == 13.5


def test_what_the_fsdp_paper_prints_for_hybrid_is_more():
    """2M(W-1)/(GW): reported beside the ring's exact 2M(W-G)/(GW)."""
    assert round(hybrid_sharding_printed(M, 64, 8) / 1e9, 2) == 6.27
    assert hybrid_sharding_printed(M, 64, 8) / hybrid_sharding(M, 64, 8) == 63 / 56


def test_whole_bytes_are_ints():
    assert isinstance(full_sharding(64, 64), int) and full_sharding(10, 3) == 20 and full_sharding(10, 4) == 22.5
