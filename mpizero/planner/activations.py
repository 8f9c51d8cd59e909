"""Where the values of forward and backward are stored, and how large that is.

[Note: What lives when]
A value is held in storages; a storage lives as long as a value that it belongs to is there. What a forward saves is its
own storage and, where backward reads them, those of the segment's input and output: so an x that nobody saved dies with
its last reader, and one that two segments saved is counted once. The loss saves the logits (the last x), a few numbers
a target, and the targets; its backward turns the logits into their own gradient, in place. A kept input is the input's
own storage, under another kind for as long as it is kept; what it is copied to off the device is another storage.
"""

from __future__ import annotations

from mpizero.layout import ActivationBytes
from mpizero.schedule import values as v
from mpizero.schedule.values import Name, Value

Storage = Value  # named after the value that it was made for


def storages(value: Value, table: ActivationBytes) -> tuple[Storage, ...]:
    """The storages that hold `value`, one of x, targets, saved, kept, dy. See [Note: What lives when]."""
    assert value.mb is not None, f"{value} is no activation"
    segment, mb, loss = value.index, value.mb, len(table.segments)
    if value == v.saved(loss, mb):
        return value, v.x(loss, mb), v.targets(mb)
    if value.name is Name.SAVED:
        kept = table.segments[segment]
        ends = [(kept.keeps_input, v.x(segment, mb)), (kept.keeps_output, v.x(segment + 1, mb))]
        return value, *(x for keeps, x in ends if keeps)
    if value.name is Name.KEPT:
        return (v.x(segment, mb),)
    return (v.x(loss, mb),) if value == v.dy(loss - 1, mb) else (value,)


def storage_bytes(storage: Storage, table: ActivationBytes) -> int:
    """What `storage` takes."""
    segment, loss = storage.index, len(table.segments)
    match storage.name:
        case Name.TARGETS:
            return table.targets
        case Name.X | Name.SHELVED:
            return table.segments[segment - 1].output if segment else table.inputs
        case Name.DY:
            return table.segments[segment].output
        case Name.SAVED:
            return table.loss_kept if segment == loss else table.segments[segment].kept
        case _:
            raise AssertionError(f"{storage} is no activation")
