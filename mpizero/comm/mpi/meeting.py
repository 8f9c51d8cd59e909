"""How ranks that leave with an error let the others know, and how all come together. See [Note: leaving] in failure.py.
"""

from __future__ import annotations

import hashlib
from typing import Any, final

import numpy as np

from mpizero.comm import wait

NOTICE = 1  # tag of the message by which a rank says that it leaves
MEETING = 2  # and of those by which ranks that leave say why


@final
class PeerLeft(BaseException):
    """Another rank leaves with an error: args = (its exit status,). Not an Exception, which a program may swallow."""


@final
class Meeting:
    """mpi: the module mpi4py.MPI. comm: a communicator used by nothing else. notices: requests under way to others, and
    their buffers."""

    def __init__(self, mpi: Any, comm: Any):
        self._mpi, self._comm, self._rank = mpi, comm, comm.Get_rank()
        self._others = [rank for rank in range(comm.Get_size()) if rank != self._rank]
        self.notices: list[tuple[Any, np.ndarray]] = []
        self._heard: set[int] = set()  # ranks whose notice has come

    def give_notice(self, status: int) -> None:
        """Tell every other rank that this one leaves with `status`."""
        buffer = np.array([status], np.uint8)
        self.notices += [(self._comm.Isend(buffer, rank, NOTICE), buffer) for rank in self._others]

    def heed_notice(self) -> None:
        """What a rank does now and then while it waits."""
        where = self._mpi.Status()
        if self._comm.Iprobe(tag=NOTICE, status=where):
            status = np.empty(1, np.uint8)
            self._comm.Recv(status, where.Get_source(), NOTICE)
            self._heard.add(where.Get_source())
            raise PeerLeft(int(status[0]))

    def meet(self, reason: str, seconds: float) -> list[bytes] | None:
        """Every rank's reason (a digest) when all ranks are leaving; None when some do not come in time.

        A rank that leaves in peace waits for the others here, asleep; in MPI_Finalize it would spin.
        """
        wait.watch(None)
        mine = np.frombuffer(hashlib.sha256(reason.encode()).digest() + bytes([bool(self.notices)]), np.uint8)
        table = np.empty((1 + len(self._others), mine.size), np.uint8)
        table[self._rank] = mine
        # each with each, unlike MPI's Iallgather: between hosts, MPICH 4.0's MPI_Finalize often waits for ever where
        # two ranks have never exchanged a message
        requests = [self._comm.Irecv(table[rank], rank, MEETING) for rank in self._others]
        requests += [self._comm.Isend(mine, rank, MEETING) for rank in self._others]
        if not self._all_done(requests, seconds):
            return None
        if not self._receive_notices(np.flatnonzero(table[:, -1]).tolist(), seconds):
            return None
        return [row[:-1].tobytes() for row in table]

    def _receive_notices(self, senders: list[int], seconds: float) -> bool:
        """Take the notices of `senders` that nobody has heeded, as MPI wants of every message, and see one's own
        through. False if that takes too long."""
        buffers = {rank: np.empty(1, np.uint8) for rank in senders if rank not in self._heard and rank != self._rank}
        requests = [self._comm.Irecv(buffer, rank, NOTICE) for rank, buffer in buffers.items()]
        return self._all_done(requests + [request for request, _ in self.notices], seconds)

    def _all_done(self, requests: list[Any], seconds: float) -> bool:
        return wait.wait(lambda: bool(self._mpi.Request.Testall(requests)), seconds)
