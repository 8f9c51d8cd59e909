"""How far apart the clocks of hosts are: perf_counter counts from when a host was started, or from any other moment."""

from __future__ import annotations

import math
import os
import time
from dataclasses import dataclass
from typing import final

import numpy as np

from mpizero.comm.channel import Channel, Requests
from mpizero.comm.collectives import all_gather_values
from mpizero.comm.group import Group
from mpizero.comm.wait import gave_up, wait

ROUNDS = 50
AWAKE = 5e-3  # seconds; a wait that sleeps would measure its own sleep


@final
@dataclass(frozen=True)
class Offset:
    """A clock minus rank 0's, and how far from it the truth may lie; seconds."""

    seconds: float
    uncertainty: float


def clock_offset(group: Group) -> Offset:
    """That of this rank's clock, against rank 0's. Collective.

    The ranks of a host share its clock, so the first of each host measures for all: it asks rank 0 for its time
    `ROUNDS` times, and the shortest round counts. The answer left rank 0 somewhere in it: the middle is taken, and half
    the round is the uncertainty.
    """
    channel, mine = Channel(group, "clock"), Offset(0.0, 0.0)
    leader = [group.hosts.index(host) for host in group.hosts]
    for asking in dict.fromkeys(leader):
        if asking == 0:
            continue
        if group.rank == 0:
            _answer(channel, asking)
        elif group.rank == asking:
            mine = _ask(channel)
    table = all_gather_values(group, np.array([mine.seconds, mine.uncertainty]), op="clock", phase="report")
    return Offset(*table[leader[group.rank]].tolist())


def _ask(channel: Channel) -> Offset:
    theirs, best = np.empty(1), Offset(0.0, math.inf)
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        _finish(channel.exchange(np.empty(0), 0, theirs, 0))
        end = time.perf_counter()
        if (end - begin) / 2 < best.uncertainty:
            best = Offset((begin + end) / 2 - float(theirs[0]), (end - begin) / 2)
    return best


def _answer(channel: Channel, asking: int) -> None:
    for _ in range(ROUNDS):
        _finish(channel.receive(np.empty(0), asking))
        _finish(channel.send(np.array([time.perf_counter()]), asking))


def _finish(requests: Requests) -> None:
    until = time.perf_counter() + AWAKE
    while not requests.done() and time.perf_counter() < until:
        os.sched_yield()
    if not wait(requests.done, lack=requests.lack):
        raise gave_up(requests.lack())
