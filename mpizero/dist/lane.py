"""One collective's use of a group: a lane for its messages, and the exchanges under way on it."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

import numpy as np

from mpizero.errors import CommunicationError
from mpizero.memory import Allocator

if TYPE_CHECKING:
    from mpi4py import MPI

    from mpizero.dist.group import Group

Array = np.ndarray

MAX_MESSAGE_BYTES = 2**31 - 1  # counts are C ints in most MPI libraries; larger messages go in parts
IN_FLIGHT = 128  # collectives of a group that may be under way at once


class Lane:
    """Messages of one collective over `group`. Final.

    Its tag holds a running number, so that collectives under way at once never take each other's messages, and a checksum of what
    is called, so that ranks which have come to call different collectives wait for each other (and time out) rather than take
    wrong data. op, unit, phase, dtype and numel say what is called.
    """

    __slots__ = ("group", "rank", "size", "mem", "op", "unit", "phase", "dtype", "numel", "_comm", "_byte", "_tag")

    def __init__(self, group: Group, op: str, unit: str = "", phase: str = "", dtype: str = "", numel: int = 0):
        self.group = group
        self.rank: int = group.rank
        self.size: int = group.size
        self.mem: Allocator = group.mem
        self.op, self.unit, self.phase, self.dtype, self.numel = op, unit, phase, dtype, numel
        self._comm, self._byte = group._comm, group._mpi.BYTE
        call = zlib.crc32(f"{op}/{unit}/{phase}/{dtype}/{numel}".encode())
        self._tag = group._next_call() % IN_FLIGHT * 256 + call % 256  # below 2^15, the least upper bound MPI allows

    def __str__(self) -> str:
        return f"{self.op} of unit {self.unit!r} in group {self.group.name!r}" if self.unit else f"{self.op} in group {self.group.name!r}"

    def is_near(self, rank: int) -> bool:
        """Whether group rank `rank` runs on this host."""
        return self.group.hosts[rank] == self.group.hosts[self.rank]

    def exchange(self, send: Array, dest: int, recv: Array, source: int) -> Pending:
        """Begin to send one flat contiguous array to group rank `dest` and to receive another from `source`.

        The arrays must not be touched until the exchange is done. An empty array is a message of 0 bytes. Messages from one
        rank to another arrive in the order in which both began them.
        """
        incoming, outgoing = self.receive(recv, source), self.send(send, dest)
        incoming.requests += outgoing.requests
        incoming.dest, incoming.bytes_sent = dest, outgoing.bytes_sent
        return incoming

    def send(self, array: Array, dest: int) -> Pending:
        """One half of an exchange."""
        requests = [self._comm.Isend([part, self._byte], dest, self._tag) for part in messages(array)]
        return Pending(self, requests, dest=dest, bytes_sent=array.nbytes)

    def receive(self, array: Array, source: int) -> Pending:
        """The other half."""
        requests = [self._comm.Irecv([part, self._byte], source, self._tag) for part in messages(array)]
        return Pending(self, requests, arriving=len(requests), source=source, bytes_received=array.nbytes)


class Pending:
    """An exchange under way: receives, then sends. Final."""

    __slots__ = ("lane", "requests", "arriving", "source", "dest", "bytes_sent", "bytes_received")

    def __init__(self, lane: Lane, requests: list[MPI.Request], arriving: int = 0, source: int = 0, dest: int = 0,
                 bytes_sent: int = 0, bytes_received: int = 0):
        self.lane = lane
        self.requests = requests
        self.arriving = arriving
        self.source, self.dest = source, dest
        self.bytes_sent, self.bytes_received = bytes_sent, bytes_received

    @property
    def messages(self) -> int:
        """Messages sent."""
        return len(self.requests) - self.arriving

    def done(self) -> bool:
        """True when the arrays may be used again. Never waits. CommunicationError when MPI reports a failure."""
        mpi = self.lane.group._mpi
        try:
            return bool(mpi.Request.Testall(self.requests))
        except mpi.Exception as error:
            raise CommunicationError(f"{self.lane}: {error.Get_error_string()} while talking to {self.peers()}") from error

    def peers(self) -> str:
        """The world ranks whose part is outstanding."""
        halves = ((self.source, self.requests[:self.arriving]), (self.dest, self.requests[self.arriving:]))
        ranks = [self.lane.group.ranks[rank] for rank, requests in halves if not all(request.Test() for request in requests)]
        return " and ".join(f"rank {rank}" for rank in dict.fromkeys(ranks)) or "nobody"


def messages(array: Array) -> list[Array]:
    """The bytes of a flat array in parts of whole elements that MPI can count; an empty array is one empty part."""
    data = array.view(np.uint8)
    if data.size <= MAX_MESSAGE_BYTES:
        return [data]
    step = max(1, MAX_MESSAGE_BYTES // array.itemsize) * array.itemsize
    return [data[start:start + step] for start in range(0, data.size, step)]
