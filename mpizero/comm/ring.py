"""The rings, as generators of messages under way: `yield requests` means "go on when these are done".

Who drives a generator decides what waiting means: the blocking calls of `collectives` poll, a communication stream does
something else meanwhile, a test runs all ranks in one process. Everything sent or received is yielded exactly once, so
its driver can also count. A ring takes its workspace when it is made (`set_up`), and sends nothing before its first
step.

[Note: ring] A flat array of `numel` elements on N ranks is cut into N chunks, chunk c being rank c's own. In a
reduce-scatter, chunk c travels c+1, c+2, ... c, and each rank on its way adds its own values; in an all-gather it
travels c, c+1, ... c-1. Every rank sends N-1 chunks: (N-1)/N * numel elements, the least possible. The order of
additions for chunk c is ((x[c+1] + x[c+2]) + ...) + x[c]: it depends on the chunk and the group only. Patarasuk and
Yuan, "Bandwidth optimal all-reduce algorithms", 2009.

[Note: segments] A large chunk is cut once more, into segments, each sent on as soon as it is complete here. A segment
of a reduction fits a cache: it is added while it is still there. Sends are not waited for until the end, so a rank may
be a whole chunk ahead of its right neighbour. With more ranks than cores this slack is worth more than anything else: a
rank that holds a core has work to do on it. Measured against carrying each segment all the way round before the next,
which would keep partial sums in cache: 19 against 29 ms for a reduce-scatter of 64 MiB on 4 ranks and 2 cores.

[Note: send first] A rank begins its sends before its receives. Over TCP, Open MPI puts the announcement of a message
and the leave to send one into the stream that carries the messages. With the receive first, the leave goes out before
the announcement; then the neighbour's whole message leaves before its answer to ours, and the two directions of a link
take turns. Measured between two hosts with 1 Gbit/s, 1.6 MB each way while both compute: 13 and 38 ms in turn, with
sends first always 13 to 16.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import wraps
from itertools import chain
from typing import Any, ParamSpec

import numpy as np

from mpizero.comm.addition import Add, adder
from mpizero.comm.channel import Array, Channel, Requests
from mpizero.layout import rings
from mpizero.layout.rings import chunk
from mpizero.memory.kinds import WORKSPACE

Steps = Iterator[Requests]
P = ParamSpec("P")
SET_UP: Any = None  # what a ring yields when it has its workspace


def set_up(ring: Callable[P, Steps]) -> Callable[P, Steps]:
    """The generator, run up to where it yields SET_UP."""

    @wraps(ring)
    def made(*args: P.args, **kwargs: P.kwargs) -> Steps:
        steps = ring(*args, **kwargs)
        assert next(steps) is SET_UP
        return steps

    return made


@set_up
def reduce_scatter(channel: Channel, flat: Array, out: Array, accumulate: bool = False) -> Steps:
    """out = sum over ranks of this rank's chunk of `flat`, or with `accumulate` out + sum.

    See [Note: ring], [Note: segments].
    """
    rank, size = channel.rank, channel.size
    add = adder(flat.dtype, rings.longest(flat.size, size), channel.mem) if size > 1 or accumulate else None
    if size == 1:
        yield SET_UP
        _keep(flat, out, add)
        return
    assert add is not None
    left, right = (rank - 1) % size, (rank + 1) % size
    chunks = _segments(flat, size, rings.SEGMENT_BYTES)
    # to which others will add: they go on to the right
    partial = [own for step in range(2, size) for own in chunks[rank - step]]
    results = _pieces(out, rings.SEGMENT_BYTES)
    overwrite = not accumulate and not np.may_share_memory(flat, out)
    depth = rings.NEAR_DEPTH if channel.is_near(left) else rings.DEPTH
    landing = _landing(channel, flat, partial if overwrite else partial + chunks[rank], depth, overwrite)
    landing += results if overwrite else []
    yield SET_UP
    sends = channel.requests()
    for part in chunks[rank - 1]:
        sends.send(part, right)
    incoming = [channel.receive(place, left) for place in landing[:depth]]
    additions = zip(partial + chunks[rank], landing, partial + results, strict=True)
    for number, (own, received, total) in enumerate(additions):
        yield incoming[number]
        if accumulate and number >= len(partial):
            add(received, own, received)
            add(total, received, total)
        else:
            add(received, own, total)
        if number < len(partial):
            sends.send(total, right)
        if number + depth < len(landing):
            incoming.append(channel.receive(landing[number + depth], left))
    yield sends


def all_gather(channel: Channel, flat: Array) -> Steps:
    """Every chunk of `flat` = that of the rank it belongs to. See [Note: ring]."""
    rank, size = channel.rank, channel.size
    if size == 1:
        return
    left, right = (rank - 1) % size, (rank + 1) % size
    chunks = _segments(flat, size, rings.GATHER_SEGMENT_BYTES)
    sends = channel.requests()
    for part in chunks[rank]:
        sends.send(part, right)
    incoming = [(step, part, channel.receive(part, left)) for step in range(1, size) for part in chunks[rank - step]]
    for step, part, receive in incoming:
        yield receive
        if step < size - 1:
            sends.send(part, right)
    yield sends


def all_reduce(channel: Channel, flat: Array) -> Steps:
    """flat = sum over ranks: a reduce-scatter into each rank's own chunk, then an all-gather."""
    if channel.size == 1:
        return iter(())
    return chain(reduce_scatter(channel, flat, flat[chunk(flat.size, channel.rank, channel.size)]),
                 all_gather(channel, flat))


