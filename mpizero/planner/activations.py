"""Where the values of forward and backward are stored, and how large that is.

[Note: What lives when]
A value is held in storages; a storage lives as long as a value that it belongs to is there. What a forward saves is its
own storage and, where backward reads them, those of the segment's input and output: so an x that nobody saved dies with
its last reader, and one that two segments saved is counted once. The loss saves the logits (the last x), a few numbers
a target, and the targets; its backward turns the logits into their own gradient, in place.
"""

from __future__ import annotations

from dataclasses import replace

from mpizero.layout import ActivationBytes, SegmentBytes
from mpizero.schedule import values as v
from mpizero.schedule.actions import Action, Backward
from mpizero.schedule.values import Name, Value

Storage = Value  # named after the value that it was made for


def storages(value: Value, table: ActivationBytes) -> tuple[Storage, ...]:
    """The storages that hold `value`, one of x, targets, saved, dy. See [Note: What lives when]."""
    assert value.mb is not None, f"{value} is no activation"
    segment, mb, loss = value.index, value.mb, len(table.segments)
    if value == v.saved(loss, mb):
        return value, v.x(loss, mb), v.targets(mb)
    if value.name is Name.SAVED:
        kept = table.segments[segment]
        ends = [(kept.keeps_input, v.x(segment, mb)), (kept.keeps_output, v.x(segment + 1, mb))]
        return value, *(x for keeps, x in ends if keeps)
    return (v.x(loss, mb),) if value == v.dy(loss - 1, mb) else (value,)


def storage_bytes(storage: Storage, table: ActivationBytes) -> int:
    """What `storage` takes."""
    segment, loss = storage.index, len(table.segments)
    match storage.name:
        case Name.TARGETS:
            return table.targets
        case Name.X:
            return table.segments[segment - 1].output if segment else table.inputs
        case Name.DY:
            return table.segments[segment].output
        case Name.SAVED:
            return table.loss_kept if segment == loss else table.segments[segment].kept
        case _:
            raise AssertionError(f"{storage} is no activation")


def checkpointed(table: ActivationBytes) -> ActivationBytes:
    """Every segment but the first and the last keeps its input alone; `again` tells what its backward makes anew."""
    if len(table.segments) < 3:
        return table
    first, *middle, last = table.segments
    return replace(table, segments=(first, *(SegmentBytes(segment.output) for segment in middle), last))


def again(action: Action, table: ActivationBytes) -> int:
    """Bytes that live during `action` alone, since a checkpointed segment computes again what it did not keep."""
    if isinstance(action, Backward) and 0 < action.segment < len(table.segments) - 1:
        return table.segments[action.segment].kept
    return 0
