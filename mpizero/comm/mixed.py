"""Reductions in which gradients, messages and sums are not all of one dtype (`ring` has those where they are), and
those to one rank.

[Note: float32 sums] A ring sends partial sums, so each of its N - 1 hops rounds to what is sent: in 16 bits the error
of a sum grows with N. Where sums are wider than messages, each rank therefore sends every chunk straight to its owner,
who adds the contributions in the ring's order, ((x[c+1] + x[c+2]) + ...) + x[c]. A contribution, the owner's own too,
is rounded once, to what is sent. The volume is the ring's, (N-1)/N; but messages go to all ranks and not to a
neighbour, so more of it leaves a host. And the bits are those of a ring of float32 messages, at half its bytes.

[Note: reduce] The sum of all goes to one rank, the root: a reduce-scatter, after which each rank sends its chunk of the
sum straight to the root (Rabenseifner, "Optimization of collective reduction operations", 2004). So the order of
additions is that of a reduce-scatter, and so are the bits. The root sends (N-1)/N * numel elements, and another rank
1/N more: of all ranks together 1/N more than a reduce-scatter. Sending whole arrays straight to the root, which adds
them, would take no more than a reduce-scatter in all; but all (N-1) * numel elements would come in over the root's
link, where now 2 (N-1)/N do, and one rank would make all additions.
"""

from __future__ import annotations

from collections import deque
from itertools import chain

import numpy as np

from mpizero.comm import ring
from mpizero.comm.addition import Rounding, adder
from mpizero.comm.channel import Array, Channel, Requests
from mpizero.comm.ring import SET_UP, Steps, set_up
from mpizero.layout import rings
from mpizero.layout.rings import chunk
from mpizero.memory.kinds import WORKSPACE


def reduce_scatter(channel: Channel, flat: Array, out: Array, accumulate: bool, wire: np.dtype) -> Steps:
    """out = sum over ranks of this rank's chunk of `flat`, or with `accumulate` out + sum.

    Messages are of dtype `wire`, sums of out's. `out` may be flat's own chunk; other contents of `flat` may be lost.
    """
    if flat.dtype == wire == out.dtype:
        return ring.reduce_scatter(channel, flat, out, accumulate)
    if channel.size == 1:
        return _alone(channel, flat, out, accumulate, wire)
    if wire == out.dtype:
        return _in_a_ring(channel, flat, out, accumulate)
    return _straight(channel, flat, out, accumulate, wire)


def all_reduce(channel: Channel, flat: Array, out: Array, accumulate: bool, wire: np.dtype) -> Steps:
    """As `reduce_scatter` into this rank's chunk of `out`, which may be `flat`; then every rank gets all of it."""
    if out is flat and flat.dtype == wire:
        return ring.all_reduce(channel, flat)
    own = out[chunk(out.size, channel.rank, channel.size)]
    return chain(reduce_scatter(channel, flat, own, accumulate, wire), ring.all_gather(channel, out))


@set_up
def reduce(channel: Channel, flat: Array, out: Array, root: int, accumulate: bool, wire: np.dtype) -> Steps:
    """On `root` out = sum over ranks of `flat`, or with `accumulate` out + sum; elsewhere `out` is empty. Messages and
    sums are as of `reduce_scatter`, contents of `flat` may be lost. See [Note: reduce]."""
    rank, size, mem = channel.rank, channel.size, channel.mem
    chunks = [chunk(flat.size, index, size) for index in range(size)]
    if rank == root:
        own = out[chunks[rank]]
    else:
        own = flat[chunks[rank]] if flat.dtype == out.dtype else mem.empty(_length(chunks[rank]), out.dtype, WORKSPACE)
    scatter = reduce_scatter(channel, flat, own, accumulate and rank == root, wire)
    longest = _length(chunks[0])
    if rank == root:
        parts = [(other, part) for other in range(size) if other != root
                 for part in _cut(out[chunks[other]], longest, out.dtype)]
        collect = _collect(channel, parts, out.dtype, accumulate)
    yield SET_UP
    yield from scatter
    if rank == root:
        yield from collect
        return
    sends = channel.requests()
    for part in _cut(own, longest, out.dtype):
        sends.send(part, root)
    yield sends


@set_up
def _collect(channel: Channel, parts: list[tuple[int, Array]], dtype: np.dtype, accumulate: bool) -> Steps:
    """Receive each part, of `dtype`, from the rank beside it, or with `accumulate` add to it what is received."""
    width, adds = max((part.size for _, part in parts), default=0), accumulate and bool(parts)
    landing = channel.mem.empty(rings.DEPTH * width if adds else 0, dtype, WORKSPACE)
    add = adder(dtype, width, channel.mem) if adds else None
    yield SET_UP
    under_way: deque[tuple[Array, Array, Requests]] = deque()
    for number in range(len(parts) + rings.DEPTH):
        if number >= rings.DEPTH and under_way:
            part, received, requests = under_way.popleft()
            yield requests
            if add is not None:
                add(part, received, part)
        if number < len(parts):
            other, part = parts[number]
            place = part if add is None else landing[number % rings.DEPTH * width:][:part.size]
            under_way.append((part, place, channel.receive(place, other)))


