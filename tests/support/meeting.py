"""Where ranks meet: each brings a text, all leave with all texts. Nobody spins, and nobody waits for ever."""

from __future__ import annotations

import atexit
import faulthandler
import os
import signal
import socket
import time
from array import array
from typing import NoReturn, final
from zlib import crc32

from mpi4py import MPI

ABORT_STATUS = 70


class OutOfStep(Exception):
    """Ranks met that had come for different reasons."""


@final
class Meeting:
    """`stderr` is a file descriptor that nothing captures. `over`: set it when ranks need not meet again."""

    def __init__(self, stderr: int) -> None:
        self.comm = MPI.COMM_WORLD.Dup()
        self.rank, self.size = self.comm.Get_rank(), self.comm.Get_size()
        self.stderr = stderr
        self.over = False
        atexit.register(self._leave)
        faulthandler.register(signal.SIGUSR2, file=stderr)  # the stacks of a rank that hangs inside MPI
        me = f"{socket.gethostname()}\0{os.getpid()}"
        self.places = [place.split("\0") for place in self.share("the first meeting", me)]

    def share(self, purpose: str, text: str = "", *, seconds: float | None = None) -> list[str]:
        """All ranks' texts, in rank order.

        After `seconds` of waiting the job is aborted, with the stacks of all ranks of this machine. OutOfStep if
        another rank came for another purpose; its argument holds all texts.
        """
        data = text.encode()
        mine = array("q", [crc32(purpose.encode()), len(data)])
        heads = array("q", bytes(8 * 2 * self.size))
        self._wait(self.comm.Iallgather(mine, heads), purpose, text, seconds)
        purposes, sizes = heads[::2], heads[1::2]
        received = bytearray(sum(sizes))
        if received:
            self._wait(self.comm.Iallgatherv(data, [received, sizes]), purpose, text, seconds)
        texts = [received[sum(sizes[:r]):sum(sizes[: r + 1])].decode() for r in range(self.size)]
        if len(set(purposes)) > 1:
            raise OutOfStep(texts)
        return texts

    def _leave(self) -> None:
        """A process that ends before the meetings are over would wait in MPI_Finalize, and the others for it, for
        ever."""
        if not self.over:
            self._abort(f"rank {self.rank} ended before the others")

    def _wait(self, request: MPI.Request, purpose: str, text: str, seconds: float | None) -> None:
        begin = time.monotonic()
        while not request.Test():
            waited = time.monotonic() - begin
            time.sleep(min(max(2e-5, waited / 10), 2e-3))  # at most a tenth late
            # the ranks lose patience one after the other, so that one of them reports
            if seconds is not None and waited > seconds + 2 * self.rank:
                self._abort(f"rank {self.rank} waited {seconds:g} s for the others after {purpose}\n{text}")

    def _abort(self, message: str) -> NoReturn:
        os.write(self.stderr, f"\n{message}\n".encode())
        for rank, (host, pid) in enumerate(self.places):
            if host == self.places[self.rank][0]:
                os.write(self.stderr, f"\n--- stacks of rank {rank}\n".encode())
                os.kill(int(pid), signal.SIGUSR2)
                time.sleep(0.2)
        MPI.COMM_WORLD.Abort(ABORT_STATUS)
        os._exit(ABORT_STATUS)
