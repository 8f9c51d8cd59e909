"""A network inside one process: all ranks run the ring generators here; messages move when the test's dice say so."""

from __future__ import annotations

import random
from collections import defaultdict, deque
from dataclasses import dataclass, field

from mpizero.memory.ledger import Uncounted


class Requests:
    """What a ring yields: messages under way, `open` of them not yet moved."""

    def __init__(self, channel):
        self.channel = channel
        self.open = self.bytes_sent = self.bytes_received = self.messages = 0

    def send(self, array, dest):
        self.channel.network.queues[self.channel.rank, dest][0].append((array, self))
        self.channel.network.begun[self.channel.rank].append("send")
        self.open += 1
        self.messages += 1
        self.bytes_sent += array.nbytes
        return self

    def receive(self, array, source):
        self.channel.network.queues[source, self.channel.rank][1].append((array, self))
        self.channel.network.begun[self.channel.rank].append("receive")
        self.open += 1
        self.bytes_received += array.nbytes
        return self


@dataclass
class Network:
    """Messages between two ranks keep their order.

    A message is copied when it moves, not when it is sent: a sender that touches its array too early spoils it.
    """

    size: int
    # (source, dest): sends, receives
    queues: dict = field(default_factory=lambda: defaultdict(lambda: (deque(), deque())))
    begun: dict = field(default_factory=lambda: defaultdict(list))  # by rank, in order

    def channels(self):
        return [Channel(self, rank) for rank in range(self.size)]

    def movable(self):
        return [key for key, (sends, receives) in self.queues.items() if sends and receives]

    def move(self, key):
        (array, sender), (target, receiver) = (queue.popleft() for queue in self.queues[key])
        assert array.size == target.size and array.dtype == target.dtype, "sender and receiver disagree"
        target[...] = array
        sender.open -= 1
        receiver.open -= 1


class Channel:
    """What a ring needs of mpizero.comm.channel.Channel."""

    def __init__(self, network, rank):
        self.network, self.rank, self.size, self.mem = network, rank, network.size, Uncounted()

    def is_near(self, rank):
        return rank // 2 == self.rank // 2  # two ranks a host

    def requests(self):
        return Requests(self)

    def send(self, array, dest):
        return Requests(self).send(array, dest)

    def receive(self, array, source):
        return Requests(self).receive(array, source)

    def exchange(self, send, dest, recv, source):
        return Requests(self).send(send, dest).receive(recv, source)


def run_ring(ring, *columns, seed=0):
    """Run `ring(channel, *arguments)` on every rank; a column holds one argument of each rank. Returns as `run`."""
    network = Network(len(columns[0]))
    rows = zip(*columns, strict=True)
    return run(network, [ring(channel, *row) for channel, row in zip(network.channels(), rows, strict=True)], seed)


def run(network, generators, seed):
    """Run one generator per rank to its end in a random order. Returns per rank the requests it waited for."""
    dice = random.Random(seed)
    waits = [[] for _ in generators]
    ready = dict(enumerate(generators))  # rank: generator that can go on, or has not begun
    waiting = {}
    while ready or waiting:
        for rank, requests in list(waiting.items()):
            if not requests.open:
                del waiting[rank]
                ready[rank] = generators[rank]
        moves = network.movable()
        assert ready or moves, f"deadlock: {sorted(waiting)} wait for ever"
        if ready and (not moves or dice.random() < 0.5):
            rank = dice.choice(sorted(ready))
            requests = next(ready.pop(rank), None)
            if requests is not None:
                waits[rank].append(requests)
                waiting[rank] = requests
        elif moves:
            network.move(dice.choice(moves))
    assert not network.movable()
    left = {key: tuple(map(len, queues)) for key, queues in network.queues.items() if any(queues)}
    assert not left, f"messages sent but not received, or the reverse: {left}"
    return waits
