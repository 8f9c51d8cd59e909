"""Latency and bandwidth of a link from timed rings, and how well they tell the times again."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mpizero.machine import Machine, Route

WIDEST = 1e3  # the factor within which a fit first looks
ZOOMS, NEARER, POINTS = 12, 0.4, 5
TINY = 1e-9  # seconds


@dataclass(frozen=True)
class Timing:
    """A collective of our rings, timed. where: for people. ranks: of the ring; nbytes: of the whole array; seconds: of
    the slowest rank, the first quartile of several calls; leaving: how many such rings left each host at once, 0 if all
    stayed inside; ranks_per_host: how many of a ring's members, and of those beside it, a host has."""

    where: str
    op: str
    ranks: int
    nbytes: int
    seconds: float
    leaving: int
    ranks_per_host: int

    @property
    def rounds(self) -> int:
        return self.ranks - 1

    @property
    def sent(self) -> float:
        """Bytes, by each rank."""
        return self.nbytes * (self.ranks - 1) / self.ranks

    def predicted(self, machine: Machine) -> float:
        """Seconds, as every plan prices a ring."""
        return machine.ring_seconds(self.nbytes, self.ranks, Route(self.leaving, self.ranks_per_host))


def fitted(timings: Iterable[Timing]) -> tuple[float, float]:
    """(seconds of a message however short, bytes a second) of the line alpha rounds + beta sent that misses the timings
    least: the least sum of |log(told / measured)|, so that microseconds count as much as milliseconds, half as much as
    twice, and a timing that was disturbed no more than another.

    By trying: points around the best so far, nearer and nearer.
    """
    rows = [(each.rounds, each.sent, each.seconds) for each in timings]

    def miss(alpha: float, beta: float) -> float:
        return math.fsum(abs(math.log((alpha * rounds + beta * sent) / seconds)) for rounds, sent, seconds in rows)

    best = min(seconds / rounds for rounds, _, seconds in rows), min(seconds / sent for _, sent, seconds in rows)
    for zoom in range(ZOOMS):
        width = WIDEST ** (NEARER**zoom)
        factors = [width ** (step / POINTS) for step in range(-POINTS, POINTS + 1)]
        best = min(((best[0] * one, best[1] * other) for one in factors for other in factors),
                   key=lambda pair: miss(*pair))
    return best[0], 1 / best[1]


def nics_of(parallel: Sequence[Timing], alpha: float, bandwidth: float) -> int:
    """Over how many links of `bandwidth` the rings shared what left a host, by the largest of them: one ring may
    not fill a link, or there may be several."""
    largest = max(each.nbytes for each in parallel)
    shares = [each.sent * each.leaving / (bandwidth * max(each.seconds - each.rounds * alpha, TINY))
              for each in parallel if each.nbytes == largest]
    return min(max(round(statistics.median(shares)), 1), parallel[0].leaving)


def misses(timings: Iterable[Timing], machine: Machine) -> tuple[float, float]:
    """(median, largest) of |predicted / measured - 1|."""
    shares = [abs(each.predicted(machine) / each.seconds - 1) for each in timings]
    return statistics.median(shares), max(shares)
