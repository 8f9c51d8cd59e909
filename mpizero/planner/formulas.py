"""Closed forms of what a rank keeps and sends, as papers write them, of units that are padded, tied, frozen or owned.
They walk no list: plans and counts are held against them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from mpizero.dtypes import ITEMSIZE
from mpizero.layout import DEVICE, OWNED, REPLICATED, SHARDED, Geometry, Keep, Placement, Wrapping


AT_THE_ENDS = 4  # see `shared_inputs`


def formula_after_backward(geometry: Geometry) -> int:
    """The closed form of ZeRO sec. 5 (4 psi + 12 psi/N, 2 psi + 14 psi/N, 16 psi/N), of padded psi. Frozen parameters
    are parameters alone: 2 psi, or 2 psi/N. What rests off the device does not count. Of units that have owners, 16
    times what this rank owns.

    With float32 sums it is 4 psi + 12 psi/N, 2 psi + 16 psi/N, 18 psi/N: stage 1 reduces later. Holds for one
    microbatch, or for gradients reduced after each (stage 1 then keeps an accumulated shard beside its
    whole gradient).
    """
    wrapping, placement = geometry.wrapping, geometry.placement

    def kept(units: Iterable[int], keep: Keep) -> int:
        return sum(geometry.kept(unit, keep) for unit in units)

    reduced = placement.grads is placement.optim  # stage 1 reduces after backward, which makes whole gradients shards
    grad_itemsize = geometry.sum_itemsize if reduced else geometry.itemsize
    params = geometry.itemsize * kept(range(len(wrapping.units)), placement.params)
    grads = grad_itemsize * kept(wrapping.trained, placement.grads)
    optim = geometry.optimizer_bytes * kept(wrapping.trained, placement.optim)
    if placement.tiers.optimizer is not DEVICE:  # and what is reduced in backward has gone there
        grads, optim = 0 if reduced else grads, 0
    return (params if placement.tiers.params is DEVICE else 0) + grads + optim


def formula_sizes(placement: Placement, volume: int, dtype: str, wire: str, sums: str) -> list[int]:
    """Bytes of an element in each of the `volume` times that it is sent: a gradient to be summed, its sum where ranks
    gather that, and parameters where they are gathered, once a step or, where they are sharded, twice."""
    gathers = 2 if placement.params is not REPLICATED else 1 if placement.optim is SHARDED else 0
    assert volume > gathers, f"{volume} psi are too few for {gathers} gathers and a reduction"
    return [ITEMSIZE[name] for name in (wire, *[sums] * (volume - 1 - gathers), *[dtype] * gathers)]


def formula_sent(geometry: Geometry, volume: int) -> int:
    """Bytes a rank sends in a step of one microbatch: volume M (F-1)/F + 2 M/F (R-1)/R for M bytes of parameters.

    Where gradients have other sizes on the wire or as sums, `formula_sizes` stands for `volume` times M per parameter;
    across replicas both of theirs do. M is padded, of the parameters that train. volume: 2 or 3, of the strategy (ZeRO
    sec. 7). To M's `volume` times comes what is `gathered_more`.
    Where units have owners it is this rank's own: see `_formula_of_owners`.
    """
    if geometry.placement.params is OWNED:
        return _formula_of_owners(geometry)
    wrapping, shards, replicas = geometry.wrapping, geometry.shards, geometry.replicas
    trained = sum(wrapping.units[unit].padded_numel for unit in wrapping.trained)
    sizes = formula_sizes(geometry.placement, volume, geometry.dtype, geometry.wire, geometry.sums)
    inside = sum(sizes) * trained + geometry.itemsize * gathered_more(geometry)
    across = (geometry.wire_itemsize + geometry.sum_itemsize) * (replicas - 1) * (trained // (shards * replicas))
    return inside // shards * (shards - 1) + across


def gathered_more(geometry: Geometry) -> int:
    """Elements that are gathered in a step of one microbatch beside the two gathers, for forward and for backward, of
    each parameter that trains: a tied unit at each further use, and what is frozen. 0 where nobody gathers."""
    if geometry.placement.params is REPLICATED:
        return 0
    units = geometry.wrapping.units
    every = sum(number * units[unit].padded_numel for unit, number in _gathers(geometry.wrapping).items())
    return every - 2 * sum(units[unit].padded_numel for unit in geometry.wrapping.trained)


def _gathers(wrapping: Wrapping) -> Counter[int]:
    """How often a step of one microbatch gathers each unit: once for neighbouring segments that read it."""
    found: Counter[int] = Counter()
    for way in (wrapping.segments, [each for each in reversed(wrapping.segments) if each.backward]):
        before: tuple[int, ...] = ()
        for segment in way:
            found.update(set(segment.units).difference(before))
            before = segment.units
    return found


def shared_inputs(layers: int, interval: int | None = None, partitioned: bool = False) -> int:
    """How many times (T-1)/T of bsz seq hd elements each of T tensor parallel ranks of a GPT sends for a microbatch. An
    all-reduce is two: two a block and direction (Megatron-LM, arXiv:1909.08053, sec. 3), behind the embedding and in
    front of the head. interval: of recompute, None without; of the blocks that share an input the last sum is not
    needed again. partitioned: each kept input is gathered (P_a of ZeRO, sec. 8.2)."""
    if interval is None:
        return 8 * layers + AT_THE_ENDS
    kept = -(-layers // interval)
    return 12 * layers - 2 * kept + AT_THE_ENDS + kept * partitioned


def _formula_of_owners(geometry: Geometry) -> int:
    """Of each unit: M_u at each use, unless its owner comes next; if it trains M_u (F-1)/F to be summed, and M_u/F of
    the sum to its owner, or from its owner 2 M_u (R-1)/R across replicas. Mean of ranks without replicas, no unit tied
    or frozen: (3 + 1/N) M (N-1)/N."""
    total, shards, replicas, gathers = 0, geometry.shards, geometry.replicas, _gathers(geometry.wrapping)
    for unit, layout in enumerate(geometry.wrapping.units):
        numel = layout.padded_numel
        if geometry.owner(unit) != (geometry.shard_rank + 1) % shards:
            total += geometry.itemsize * numel * gathers[unit]
        if not layout.frozen:
            total += geometry.wire_itemsize * (shards - 1) * (numel // shards)
            total += ((geometry.wire_itemsize + geometry.sum_itemsize) * (replicas - 1) * (numel // replicas)
                      if geometry.owns(unit) else geometry.sum_itemsize * (numel // shards))
    return total
