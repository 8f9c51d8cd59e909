"""The rings, as generators of exchanges: `yield pending` means "go on when this exchange is done".

Who drives a generator decides what waiting means: the blocking calls of `collectives` poll, a communication stream does
something else meanwhile, a test runs all ranks in one process.

[Note: ring] A flat array of `numel` elements on N ranks is cut into N chunks, chunk c being rank c's own. In a reduce-scatter chunk c
travels c+1, c+2, ... c, and each rank on its way adds its own values; in an all-gather it travels c, c+1, ... c-1. Every rank sends
N-1 chunks: (N-1)/N * numel elements, the least possible. The order of additions for chunk c is ((x[c+1] + x[c+2]) + ...) + x[c]:
it depends on the chunk and the group only.  Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms", 2009.

[Note: segments] A chunk is larger than the cache, so it is cut once more, into segments, and each segment makes its whole way round before its
turn is over: received values are still in cache when they are added to and sent on, and partial sums never go to memory.
`DEPTH` segments are under way at once, so that a rank adds one while another travels.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

import numpy as np

from mpizero.dist.group import Array, Group, Pending
from mpizero.memory import WORKSPACE

SEGMENT_BYTES = 256 * 1024  # of a chunk; smaller chunks are one message
DEPTH = 2  # segments under way at once

Steps = Iterator[Pending]


def chunk(numel: int, index: int, size: int) -> slice:
    """The range of chunk `index` when `numel` elements are cut for `size` ranks: ceil(numel / size) each, the last ones short or empty."""
    width = -(-numel // size)
    return slice(min(index * width, numel), min((index + 1) * width, numel))


def reduce_scatter(group: Group, flat: Array, out: Array, accumulate: bool = False) -> Steps:
    """out = sum over ranks of this rank's chunk of `flat`; with `accumulate`, out = out + sum. See [Note: ring]."""
    if group.size == 1:
        _finish(flat, out, accumulate)
        return
    buffers = _buffers(group, flat)
    yield from _interleave(_reduce_scatter_segment(group, parts, out[where], buffers(), accumulate) for where, parts in _segments(group, flat))


def all_gather(group: Group, flat: Array) -> Steps:
    """Every chunk of `flat` = that of the rank it belongs to. See [Note: ring]."""
    yield from _interleave(_all_gather_segment(group, parts) for _, parts in _segments(group, flat))


def all_reduce(group: Group, flat: Array) -> Steps:
    """flat = sum over ranks: a reduce-scatter of each segment, then its all-gather."""
    if group.size == 1:
        return
    buffers = _buffers(group, flat)
    yield from _interleave(_all_reduce_segment(group, parts, buffers()) for _, parts in _segments(group, flat))


def broadcast(group: Group, flat: Array, root: int) -> Steps:
    """flat = root's, along the chain root, root + 1, ..."""
    if group.size == 1:
        return
    width = max(1, SEGMENT_BYTES // flat.itemsize)
    yield from _interleave(_broadcast_segment(group, flat[start:start + width], root) for start in range(0, max(1, flat.size), width))


def barrier(group: Group) -> Steps:
    """Nobody goes on before all have come: empty messages to ranks at distance 1, 2, 4, ...  Hensgen, Finkel and Manber, 1988."""
    distance, nothing = 1, np.empty(0, np.uint8)
    while distance < group.size:
        yield group.exchange(nothing, (group.rank + distance) % group.size, nothing, (group.rank - distance) % group.size)
        distance *= 2


# -- one segment ------------------------------------------------------------------------------------------------------

def _reduce_scatter_segment(group: Group, parts: list[Array], out: Array, buffers: list[Array], accumulate: bool) -> Steps:
    rank, size = group.rank, group.size
    partial = parts[rank - 1]
    for step in range(2, size + 1):
        own = parts[rank - step]
        received = buffers[step % len(buffers)][:own.size]
        yield group.exchange(partial, (rank + 1) % size, received, (rank - 1) % size)
        if step == size and not accumulate:
            np.add(received, own, out=out)
        else:
            np.add(received, own, out=received)
        partial = received
    if accumulate:
        np.add(out, partial, out=out)


def _all_gather_segment(group: Group, parts: list[Array]) -> Steps:
    rank, size = group.rank, group.size
    for step in range(size - 1):
        yield group.exchange(parts[rank - step], (rank + 1) % size, parts[rank - step - 1], (rank - 1) % size)


def _all_reduce_segment(group: Group, parts: list[Array], buffers: list[Array]) -> Steps:
    yield from _reduce_scatter_segment(group, parts, parts[group.rank], buffers, accumulate=False)
    yield from _all_gather_segment(group, parts)


def _broadcast_segment(group: Group, part: Array, root: int) -> Steps:
    rank, size = group.rank, group.size
    if rank != root:
        yield group.exchange(None, rank, part, (rank - 1) % size)
    if (rank + 1) % size != root:
        yield group.exchange(part, (rank + 1) % size, None, rank)


# -- many segments ----------------------------------------------------------------------------------------------------

def _segments(group: Group, flat: Array) -> Iterator[tuple[slice, list[Array]]]:
    """For each segment: its range within a chunk, and that part of every chunk. As many on every rank; some may be empty."""
    chunks = [flat[chunk(flat.size, index, group.size)] for index in range(group.size)]
    width = max(1, SEGMENT_BYTES // flat.itemsize)
    for start in range(0, max(1, chunks[0].size), width):
        where = slice(start, start + width)
        yield where, [part[where] for part in chunks]


def _interleave(segments: Iterator[Steps]) -> Steps:
    """Run `DEPTH` generators at once, in turn. The order is fixed, so that every rank posts its messages in the same one."""
    waiting: deque[tuple[Pending, Steps]] = deque()

    def advance(steps: Steps) -> bool:
        pending = next(steps, None)
        if pending is not None:
            waiting.append((pending, steps))
        return pending is not None

    for steps in segments:
        advance(steps)
        while len(waiting) >= DEPTH:
            pending, oldest = waiting.popleft()
            yield pending
            if not advance(oldest):
                break
    while waiting:
        pending, oldest = waiting.popleft()
        yield pending
        advance(oldest)


def _buffers(group: Group, flat: Array) -> Callable[[], list[Array]]:
    """Workspace for the segments under way, handed out in turn: one buffer to receive into, one to send from."""
    width = min(max(1, SEGMENT_BYTES // flat.itemsize), -(-flat.size // group.size))
    count = 1 if group.size == 2 else 2
    free = deque([[group.mem.empty(width, flat.dtype, WORKSPACE) for _ in range(count)] for _ in range(DEPTH)])

    def take() -> list[Array]:
        free.rotate(-1)
        return free[0]
    return take


def _finish(flat: Array, out: Array, accumulate: bool) -> None:
    if accumulate:
        np.add(out, flat, out=out)
    elif out.ctypes.data != flat.ctypes.data:
        np.copyto(out, flat)