def broadcast(channel: Channel, flat: Array, root: int) -> Steps:
    """flat = root's, segment by segment along the chain root, root + 1, ..."""
    rank, size = channel.rank, channel.size
    if size == 1:
        return
    parts = _pieces(flat, rings.SEGMENT_BYTES)
    last = (rank + 1) % size == root
    incoming = [channel.receive(part, (rank - 1) % size) for part in parts] if rank != root else []
    sends = channel.requests()
    for k, part in enumerate(parts):
        if incoming:
            yield incoming[k]
        if not last:
            sends.send(part, (rank + 1) % size)
    yield sends


def barrier(channel: Channel) -> Steps:
    """Nobody goes on before all have come: empty messages to ranks at distance 1, 2, 4, ...

    Hensgen, Finkel and Manber, "Two algorithms for barrier synchronization", 1988.
    """
    rank, size = channel.rank, channel.size
    distance, nothing = 1, np.empty(0, np.uint8)
    while distance < size:
        yield channel.exchange(nothing, (rank + distance) % size, nothing, (rank - distance) % size)
        distance *= 2


def _landing(channel: Channel, flat: Array, through: list[Array], depth: int, overwrite: bool) -> list[Array]:
    """Where the sums that a reduce-scatter receives arrive: those of the segments `through` in `depth` pieces of
    workspace in turn, or as many as there are. With `overwrite` those for the result come into the result itself, which
    spares a pass over memory."""
    most, width = rings.landing(flat.size, channel.size, flat.itemsize, overwrite)
    # one array: an allocator has it at hand more often than two
    workspace = channel.mem.empty(most * width, flat.dtype, WORKSPACE)
    depth = min(depth, most)
    return [workspace[number % depth * width:][:part.size] for number, part in enumerate(through)]


def _keep(flat: Array, out: Array, add: Add | None) -> None:
    """The reduce-scatter of a group of one: out = flat or, with `add`, out + flat."""
    if add is not None:
        for total, own in zip(_pieces(out, rings.SEGMENT_BYTES), _pieces(flat, rings.SEGMENT_BYTES), strict=True):
            add(total, own, total)
    elif not np.may_share_memory(flat, out):
        np.copyto(out, flat)


def _segments(flat: Array, size: int, nbytes: int) -> list[list[Array]]:
    """The segments of each of the `size` chunks."""
    return [_pieces(flat[chunk(flat.size, index, size)], nbytes) for index in range(size)]


def _pieces(part: Array, nbytes: int) -> list[Array]:
    """`part` cut into pieces of `nbytes`, the last one short.

    An empty array is one empty piece: it sends a message too.
    """
    width = rings.segment(nbytes, part.itemsize)
    return [part[start:start + width] for start in range(0, max(1, part.size), width)]
