"""Latency and bandwidth of a link from timed rings, and how well they tell the times again."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mpizero.machine import Machine, Route

ROUNDS = 10  # in which the scales of a fit settle
TINY = 1e-9  # seconds


@dataclass(frozen=True)
class Timing:
    """A collective of our rings, timed. where: for people. ranks: of the ring; nbytes: of the whole array; seconds: of the
    slowest rank, the first quartile of several calls; leaving: how many such rings left each host at once, 0 if all stayed inside;
    ranks_per_host: how many of a ring's members, and of those beside it, a host has."""

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
    """(seconds of a message however short, bytes a second) of the line that misses the timings least, in proportion:
    microseconds count as much as milliseconds, and half of a time is as far from it as twice."""
    timings = list(timings)
    predicted = [each.seconds for each in timings]
    for _ in range(ROUNDS):
        scales = [math.sqrt(guess * each.seconds) for guess, each in zip(predicted, timings, strict=True)]
        alpha, beta = _line(timings, scales)
        predicted = [alpha * each.rounds + beta * each.sent for each in timings]
    return alpha, 1 / beta


def _line(timings: Sequence[Timing], scales: Sequence[float]) -> tuple[float, float]:
    """(alpha, beta) of the least sum of squares of (alpha rounds + beta sent - seconds) / scale, both above 0."""
    rows = [(each.rounds / scale, each.sent / scale, each.seconds / scale)
            for each, scale in zip(timings, scales, strict=True)]
    aa, ab, bb, at, bt = (math.fsum(row[i] * row[j] for row in rows)
                          for i, j in ((0, 0), (0, 1), (1, 1), (0, 2), (1, 2)))
    determinant = aa * bb - ab * ab
    if determinant > 1e-9 * aa * bb:
        alpha, beta = (at * bb - bt * ab) / determinant, (aa * bt - ab * at) / determinant
        if alpha > 0 and beta > 0:
            return alpha, beta
    # the timings show one of both alone: of the other the most that none of them contradicts, shared with the first
    return (min(each.seconds / each.rounds for each in timings) / 2,
            min(each.seconds / each.sent for each in timings) / 2)


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