@set_up
def _alone(channel: Channel, flat: Array, out: Array, accumulate: bool, wire: np.dtype) -> Steps:
    """The group of one: rounded all the same, to what would be sent."""
    own = Rounding(flat.dtype, wire, out.dtype, flat.size, channel.mem, adds=accumulate)
    yield SET_UP
    (own.add if accumulate else own.put)(flat, out)


@set_up
def _in_a_ring(channel: Channel, flat: Array, out: Array, accumulate: bool) -> Steps:
    """Messages and sums are of out's dtype, `flat` of another. See ring's [Note: ring].

    Partial sums do not fit into `flat`: they lie in two chunks of workspace in turn, one on its way to the right while
    the other comes in.
    """
    rank, size, mem, wire = channel.rank, channel.size, channel.mem, out.dtype
    left, right, last, width = (rank - 1) % size, (rank + 1) % size, size - 1, rings.longest(flat.size, size)
    own = Rounding(flat.dtype, wire, wire, width, mem, adds=True)
    total = Rounding(wire, wire, wire, width, mem, adds=accumulate)
    buffers = [mem.empty(width, wire, WORKSPACE) for _ in range(rings.in_a_ring(size, accumulate))]
    yield SET_UP
    results, sends = _cut(out, width, wire), channel.requests()
    for step in range(size):
        values = flat[chunk(flat.size, (rank - 1 - step) % size, size)]
        places = results
        if step < last or accumulate:
            places = _cut(buffers[step % 2][:values.size], width, wire)
        incoming = [channel.receive(place, left) for place in places] if step else []
        before, sends = sends, channel.requests()
        for k, (part, place) in enumerate(zip(_cut(values, width, wire), places, strict=True)):
            if step:
                yield incoming[k]
            (own.add if step else own.put)(part, place)
            if step < last:
                sends.send(place, right)
            elif accumulate:
                total.add(place, results[k])
        if step:
            yield before  # the next step receives where these were sent from


@set_up
def _straight(channel: Channel, flat: Array, out: Array, accumulate: bool, wire: np.dtype) -> Steps:
    """Messages are of dtype `wire`, sums of out's. See [Note: float32 sums].

    In turn s of a segment a rank sends to the s-th rank on its left and receives from the s-th on its right, so nobody
    gets more than one message at a time. `rings.DEPTH` turns are under way.
    """
    rank, size, mem = channel.rank, channel.size, channel.mem
    longest = rings.longest(flat.size, size)
    chunks = [_cut(flat[chunk(flat.size, index, size)], longest, wire) for index in range(size)]
    results, (depth, width) = _cut(out, longest, wire), rings.straight(flat.size, size, wire.itemsize)
    turns = [(k, shift) for k in range(len(results)) for shift in range(1, size)]
    landing = mem.empty(depth * width, wire, WORKSPACE)
    leaving = None if flat.dtype == wire else mem.empty(depth * width, wire, WORKSPACE)
    totals = results
    if accumulate or np.may_share_memory(flat, out):
        scratch = mem.empty(width, out.dtype, WORKSPACE)
        totals = [scratch[:result.size] for result in results]
    sent = Rounding(flat.dtype, wire, wire, width, mem, adds=False)
    own = Rounding(flat.dtype, wire, out.dtype, width, mem, adds=True)
    other = Rounding(wire, wire, out.dtype, width, mem, adds=size > 2)
    result = Rounding(out.dtype, out.dtype, out.dtype, width, mem, adds=accumulate)
    yield SET_UP
    under_way: deque[tuple[Array, Requests]] = deque()
    for number in range(len(turns) + depth):
        if number >= depth:
            (k, shift), (received, requests) = turns[number - depth], under_way.popleft()
            yield requests
            (other.put if shift == 1 else other.add)(received, totals[k])
            if shift == size - 1:
                own.add(chunks[rank][k], totals[k])
                if totals is not results:
                    (result.add if accumulate else result.put)(totals[k], results[k])
        if number < len(turns):
            (k, shift), slot = turns[number], number % depth * width
            part, received = chunks[rank - shift][k], landing[slot:][:results[k].size]
            if leaving is not None:
                part = sent.put(part, leaving[slot:][:part.size])
            under_way.append((received, channel.exchange(part, (rank - shift) % size, received, (rank + shift) % size)))


def _length(part: slice) -> int:
    return part.stop - part.start


def _cut(part: Array, longest: int, wire: np.dtype) -> list[Array]:
    """A chunk in segments, as many as the longest chunk has: of a short one the last are short or empty."""
    width = rings.segment(rings.SEGMENT_BYTES, wire.itemsize)
    return [part[start:start + width] for start in range(0, max(1, longest), width)]
