"""Where the values of forward and backward are stored, and how large that is.

[Note: What lives when]
A value is held in storages; a storage lives as long as a value that it belongs to is there. What a forward saves is its
own storage and, where backward reads them, those of the segment's input and output: so an x that nobody saved dies with
its last reader, and one that two segments saved is counted once. The loss saves the logits (the last x), a few numbers
a target, and the targets; its backward turns the logits into their own gradient, in place. A kept input is the input's
own storage, under another kind for as long as it is kept; what it is copied to off the device is another storage.
Between the parts of a computation x and dy are a storage of their own each, beside that of its input, if backward reads
that.
"""

from __future__ import annotations

from mpizero.layout import ActivationBytes
from mpizero.schedule import values as v
from mpizero.schedule.values import Name, Value

Storage = Value  # named after the value that it was made for
# what is shared among tensor parallel ranks -> the one in whose storage it is
WHOLE = {Name.SUMMAND: Name.X, Name.DSUMMAND: Name.DY, Name.LOSS_PARTS: Name.LOSS_PART}


def storages(value: Value, table: ActivationBytes) -> tuple[Storage, ...]:
    """The storages that hold `value`, one of those of forward and backward. See [Note: What lives when]."""
    assert value.mb is not None, f"{value} is no activation"
    segment, mb, loss = value.index, value.mb, len(table.segments)
    if value == v.saved(loss, mb):
        return value, v.x(loss, mb), v.targets(mb)
    if value.name is Name.KEPT:
        return (v.x(segment, mb),)
    if value.name in (Name.TARGETS, Name.KEPT_PART, Name.SHELVED, Name.SHELVED_PART, Name.LOSS_PART):
        return (value,)
    if value.name in WHOLE:  # summed, or completed, in place
        return storages(Value(WHOLE[value.name], segment, mb), table)
    after = segment if value.name is Name.X else segment + 1
    if _part(after, table):  # between parts
        return () if value.name is Name.SAVED else (value, *_input(after, mb, table))
    if value.name is Name.SAVED:
        return value, *_input(segment, mb, table), *([v.x(after, mb)] if table.segments[segment].keeps_output else [])
    return (v.x(loss, mb),) if value == v.dy(loss - 1, mb) else (value,)


def _part(segment: int, table: ActivationBytes) -> int:
    """How many parts of its computation come before it. 0 of the loss."""
    return table.segments[segment].part if segment < len(table.segments) else 0


def _input(segment: int, mb: int, table: ActivationBytes) -> tuple[Storage, ...]:
    """Of the computation of which a segment is a part, if backward reads it."""
    return (v.x(segment - _part(segment, table), mb),) if table.segments[segment].keeps_input else ()


def storage_bytes(storage: Storage, table: ActivationBytes) -> int:
    """What `storage` takes."""
    segment, loss = storage.index, len(table.segments)
    match storage.name:
        case Name.TARGETS:
            return table.targets
        case Name.LOSS_PART:
            return table.loss_parts
        case Name.KEPT_PART | Name.SHELVED_PART:
            return table.segments[segment - 1].output // table.ranks
        case Name.X | Name.SHELVED:
            return table.input(segment)
        case Name.DY:
            upstream = table.segments[segment].upstream
            return table.segments[segment].output if upstream is None else upstream
        case Name.SAVED:
            return table.loss_kept if segment == loss else table.segments[segment].kept
        case _:
            raise AssertionError(f"{storage} is no activation")
