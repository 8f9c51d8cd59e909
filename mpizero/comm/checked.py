"""Whether all ranks call the same: in debug mode, before a collective runs.

Ranks that call different collectives wait for each other until a time-out, which tells no reason. Here every rank sends
what it calls to its right neighbour first; if two ranks of a ring differ, two neighbours do.
"""

from __future__ import annotations

import numpy as np

from mpizero.comm.channel import IN_FLIGHT, Channel
from mpizero.comm.wait import gave_up, wait
from mpizero.errors import CommunicationError

TAG = IN_FLIGHT * 256  # no collective's; the same whatever is called, so that what differs can meet
LONGEST = 512  # bytes of a call in words


def check_call(channel: Channel) -> None:
    """CommunicationError where the left neighbour calls another collective, or the same with other bytes, for another
    unit, or as another call in a row; or none in time."""
    group, rank, size = channel.group, channel.rank, channel.size
    if size == 1:
        return
    left, right = (rank - 1) % size, (rank + 1) % size
    mine, theirs = np.zeros(LONGEST, np.uint8), np.empty(LONGEST, np.uint8)
    words = channel.words().encode()[:LONGEST]
    mine[: len(words)] = np.frombuffer(words, np.uint8)
    requests = channel.beside(TAG).exchange(mine, right, theirs, left)
    if not wait(requests.done, tests=group.tests, lack=requests.lack):
        raise gave_up(f"{channel}: {group.where(left)} has called nothing, or {group.where(right)} waits for nothing")
    if not np.array_equal(mine, theirs):
        told = theirs.tobytes().rstrip(b"\0").decode(errors="replace")
        raise CommunicationError(f"ranks call different collectives: {group.where(left)} calls {told}, but "
                                 f"{group.where(rank)} calls {words.decode(errors='replace')}. All ranks of a group "
                                 "must call the same ones in the same order")
