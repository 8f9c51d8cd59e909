"""Which nodes of a training step's data flow should leave the device? All answers, enumerated.

ZeRO-Offload (arXiv:2101.06840), sec. 3. M is the number of parameters. Forward and backward compute O(M batch) and stay
on the device, as one node; updates compute O(M).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

FIXED = "fwd_bwd"
SIZES = {"p16": 2, "g16": 2, "p32": 4, "m32": 4, "v32": 4}  # data nodes: bytes per parameter
FREE = ("p16", "g16", "p32", "m32", "v32", "update", "float2half")
EDGES = (  # from, to, bytes per parameter that flow in a step
    ("p16", FIXED, 4),  # read by forward and by backward
    (FIXED, "g16", 2), ("g16", "update", 2),
    ("update", "p32", 4), ("p32", "update", 4), ("update", "m32", 4), ("m32", "update", 4),
    ("update", "v32", 4), ("v32", "update", 4),
    ("p32", "float2half", 4), ("float2half", "p16", 2),
)
MINIMUM = 4  # bytes per parameter: every node lies on a cycle, so whatever leaves the device cuts two edges at least


@dataclass(frozen=True)
class Partition:
    """host: the nodes off the device. traffic: bytes a step over the link. device_bytes: of data nodes that stay."""

    host: tuple[str, ...]
    traffic: int
    device_bytes: int


def partitions(params: int = 1) -> Iterator[Partition]:
    """All 2^7 of them, in bytes for a model of `params` parameters (1: bytes per parameter)."""
    for count in range(len(FREE) + 1):
        for host in combinations(FREE, count):
            traffic = sum(weight for source, target, weight in EDGES if (source in host) != (target in host))
            yield Partition(host, traffic * params,
                            sum(size for node, size in SIZES.items() if node not in host) * params)


def best(params: int = 1) -> list[Partition]:
    """Those of least device memory among those of least traffic with offloading: one, which is ZeRO-Offload's."""
    allowed = [partition for partition in partitions(params) if partition.traffic <= MINIMUM * params]
    least = min(partition.device_bytes for partition in allowed)
    return [partition for partition in allowed if partition.device_bytes == least]


def infinity(params: int = 1) -> Partition:
    """ZeRO-Infinity's: nothing stays on the device, for 2M more traffic."""
    return min((partition for partition in partitions(params) if partition.device_bytes == 0),
               key=lambda partition: partition.traffic)
