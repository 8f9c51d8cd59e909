"""Process groups: who takes part in a collective, and the one way in which they talk, `exchange`."""

from __future__ import annotations

import copy
import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mpizero.dist.traffic import TrafficLog
from mpizero.errors import CommunicationError, ConfigError
from mpizero.memory import Allocator, Uncounted

if TYPE_CHECKING:
    from mpi4py import MPI

Array = np.ndarray

MAX_MESSAGE_BYTES = 2**31 - 1  # counts are C ints in most MPI libraries; larger messages go in parts


class Group:
    """Some ranks and their own communicator, so that nobody else's messages can be mistaken for ours. Final.

    rank, size: this process among the group's; ranks: world rank of each; hosts: host name of each; log: receives one record per
    collective; mem: where rings take their workspace from. Made by `start`, `subgroup` and `mesh`.
    """

    def __init__(self, mpi: Any, comm: MPI.Intracomm, ranks: Sequence[int], hosts: Sequence[str], name: str):
        self._mpi = mpi  # the module mpi4py.MPI: importing it starts MPI, so only `start` may
        self._comm = comm
        self._shared = _Shared()
        self.rank: int = comm.Get_rank()
        self.size: int = comm.Get_size()
        self.ranks = tuple(ranks)
        self.hosts = tuple(hosts)
        self.name = name
        self.log = TrafficLog()
        self.mem: Allocator = Uncounted()
        self.what = ""  # the collective of this lane, for error messages
        self._tag = 0

    def __repr__(self) -> str:
        return f"Group({self.name!r}, rank {self.rank} of {self.size})"

    @property
    def library(self) -> str:
        """Name and version of the MPI library: 'Open MPI v5.0.11', 'MPICH 5.0.2'."""
        words = self._mpi.Get_library_version().replace("\0", "").split("\n")[0].replace(",", " ").replace("Version:", " ").split()
        return " ".join(words[:3] if words[0] == "Open" else words[:2])

    # -- other groups ---------------------------------------------------------------------------------------------

    def using(self, log: TrafficLog | None = None, mem: Allocator | None = None) -> Group:
        """The same group and communicator with other books."""
        group = copy.copy(self)
        group.log = self.log if log is None else log
        group.mem = self.mem if mem is None else mem
        return group

    def subgroup(self, ranks: Sequence[int], name: str, log: TrafficLog | None = None) -> Group | None:
        """A group of some of this group's ranks (numbered as in this group, in the order given) with its own communicator.

        Collective: every rank of this group calls it with the same arguments; ranks outside get None. Asked again for the same ranks
        and name, it returns the same communicator, of which MPI libraries have only some thousand. ConfigError for ranks that are
        unknown or given twice.
        """
        ranks = tuple(ranks)
        if len(set(ranks)) != len(ranks) or not all(0 <= rank < self.size for rank in ranks):
            raise ConfigError(f"group {name!r}: ranks {ranks} must be different and lie in 0..{self.size - 1}")
        if (ranks, name) not in self._shared.subgroups:
            self._shared.subgroups[ranks, name] = self._split(ranks, name)
        group = self._shared.subgroups[ranks, name]
        return group and group.using(self.log if log is None else log, self.mem)

    def _split(self, ranks: tuple[int, ...], name: str) -> Group | None:
        inside = self.rank in ranks
        comm = self._comm.Split(0 if inside else self._mpi.UNDEFINED, ranks.index(self.rank) if inside else 0)
        if not inside:
            return None
        return Group(self._mpi, comm, [self.ranks[r] for r in ranks], [self.hosts[r] for r in ranks], name)

    # -- messages -------------------------------------------------------------------------------------------------

    def lane(self, op: str, numel: int = 0, dtype: str = "", unit: str = "", phase: str = "") -> Group:
        """This group with a message tag for one collective.

        The tag holds a running number, so that collectives in flight at once never take each other's messages, and a checksum of
        what is called, so that ranks which have come to call different collectives wait for each other (and time out) rather than
        exchange wrong data.
        """
        lane = copy.copy(self)
        lane.what = f"{op} of unit {unit!r} in group {self.name!r}" if unit else f"{op} in group {self.name!r}"
        check = zlib.crc32(f"{op}/{numel}/{dtype}/{unit}/{phase}".encode())
        lane._tag = (self._shared.calls % 128) * 256 + check % 256  # below 2^15, the least upper bound MPI allows
        self._shared.calls += 1
        return lane

    def exchange(self, send: Array | None, dest: int, recv: Array | None, source: int) -> Pending:
        """Begin to send one flat contiguous array to group rank `dest` and to receive another from `source`; None for neither.

        The arrays must not be touched until the exchange is done. An empty array is a message of 0 bytes.
        """
        comm, byte, tag = self._comm, self._mpi.BYTE, self._tag
        incoming = [comm.Irecv([part, byte], source, tag) for part in messages(recv)] if recv is not None else []
        outgoing = [comm.Isend([part, byte], dest, tag) for part in messages(send)] if send is not None else []
        return Pending(self, incoming, outgoing, source, dest, 0 if send is None else send.nbytes, 0 if recv is None else recv.nbytes)

    def send(self, array: Array, dest: int) -> Pending:
        """Half of an exchange. Messages from one rank to another arrive in the order in which both began them."""
        return self.exchange(array, dest, None, self.rank)

    def receive(self, array: Array, source: int) -> Pending:
        """The other half."""
        return self.exchange(None, self.rank, array, source)

    def barrier(self) -> None:
        """Wait until every rank of the group is here, sleeping rather than spinning. Leaves no record: it carries no bytes."""
        from mpizero.dist.collectives import meet
        meet(self)


class _Shared:
    """What all views of one communicator have in common."""

    def __init__(self) -> None:
        self.calls = 0
        self.subgroups: dict[tuple[tuple[int, ...], str], Group | None] = {}


class Pending:
    """An exchange under way. Final."""

    __slots__ = ("group", "requests", "arriving", "source", "dest", "bytes_sent", "bytes_received")

    def __init__(self, group: Group, incoming: list[MPI.Request], outgoing: list[MPI.Request], source: int, dest: int,
                 bytes_sent: int, bytes_received: int):
        self.group = group
        self.requests = incoming + outgoing
        self.arriving = len(incoming)
        self.source, self.dest = source, dest
        self.bytes_sent, self.bytes_received = bytes_sent, bytes_received

    @property
    def messages(self) -> int:
        """Messages sent."""
        return len(self.requests) - self.arriving

    def done(self) -> bool:
        """True when the arrays may be used again. Never waits. CommunicationError when MPI reports a failure."""
        mpi = self.group._mpi
        try:
            return bool(mpi.Request.Testall(self.requests))
        except mpi.Exception as error:
            raise CommunicationError(f"{self.group.what}: {error.Get_error_string()} while talking to {self.peers()}") from error

    def peers(self) -> str:
        """The world ranks whose part is outstanding."""
        halves = ((self.source, self.requests[:self.arriving]), (self.dest, self.requests[self.arriving:]))
        ranks = [self.group.ranks[rank] for rank, requests in halves if not all(request.Test() for request in requests)]
        return " and ".join(f"rank {rank}" for rank in dict.fromkeys(ranks)) or "nobody"


def messages(array: Array) -> list[Array]:
    """The bytes of a flat array in parts of whole elements that MPI can count; an empty array is one empty part."""
    data = array.view(np.uint8)
    if data.size <= MAX_MESSAGE_BYTES:
        return [data]
    step = max(1, MAX_MESSAGE_BYTES // array.itemsize) * array.itemsize
    return [data[start:start + step] for start in range(0, data.size, step)]
