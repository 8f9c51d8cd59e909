"""A collective of this rank: its ring, how far it has come, and what it has sent.

[Note: Storage] A ring takes its workspace when it is made, and the collective keeps it until nobody holds the
collective: how long bytes live never depends on the network.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import final

from mpizero.comm.channel import Channel, Requests
from mpizero.comm.checked import check_call
from mpizero.comm.ring import Steps
from mpizero.comm.traffic import Message, Record
from mpizero.comm.wait import gave_up, wait


@final
class Collective:
    """Nothing is sent before the first `advance`. Whoever began it calls `finish` once, which leaves its record."""

    def __init__(self, channel: Channel, steps: Steps):
        self.channel, self.over = channel, False
        self._steps = steps
        self._requests: Requests | None = None  # what must be done before the ring goes on
        self._sent = self._between = self._received = self._messages = 0
        self._begin = self._first = self._end = 0.0  # perf_counter: of the first advance, first message, last one
        if channel.group.checked:
            check_call(channel)

    def advance(self) -> bool:
        """Take the ring's next step, if nothing has to be waited for. Whether there was one; True when it is over."""
        if self._requests is None:
            self._begin = time.perf_counter()
        elif not self.over:
            if not self._requests.done():
                return False
            self._count(self._requests)
        if not self.over:
            self._requests = next(self._steps, None)
            if self._requests is None:
                self.over, self._end = True, time.perf_counter()
        return True

    def finish(self) -> None:
        """Wait until it is over, driving it, and write its record. CommunicationError if that takes too long."""
        begin = time.perf_counter()
        self.drive(self.advance, self.lack)
        self.record(begin)

    def drive(self, advance: Callable[[], bool], lack: Callable[[], str]) -> None:
        """Wait until it is over, calling `advance`. CommunicationError if nothing moves for too long: `lack` says what
        is outstanding."""
        while not self.over:
            if not wait(advance, tests=self.channel.group.tests, lack=lack):
                raise gave_up(lack())

    def record(self, since: float) -> None:
        """Into the group's log. since: when this rank began to wait for it."""
        channel, begin = self.channel, self._begin or since
        exposed = max(self._end - since, 0.0)
        waited = min(max(self._first - since, 0.0), exposed)
        channel.group.log.append(Record(
            channel.op, channel.unit, channel.phase, channel.group.name, channel.dtype, channel.numel, self._sent,
            self._received, self._messages, self._end - begin, begin, tuple(channel.sends), tuple(channel.arrivals),
            self._between, waited, exposed))

    def lack(self) -> str:
        """What is outstanding, for people."""
        return f"{self.channel} has not begun" if self._requests is None else self._requests.lack()

    def _count(self, requests: Requests) -> None:
        if requests.bytes_received and not self._received:
            self._first = time.perf_counter()
        self._sent += requests.bytes_sent
        self._between += requests.bytes_between
        self._received += requests.bytes_received
        self._messages += requests.messages
        if self.channel.group.log.timed:
            now = time.perf_counter()
            self.channel.arrivals.extend(Message(source, nbytes, now) for source, nbytes in requests.receives)
