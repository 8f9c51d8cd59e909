"""A network inside one process: all ranks run the ring generators here, and messages move when the test's dice say so."""

from __future__ import annotations

import random
from collections import defaultdict, deque
from dataclasses import dataclass, field

from mpizero.memory import Uncounted


class Pending:
    """Messages under way, `open` of them not yet moved."""

    def __init__(self, lane):
        self.lane = lane
        self.open = self.bytes_sent = self.bytes_received = self.messages = 0

    def send(self, array, dest):
        self.lane.network.queues[self.lane.rank, dest][0].append((array, self))
        self.open += 1
        self.messages += 1
        self.bytes_sent += array.nbytes
        return self

    def receive(self, array, source):
        self.lane.network.queues[source, self.lane.rank][1].append((array, self))
        self.open += 1
        self.bytes_received += array.nbytes
        return self


@dataclass
class Network:
    """Messages between two ranks keep their order. A message is copied when it moves, not when it is sent: a sender that
    touches its array too early spoils it."""

    size: int
    queues: dict = field(default_factory=lambda: defaultdict(lambda: (deque(), deque())))  # (source, dest): sends, receives

    def lanes(self):
        return [Lane(self, rank) for rank in range(self.size)]

    def movable(self):
        return [key for key, (sends, receives) in self.queues.items() if sends and receives]

    def move(self, key):
        (array, sender), (target, receiver) = (queue.popleft() for queue in self.queues[key])
        assert array.size == target.size and array.dtype == target.dtype, "sender and receiver disagree"
        target[...] = array
        sender.open -= 1
        receiver.open -= 1


class Lane:
    """What a ring needs of mpizero.dist.lane.Lane."""

    def __init__(self, network, rank):
        self.network, self.rank, self.size, self.mem = network, rank, network.size, Uncounted()

    def is_near(self, rank):
        return rank // 2 == self.rank // 2  # two ranks a host

    def pending(self):
        return Pending(self)

    def send(self, array, dest):
        return Pending(self).send(array, dest)

    def receive(self, array, source):
        return Pending(self).receive(array, source)

    def exchange(self, send, dest, recv, source):
        return Pending(self).receive(recv, source).send(send, dest)


def run(network, generators, seed):
    """Run one generator per rank to its end in a random order. Returns per rank the pending exchanges it waited for."""
    dice = random.Random(seed)
    waits = [[] for _ in generators]
    ready = dict(enumerate(generators))  # rank: generator that can go on, or has not begun
    waiting = {}
    while ready or waiting:
        for rank, pending in list(waiting.items()):
            if not pending.open:
                del waiting[rank]
                ready[rank] = generators[rank]
        moves = network.movable()
        assert ready or moves, f"deadlock: {sorted(waiting)} wait for ever"
        if ready and (not moves or dice.random() < 0.5):
            rank = dice.choice(sorted(ready))
            pending = next(ready.pop(rank), None)
            if pending is not None:
                waits[rank].append(pending)
                waiting[rank] = pending
        elif moves:
            network.move(dice.choice(moves))
    assert not network.movable()
    left = {key: tuple(map(len, queues)) for key, queues in network.queues.items() if any(queues)}
    assert not left, f"messages sent but not received, or the reverse: {left}"
    return waits
