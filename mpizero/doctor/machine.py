"""The machine that was measured, as plans read it: fields of `mpizero.machine.Machine`, and where each is from."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from mpizero.doctor.fit import Timing, fitted, nics_of
from mpizero.doctor.host import Host
from mpizero.doctor.speed import Speeds
from mpizero.machine import Machine
from mpizero.text import counted

UPDATE_BYTES = 28  # of memory that Adam's update of an element moves: planner.costs.update_bytes, in 16 and 32 bits
OWN = "float16"  # the dtype whose rates stand in the table itself: Machine's are of 16-bit operands


@dataclass(frozen=True)
class Links:
    """Timings of rings. inside: in hosts; alone: that leave hosts one at a time; beside: side by side. carried: of each
    host, bytes that its interfaces sent meanwhile."""

    inside: tuple[Timing, ...] = ()
    alone: tuple[Timing, ...] = ()
    beside: tuple[Timing, ...] = ()
    carried: tuple[dict[str, int], ...] = ()

    @property
    def all(self) -> tuple[Timing, ...]:
        return self.inside + self.alone + self.beside


def link_rates(links: Links) -> dict[str, Any]:
    """Fields of `Machine` that rings tell; those of links that there were none of are missing."""
    found: dict[str, Any] = {"nics": 1, "all_nics": False}
    if links.inside:
        found["intra_alpha"], found["intra_bandwidth"] = fitted(links.inside)
    if links.alone:
        found["alpha"], found["inter_bandwidth"] = fitted(links.alone)
        found.setdefault("intra_bandwidth", found["inter_bandwidth"])  # of hosts of one rank each: nothing runs there
    if links.beside:
        found["nics"] = nics_of(links.beside, found["alpha"], found["inter_bandwidth"])
    return found


def compute_rates(speeds: Speeds, hosts: Sequence[str]) -> tuple[dict[str, float], dict[str, dict[str, float]]]:
    """(fields of `Machine` that computing tells, those of them that depend on the dtype, by dtype). Of the slowest
    rank, for whom all wait. hosts: of each rank."""
    by_dtype = {}
    for dtype, products in speeds.matmul.items():
        peak = min(products)
        by_dtype[dtype] = {
            "peak_flops": peak, "efficiency": min(min(speeds.block[dtype]) / peak, 1.0),
            "update_bandwidth": UPDATE_BYTES * min(speeds.update[dtype]),
            "host_adam": min(_by_host(speeds.update[dtype], hosts))}
    copied = min(speeds.copied)
    return {**by_dtype[OWN], "memory_bandwidth": 2 * copied, "host_bandwidth": copied}, by_dtype


def _by_host(rates: Sequence[float], hosts: Sequence[str]) -> list[float]:
    """What the ranks of each host do together."""
    return [math.fsum(rate for rate, place in zip(rates, hosts, strict=True) if place == host) for host in set(hosts)]


def stated_link(host: Host) -> tuple[float, str] | None:
    """(bytes a second, words) that the interface of the default route states; None if it states nothing."""
    for each in host.interfaces:
        if each.name == host.route and each.speed:
            return each.speed / 8, f"stated by {each.name}"
    return None


def described(speeds: Speeds, links: Links, hosts: Sequence[str], first: Host, when: str) -> dict[str, Any]:
    """Keys machine, by_dtype, sources, ranks_per_host of the JSON. first: rank 0's host; when: a date."""
    rates, by_dtype = compute_rates(speeds, hosts)
    rates |= link_rates(links)
    words = f"measured on {counted(len(hosts), 'rank')} of {counted(len(set(hosts)), 'host')}, {when[:10]}"
    sources = {name: words for name in rates if name not in ("nics", "all_nics")}
    if "inter_bandwidth" not in rates and (stated := stated_link(first)):
        rates["inter_bandwidth"], sources["inter_bandwidth"] = stated
    return {"machine": rates, "by_dtype": by_dtype, "sources": sources,
            "ranks_per_host": max(Counter(hosts).values())}


def as_machine(rates: dict[str, Any]) -> Machine:
    """For predictions of what was measured; links that were not measured are those of an H100's host, and unused."""
    return replace(Machine(), **rates)
