"""How large should a unit be? Small units: a low peak, many collectives. Large ones: the reverse.

FSDP (arXiv:2304.11277), sec. 3.2.1.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mpizero.machine import BETWEEN_HOSTS, Machine, Route

COLLECTIVES = 3  # of a fully sharded unit in a step: all-gather in forward, all-gather and reduce-scatter in backward


@dataclass(frozen=True)
class Sizing:
    """One way to cut a model. Elements are padded ones."""

    label: str
    units: int
    largest_elements: int
    peak_elements: int  # of parameters: all shards, and the largest unit whole
    collectives: int
    seconds: float  # that a rank communicates in a step, nothing overlapped
    latency_seconds: float  # of which the messages would take if they were empty


def sizing(label: str, sizes: Sequence[int], shards: int, itemsize: int, machine: Machine,
           route: Route = BETWEEN_HOSTS) -> Sizing:
    """sizes: elements of each unit. route: of the rings. Peak: sum(psi_i) / F + max psi_i."""
    padded = [-(-size // shards) * shards for size in sizes]
    collectives = COLLECTIVES * len(sizes)
    seconds = COLLECTIVES * sum(machine.ring_seconds(itemsize * size, shards, route) for size in padded)
    return Sizing(label, len(sizes), max(padded), sum(padded) // shards + max(padded), collectives, seconds,
                  collectives * (shards - 1) * machine.alpha)


def merged(sizes: Sequence[int], count: int) -> list[int]:
    """`count` neighbours put together into one unit."""
    return [sum(sizes[i : i + count]) for i in range(0, len(sizes), count)]


def cut(sizes: Iterable[int], parts: int) -> list[int]:
    """Every size cut into `parts`, as equal as whole elements allow."""
    pieces = (size // parts + (i < size % parts) for size in sizes for i in range(parts))
    return [piece for piece in pieces if piece]


def choices(sizes: Sequence[int], shards: int, itemsize: int, machine: Machine,
            route: Route = BETWEEN_HOSTS) -> list[Sizing]:
    """From one unit for the whole model to sixteen for each given size, by powers of two."""
    cuts = [("the whole model", [sum(sizes)])]
    count = 1
    while 2 * count < len(sizes):
        count *= 2
    while count > 1:
        cuts.append((f"{count} stages", merged(sizes, count)))
        count //= 2
    cuts.append(("a stage", list(sizes)))
    cuts += [(f"1/{parts} of a stage", cut(sizes, parts)) for parts in (2, 4, 8, 16)]
    return [sizing(label, pieces, shards, itemsize, machine, route) for label, pieces in cuts]
