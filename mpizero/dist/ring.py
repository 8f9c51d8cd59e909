"""The rings, as generators of exchanges: `yield pending` means "go on when this exchange is done".

Who drives a generator decides what waiting means: the blocking calls of `collectives` poll, a communication stream does something
else meanwhile, a test runs all ranks in one process. Every exchange is yielded exactly once, so its driver can also count.

[Note: ring] A flat array of `numel` elements on N ranks is cut into N chunks, chunk c being rank c's own. In a reduce-scatter, chunk c
travels c+1, c+2, ... c, and each rank on its way adds its own values; in an all-gather it travels c, c+1, ... c-1. Every rank sends
N-1 chunks: (N-1)/N * numel elements, the least possible. The order of additions for chunk c is ((x[c+1] + x[c+2]) + ...) + x[c]:
it depends on the chunk and the group only. Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms", 2009.

[Note: segments] A reduction cuts a large chunk once more, into segments that fit a cache: a received segment is added while it is still
there, and sent on at once. Sends are never waited for until the end, so a rank may be a whole chunk ahead of its right neighbour. With more
ranks than cores this slack is worth more than anything else: a rank that holds a core has work to do on it. Measured against carrying each
segment all the way round before the next, which would keep partial sums in cache: 19 against 29 ms, 64 MiB, 4 ranks on 2 cores.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TypeVar

import numpy as np

from mpizero.dist.group import Array, Group, Pending
from mpizero.memory import WORKSPACE

SEGMENT_BYTES = 2**20  # of a chunk on its way through a reduction or a chain; about the size of a core's own cache
DEPTH = 2  # segments received ahead: one arrives while another is added

Steps = Iterator[Pending]
T = TypeVar("T")


def chunk(numel: int, index: int, size: int) -> slice:
    """The range of chunk `index` when `numel` elements are cut for `size` ranks: ceil(numel / size) each, the last ones short or empty."""
    width = -(-numel // size)
    return slice(min(index * width, numel), min((index + 1) * width, numel))


def reduce_scatter(group: Group, flat: Array, out: Array, accumulate: bool = False) -> Steps:
    """out = sum over ranks of this rank's chunk of `flat`, or with `accumulate` out + sum. See [Note: ring], [Note: segments]."""
    rank, size = group.rank, group.size
    if size == 1:
        _add(flat, None, out, accumulate)
        return
    chunks = [segments(part) for part in _chunks(flat, size)]
    results = segments(out)
    sends = [group.send(part, (rank + 1) % size) for part in chunks[rank - 1]]
    turns = ((step, k) for step in range(2, size + 1) for k in range(len(chunks[rank - step])))
    for step, k, received, pending in ahead(_receive(group, turns, chunks), DEPTH):
        yield pending
        own = chunks[rank - step][k]
        if step == size:
            _add(own, received, results[k], accumulate)
        else:
            np.add(received, own, out=own)
            sends.append(group.send(own, (rank + 1) % size))
    yield from sends


def all_gather(group: Group, flat: Array) -> Steps:
    """Every chunk of `flat` = that of the rank it belongs to. See [Note: ring]. Whole chunks: here segments only cost messages."""
    rank, size = group.rank, group.size
    chunks = _chunks(flat, size)
    for step in range(size - 1):
        yield group.exchange(chunks[rank - step], (rank + 1) % size, chunks[rank - step - 1], (rank - 1) % size)


def all_reduce(group: Group, flat: Array) -> Steps:
    """flat = sum over ranks: a reduce-scatter into each rank's own chunk, then an all-gather."""
    if group.size > 1:
        yield from reduce_scatter(group, flat, flat[chunk(flat.size, group.rank, group.size)])
        yield from all_gather(group, flat)


def broadcast(group: Group, flat: Array, root: int) -> Steps:
    """flat = root's, segment by segment along the chain root, root + 1, ..."""
    rank, size = group.rank, group.size
    parts = segments(flat)
    last = (rank + 1) % size == root
    incoming = [group.receive(part, (rank - 1) % size) for part in parts] if rank != root else []
    sends = []
    for k, part in enumerate(parts):
        if incoming:
            yield incoming[k]
        if not last:
            sends.append(group.send(part, (rank + 1) % size))
    yield from sends


def barrier(group: Group) -> Steps:
    """Nobody goes on before all have come: empty messages to ranks at distance 1, 2, 4, ... Hensgen, Finkel and Manber, 1988."""
    distance, nothing = 1, np.empty(0, np.uint8)
    while distance < group.size:
        yield group.exchange(nothing, (group.rank + distance) % group.size, nothing, (group.rank - distance) % group.size)
        distance *= 2


def segments(part: Array) -> list[Array]:
    """`part` cut into pieces of SEGMENT_BYTES, the last one short; an empty array is one empty piece, so that it sends a message too."""
    width = max(1, SEGMENT_BYTES // part.itemsize)
    return [part[start:start + width] for start in range(0, max(1, part.size), width)]


def ahead(items: Iterable[T], depth: int) -> Iterator[T]:
    """The same items, each made while `depth` - 1 earlier ones have not been asked for yet."""
    source = iter(items)
    queue = deque(islice(source, depth))
    while queue:
        yield queue.popleft()
        queue.extend(islice(source, 1))


def _receive(group: Group, turns: Iterator[tuple[int, int]], chunks: list[list[Array]]) -> Iterator[tuple[int, int, Array, Pending]]:
    """Begin to receive the segments of `turns` = (step, index) into workspace that is used in rotation."""
    rank, size = group.rank, group.size
    count = sum(len(chunks[rank - step]) for step in range(2, size + 1))
    widest = max(len(parts[0]) for parts in chunks)
    buffers = [group.mem.empty(widest, chunks[0][0].dtype, WORKSPACE) for _ in range(min(DEPTH, count))]
    for number, (step, k) in enumerate(turns):
        received = buffers[number % len(buffers)][:chunks[rank - step][k].size]
        yield step, k, received, group.receive(received, (rank - 1) % size)


def _chunks(flat: Array, size: int) -> list[Array]:
    return [flat[chunk(flat.size, index, size)] for index in range(size)]


def _add(own: Array, received: Array | None, out: Array, accumulate: bool) -> None:
    """out = received + own (+ out), rounded after each addition; `received` is lost."""
    if received is None:
        total = own
    elif accumulate:
        total = np.add(received, own, out=received)
    else:
        total = np.add(received, own, out=out)
    if accumulate:
        np.add(out, total, out=out)
    elif received is None and not np.may_share_memory(out, own):
        np.copyto(out, own)
