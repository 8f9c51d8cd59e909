"""One collective's use of a group: a channel with a tag of its own, and the messages under way on it."""

from __future__ import annotations

import copy
import time
import zlib
from typing import Any, final

import numpy as np
import numpy.typing as npt

from mpizero.comm.group import Group
from mpizero.comm.traffic import Message
from mpizero.errors import CommunicationError
from mpizero.memory.ledger import Allocator

Array = np.ndarray

MAX_MESSAGE_BYTES = 2**31 - 1  # counts are C ints in most MPI libraries; larger messages go in parts
IN_FLIGHT = 127  # collectives of a group that may be under way at once


@final
class Channel:
    """One collective's use of `group`: a tag of its own and its messages.

    The tag holds a running number, so that collectives under way at once never take each other's messages, and a
    checksum of what is called, so that ranks which have come to call different collectives wait for each other (and
    time out) rather than take wrong data. op, unit, phase, dtype and numel say what is called.
    """

    __slots__ = ("group", "rank", "size", "mem", "op", "unit", "phase", "dtype", "numel", "number", "sends", "arrivals",
                 "_comm", "_byte", "_tag")

    def __init__(self, group: Group, op: str, unit: str = "", phase: str = "", dtype: str = "", numel: int = 0):
        self.group = group
        self.rank: int = group.rank
        self.size: int = group.size
        self.mem: Allocator = _Kept(group.mem)
        self.op, self.unit, self.phase, self.dtype, self.numel = op, unit, phase, dtype, numel
        self.sends: list[Message] = []  # kept where the group's log is timed
        self.arrivals: list[Message] = []
        self._comm, self._byte = group._comm, group._mpi.BYTE
        call = zlib.crc32(f"{op}/{unit}/{phase}/{dtype}/{numel}".encode())
        self.number = group._next_call()
        self._tag = self.number % IN_FLIGHT * 256 + call % 256  # below 2^15, the least upper bound MPI allows

    def __str__(self) -> str:
        what = f"{self.op} of unit {self.unit!r}" if self.unit else self.op
        return f"{what} in group {self.group.name!r}"

    def beside(self, tag: int) -> Channel:
        """The same ranks and call under another tag: its messages are in nobody's log."""
        channel = copy.copy(self)
        channel._tag, channel.sends, channel.arrivals = tag, [], []
        return channel

    def words(self) -> str:
        """All that ranks must have alike, for people."""
        when = f" in {self.phase}" if self.phase else ""
        return f"{self} of {self.numel:,} x {self.dtype}{when}, its call number {self.number:,}"

    def is_near(self, rank: int) -> bool:
        """Whether group rank `rank` runs on this host."""
        return self.group.hosts[rank] == self.group.hosts[self.rank]

    def requests(self) -> Requests:
        """None yet; messages are added to it."""
        return Requests(self)

    def send(self, array: Array, dest: int) -> Requests:
        """Begin to send a flat contiguous array to group rank `dest`."""
        return Requests(self).send(array, dest)

    def receive(self, array: Array, source: int) -> Requests:
        """Begin to receive a flat contiguous array from group rank `source`."""
        return Requests(self).receive(array, source)

    def exchange(self, send: Array, dest: int, recv: Array, source: int) -> Requests:
        """Begin both, the send first: see [Note: send first] in `ring`."""
        return Requests(self).send(send, dest).receive(recv, source)


@final
class _Kept:
    """An allocator whose arrays live as long as it does: see [Note: Storage] in `collective`."""

    def __init__(self, mem: Allocator):
        self._mem, self._arrays = mem, list[Array]()

    def empty(self, shape: int | tuple[int, ...], dtype: npt.DTypeLike, kind: str) -> Array:
        return self._keep(self._mem.empty(shape, dtype, kind))

    def adopt(self, array: Array, kind: str) -> Array:
        return self._keep(self._mem.adopt(array, kind))

    def _keep(self, array: Array) -> Array:
        self._arrays.append(array)
        return array


@final
class Requests:
    """Sends and receives under way, like MPI's requests.

    Their arrays must not be touched until all are done. An empty array is a message of 0 bytes. Messages from one rank
    to another arrive in the order in which both began them.
    """

    __slots__ = ("channel", "ranks", "bytes_sent", "bytes_between", "bytes_received", "messages", "receives", "_open")

    def __init__(self, channel: Channel):
        self.channel = channel
        self.ranks: list[int] = []  # the other end of each
        self.bytes_sent = self.bytes_between = self.bytes_received = 0  # between: of the sent ones, to other hosts
        self.messages = 0  # sent
        self.receives: list[tuple[int, int]] = []  # source and bytes of each
        self._open: list[Any] = []  # of each the mpi4py.MPI.Request

    def send(self, array: Array, dest: int) -> Requests:
        """Begin one more send."""
        channel = self.channel
        for part in messages(array):
            if channel.group.log.timed:  # before the send, which may arrive before it returns
                channel.sends.append(Message(dest, part.nbytes, time.perf_counter()))
            self._open.append(channel._comm.Isend([part, channel._byte], dest, channel._tag))
            self.ranks.append(dest)
            self.messages += 1
        self.bytes_sent += array.nbytes
        self.bytes_between += 0 if channel.is_near(dest) else array.nbytes
        return self

    def receive(self, array: Array, source: int) -> Requests:
        """Begin one more receive."""
        channel = self.channel
        for part in messages(array):
            self._open.append(channel._comm.Irecv([part, channel._byte], source, channel._tag))
            self.ranks.append(source)
            self.receives.append((source, part.nbytes))
        self.bytes_received += array.nbytes
        return self

    def done(self) -> bool:
        """True when the arrays may be used again. Never waits. CommunicationError when MPI reports a failure."""
        mpi = self.channel.group._mpi
        try:
            return bool(mpi.Request.Testall(self._open))
        except mpi.Exception as error:
            reason = error.Get_error_string()
            raise CommunicationError(f"{self.channel}: {reason} while {self.channel.group.where(self.channel.rank)} "
                                     f"talked to {self.peers()}") from error

    def lack(self) -> str:
        """What is outstanding, for people."""
        return f"{self.channel}: no answer from {self.peers()} to {self.channel.group.where(self.channel.rank)}"

    def peers(self) -> str:
        """The ranks whose part is outstanding, and where they are."""
        ranks = [rank for rank, request in zip(self.ranks, self._open, strict=True) if not request.Test()]
        return " and ".join(map(self.channel.group.where, dict.fromkeys(ranks))) or "nobody"


def messages(array: Array) -> list[Array]:
    """The bytes of a flat array in parts of whole elements that MPI can count; an empty array is one empty part."""
    data = array.view(np.uint8)
    if data.size <= MAX_MESSAGE_BYTES:
        return [data]
    step = max(1, MAX_MESSAGE_BYTES // array.itemsize) * array.itemsize
    return [data[start:start + step] for start in range(0, data.size, step)]
