"""Our rings, timed: inside each host, between hosts, and along all ranks."""

from __future__ import annotations

import math
import operator
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from mpizero.comm import Group, all_gather, all_gather_values, barrier, chunk, reduce_scatter
from mpizero.doctor.fit import Timing
from mpizero.doctor.host import sent_bytes

SIZES = tuple(4**power * 1024 for power in range(8))  # of the whole array, 1 KiB to 16 MiB
BUDGET = 0.8  # seconds of a ring's measurements
FEWEST, MOST = 3, 25  # measurements of each
QUANTILE = 0.25  # of them counts: what other programs do to the rest is not the link's
SHORT = 1e-3  # seconds; of calls below that one measurement times several
IN_A_ROW = 5
TOO_LONG = 0.3  # seconds; beyond a call so long no larger size is tried


def inside(world: Group) -> list[Timing]:
    """A ring in each host that has several ranks, all hosts at once. Collective; what this rank's host has seen."""
    count, found = Counter(world.hosts), []
    for host in dict.fromkeys(world.hosts):
        group = world.subgroup([rank for rank in range(world.size) if world.hosts[rank] == host], f"doctor {host}")
        if group is not None and group.size > 1:
            found = measure(group, f"inside {host}", 0, count[host])
    barrier(world)
    return found


def between(world: Group) -> tuple[list[Timing], list[Timing], dict[str, int]]:
    """(timings of rings that leave a host one at a time, of those that leave side by side, bytes that each interface of
    this host has sent meanwhile). Of the world alone where hosts have one rank each. Collective."""
    count, hosts = Counter(world.hosts), list(dict.fromkeys(world.hosts))
    before, width = sent_bytes(), min(count.values())
    alone, beside = [], []
    if max(count.values()) > 1:
        alone = _side_by_side(world, hosts, 1)
    alone += measure(world, "over all ranks", 1, max(count.values()))
    if width > 1:
        beside = _side_by_side(world, hosts, width)
    after = sent_bytes()
    return alone, beside, {name: after[name] - before.get(name, 0) for name in after}


def _side_by_side(world: Group, hosts: Sequence[str], width: int) -> list[Timing]:
    """The first `width` ranks of each host, each in a ring with those of its number."""
    members = [[rank for rank in range(world.size) if world.hosts[rank] == host] for host in hosts]
    together = world.subgroup(sorted(rank for ranks in members for rank in ranks[:width]), f"doctor all {width}")
    groups = [world.subgroup([ranks[number] for ranks in members], f"doctor {number} of {width}")
              for number in range(width)]
    mine, found = next((group for group in groups if group is not None), None), []
    if mine is not None and together is not None:
        where = "between hosts" if width == 1 else f"between hosts, {width} at once"
        found = measure(mine, where, width, width, together)
    barrier(world)
    return found


def measure(group: Group, where: str, leaving: int, ranks_per_host: int, together: Group | None = None) -> list[Timing]:
    """Both halves of an all-reduce at each size, in turn, so that all meet the same disturbances. together: the ranks
    of all groups that do so at once; None: group's alone. Collective over them; the same on all of them."""
    every = group if together is None else together
    calls = [call for size in SIZES for call in _calls(group, size)]
    longest, once = 0.0, []
    for call in calls:
        if longest > TOO_LONG:
            break
        once.append(_slowest(every, [_timed(every, call.run, 1)])[0])  # and warms up
        longest = max(longest, once[-1])
    rows = [IN_A_ROW if seconds < SHORT else 1 for seconds in once]
    rounds = min(max(int(BUDGET / math.fsum(map(operator.mul, once, rows))), FEWEST), MOST)
    mine = [[_timed(every, call.run, row) for call, row in zip(calls, rows)] for _ in range(rounds)]
    slowest = np.array([_slowest(every, times) for times in mine])
    return [Timing(where, call.op, group.size, call.nbytes, float(seconds), leaving, ranks_per_host)
            for call, seconds in zip(calls, np.quantile(slowest, QUANTILE, axis=0))]


class _Call(NamedTuple):
    op: str
    nbytes: int
    run: Callable[[], None]


def _calls(group: Group, size: int) -> list[_Call]:
    """On zeros, which additions leave as they are however often they run."""
    numel = -(-size // (4 * group.size)) * group.size
    flat = np.zeros(numel, np.float32)
    flat.fill(0)  # touch the pages, which np.zeros does not
    own = flat[chunk(numel, group.rank, group.size)]
    return [_Call("all_gather", flat.nbytes, lambda: all_gather(group, flat)),
            _Call("reduce_scatter", flat.nbytes, lambda: reduce_scatter(group, flat, own))]


def _slowest(group: Group, seconds: Sequence[float]) -> list[float]:
    """Of all ranks, element by element."""
    return [float(value) for value in all_gather_values(group, np.array(seconds)).max(axis=0)]


def _timed(every: Group, call: Callable[[], None], row: int) -> float:
    barrier(every)
    begin = time.perf_counter()
    for _ in range(row):
        call()
    return (time.perf_counter() - begin) / row
