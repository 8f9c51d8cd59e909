"""The rings, as generators of exchanges: `yield pending` means "go on when this exchange is done".

Who drives a generator decides what waiting means: the blocking calls of `collectives` poll, a communication stream does something
else meanwhile, a test runs all ranks in one process. Every exchange is yielded exactly once, so its driver can also count.

[Note: ring] A flat array of `numel` elements on N ranks is cut into N chunks, chunk c being rank c's own. In a reduce-scatter, chunk c
travels c+1, c+2, ... c, and each rank on its way adds its own values; in an all-gather it travels c, c+1, ... c-1. Every rank sends
N-1 chunks: (N-1)/N * numel elements, the least possible. The order of additions for chunk c is ((x[c+1] + x[c+2]) + ...) + x[c]:
it depends on the chunk and the group only. Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms", 2009.

[Note: segments] A large chunk is cut once more, into segments, each sent on as soon as it is complete here. A segment of a reduction fits
a cache: it is added while it is still there. Sends are not waited for until the end, so a rank may be a whole chunk ahead of its right
neighbour. With more ranks than cores this slack is worth more than anything else: a rank that holds a core has work to do on it.
Measured against carrying each segment all the way round before the next, which would keep partial sums in cache: 19 against 29 ms for a
reduce-scatter of 64 MiB on 4 ranks and 2 cores.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TypeVar

import numpy as np

from mpizero.dist.lane import Array, Lane, Pending
from mpizero.memory import WORKSPACE

SEGMENT_BYTES = 2**21  # of a chunk that is added or handed down a chain
GATHER_SEGMENT_BYTES = 2**22  # of a chunk that is only copied
DEPTH = 2  # segments received ahead from another host: one arrives while another is added
NEAR_DEPTH = 1  # within a host, where the core that adds is also the one that copies: nothing is gained but a larger footprint in the cache

Steps = Iterator[Pending]
T = TypeVar("T")


def chunk(numel: int, index: int, size: int) -> slice:
    """The range of chunk `index` when `numel` elements are cut for `size` ranks: ceil(numel / size) each, the last ones short or empty."""
    width = -(-numel // size)
    return slice(min(index * width, numel), min((index + 1) * width, numel))


def reduce_scatter(lane: Lane, flat: Array, out: Array, accumulate: bool = False) -> Steps:
    """out = sum over ranks of this rank's chunk of `flat`, or with `accumulate` out + sum. See [Note: ring], [Note: segments]."""
    rank, size = lane.rank, lane.size
    chunks = [segments(part) for part in _chunks(flat, size)]
    if size == 1:
        _keep(flat, out, accumulate)
        return
    sends = [lane.send(part, (rank + 1) % size) for part in chunks[rank - 1]]
    own_chunk = list(zip(chunks[rank], segments(out), strict=True))
    overwrite = not accumulate and not np.may_share_memory(flat, out)
    depth = NEAR_DEPTH if lane.is_near((rank - 1) % size) else DEPTH
    for own, received, result, pending in ahead(_arrivals(lane, chunks, own_chunk, overwrite, depth), depth):
        yield pending
        if result is None:  # a partial sum: on it goes
            np.add(received, own, out=own)
            sends.append(lane.send(own, (rank + 1) % size))
        elif accumulate:
            np.add(received, own, out=received)
            np.add(result, received, out=result)
        else:
            np.add(received, own, out=result)
    yield from sends


def all_gather(lane: Lane, flat: Array) -> Steps:
    """Every chunk of `flat` = that of the rank it belongs to. See [Note: ring]."""
    rank, size = lane.rank, lane.size
    if size == 1:
        return
    chunks = [segments(part, GATHER_SEGMENT_BYTES) for part in _chunks(flat, size)]
    incoming = [(step, part, lane.receive(part, (rank - 1) % size)) for step in range(1, size) for part in chunks[rank - step]]
    sends = [lane.send(part, (rank + 1) % size) for part in chunks[rank]]
    for step, part, pending in incoming:
        yield pending
        if step < size - 1:
            sends.append(lane.send(part, (rank + 1) % size))
    yield from sends


