"""Bytes between hosts with full and with hybrid sharding, in closed form. FSDP (arXiv:2304.11277), sec. 3.2.2."""

from __future__ import annotations

from fractions import Fraction

from mpizero.papers.states import plain


def full_sharding(model_bytes: int, world: int) -> int | float:
    """Two all-gathers and a reduce-scatter over all ranks: 3 M (W-1)/W. FSDP (arXiv:2304.11277), sec. 3.2.2."""
    return plain(Fraction(3 * model_bytes * (world - 1), world))


def hybrid_sharding(model_bytes: int, world: int, group: int) -> int | float:
    """Between hosts, when a shard group of `group` ranks fills a host: the ring all-reduce of M/G over W/G replicas,
    2 M (W-G)/(G W)."""
    return plain(Fraction(2 * model_bytes * (world - group), group * world))


def hybrid_sharding_printed(model_bytes: int, world: int, group: int) -> int | float:
    """What the FSDP paper prints for the same (sec. 3.2.2): 2 M (W-1)/(G W), as if the all-reduce had W members."""
    return plain(Fraction(2 * model_bytes * (world - 1), group * world))