def all_reduce(lane: Lane, flat: Array) -> Steps:
    """flat = sum over ranks: a reduce-scatter into each rank's own chunk, then an all-gather."""
    if lane.size > 1:
        yield from reduce_scatter(lane, flat, flat[chunk(flat.size, lane.rank, lane.size)])
        yield from all_gather(lane, flat)


def broadcast(lane: Lane, flat: Array, root: int) -> Steps:
    """flat = root's, segment by segment along the chain root, root + 1, ..."""
    rank, size = lane.rank, lane.size
    if size == 1:
        return
    parts = segments(flat)
    last = (rank + 1) % size == root
    incoming = [lane.receive(part, (rank - 1) % size) for part in parts] if rank != root else []
    sends = []
    for k, part in enumerate(parts):
        if incoming:
            yield incoming[k]
        if not last:
            sends.append(lane.send(part, (rank + 1) % size))
    yield from sends


def barrier(lane: Lane) -> Steps:
    """Nobody goes on before all have come: empty messages to ranks at distance 1, 2, 4, ... Hensgen, Finkel and Manber, 1988."""
    distance, nothing = 1, np.empty(0, np.uint8)
    while distance < lane.size:
        yield lane.exchange(nothing, (lane.rank + distance) % lane.size, nothing, (lane.rank - distance) % lane.size)
        distance *= 2


def segments(part: Array, nbytes: int | None = None) -> list[Array]:
    """`part` cut into pieces of `nbytes` (SEGMENT_BYTES), the last one short; an empty array is one empty piece: it sends a message too."""
    width = max(1, (SEGMENT_BYTES if nbytes is None else nbytes) // part.itemsize)
    return [part[start:start + width] for start in range(0, max(1, part.size), width)]


def ahead(items: Iterable[T], depth: int) -> Iterator[T]:
    """The same items, each made while `depth` - 1 earlier ones have not been asked for yet."""
    source = iter(items)
    queue = deque(islice(source, depth))
    while queue:
        yield queue.popleft()
        queue.extend(islice(source, 1))


def _arrivals(
    lane: Lane, chunks: list[list[Array]], own_chunk: list[tuple[Array, Array]], overwrite: bool, depth: int
) -> Iterator[tuple[Array, Array, Array | None, Pending]]:
    """Begin to receive, one after the other, what a reduce-scatter receives.

    Yields (own values, where the others' sum arrives, the result they make or None, the pending receive). Sums arrive in `depth`
    pieces of workspace in turn; those for the result arrive in it if that may be overwritten, which spares a pass over memory.
    """
    rank, size = lane.rank, lane.size
    partial = [(own, None) for step in range(2, size) for own in chunks[rank - step]]
    through_workspace = partial if overwrite else [*partial, *own_chunk]
    depth = min(depth, len(through_workspace))
    width = max((own.size for own, _ in through_workspace), default=0)
    workspace = lane.mem.empty(depth * width, chunks[0][0].dtype, WORKSPACE)  # one array: an allocator has it at hand more often than two
    for number, (own, result) in enumerate([*partial, *own_chunk]):
        if result is not None and overwrite:
            received = result
        else:
            start = number % depth * width
            received = workspace[start:start + own.size]
        yield own, received, result, lane.receive(received, (rank - 1) % size)


def _chunks(flat: Array, size: int) -> list[Array]:
    return [flat[chunk(flat.size, index, size)] for index in range(size)]


def _keep(flat: Array, out: Array, accumulate: bool) -> None:
    """The reduce-scatter of a group of one."""
    if accumulate:
        np.add(out, flat, out=out)
    elif not np.may_share_memory(flat, out):
        np.copyto(out, flat)
