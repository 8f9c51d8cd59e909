"""What flows through a step, by name. Actions read, make and free values; memory, time and legality follow from that.

    value          what it is                                                        made by
    x[s, mb]       input of segment s; x[0]: the batch's; x[S]: what the loss reads  LoadBatch, Forward(s - 1)
    targets[mb]    the batch's                                                       LoadBatch
    saved[s, mb]   what backward of segment s needs; saved[S]: of the loss           Forward(s), Recompute(s), Loss
    kept[s, mb]    input of segment s, kept to compute it again                      Forward(s), Recompute(s - 1)
    kept_part[s, mb]  this rank's part of it, where tensor parallel ranks divide it  PartitionKept
    shelved[s, mb], shelved_part[s, mb]  either of them off the device               DownloadKept
    dy[s, mb]      gradient of the output of segment s                               Backward(s + 1), LossBackward
    summand[s, mb], dsummand[s, mb]  what a tensor parallel rank has of x, dy[s, mb] Forward(s - 1), Backward(s + 1)
    loss_part[mb], loss_parts[mb]    of divided logits, what it has found, and all   LossPart, AllGatherLoss
    whole[u]       parameters of unit u, all of them                                 rests where placed so, else Gather
    part[u]        the same, of which this rank's part alone is there, or new        OptimStep, UploadParam, FetchParam
    shard[u]       this rank's shard of them                                         rests where placed so
    own[u]         all of them where this rank owns the unit, else nothing           rests where placed so
    states[u]      what the optimizer keeps                                          rests
    grad[u]        gradient of this rank's samples, whole                            Backward
    reduced[u]     the same, summed over ranks                                       a reduction
    offloaded[u]   the reduced gradient, where states off the device rest            DownloadGrad
    held[u]        the same, while a late update reads it                            HoldGrad
    grad_fp32[u]   float32 gradient of the block that is updated                     lives inside OptimStep
    new[u]         what an update off the device gives, rounded                      OptimStep, until it is moved

S is the number of segments: the loss comes after the last of them. A computation may be several segments (`of` in
`layout.spec`): then x[s] and dy[s] between them are all that it holds by then, and the last one saves.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Name(StrEnum):
    """Which row of the table above."""

    X = "x"
    TARGETS = "targets"
    SAVED = "saved"
    KEPT = "kept"
    KEPT_PART = "kept_part"
    SHELVED = "shelved"
    SHELVED_PART = "shelved_part"
    DY = "dy"
    SUMMAND = "summand"
    DSUMMAND = "dsummand"
    LOSS_PART = "loss_part"
    LOSS_PARTS = "loss_parts"
    WHOLE = "whole"
    PART = "part"
    SHARD = "shard"
    OWN = "own"
    STATES = "states"
    GRAD = "grad"
    REDUCED = "reduced"
    OFFLOADED = "offloaded"
    HELD = "held"
    GRAD_FP32 = "grad_fp32"
    NEW = "new"


@dataclass(frozen=True, order=True, slots=True)
class Value:
    """index: of the segment or unit. mb: of the microbatch; None for values of units."""

    name: Name
    index: int
    mb: int | None = None

    def __str__(self) -> str:
        if self.name in (Name.TARGETS, Name.LOSS_PART, Name.LOSS_PARTS):
            return f"{self.name}[mb={self.mb}]"
        return f"{self.name}[{self.index}]" if self.mb is None else f"{self.name}[{self.index}, mb={self.mb}]"


def x(segment: int, mb: int) -> Value:
    return Value(Name.X, segment, mb)


def targets(mb: int) -> Value:
    return Value(Name.TARGETS, 0, mb)


def saved(segment: int, mb: int) -> Value:
    return Value(Name.SAVED, segment, mb)


def kept(segment: int, mb: int) -> Value:
    return Value(Name.KEPT, segment, mb)


def kept_part(segment: int, mb: int) -> Value:
    return Value(Name.KEPT_PART, segment, mb)


def shelved(segment: int, mb: int, part: bool = False) -> Value:
    return Value(Name.SHELVED_PART if part else Name.SHELVED, segment, mb)


def dy(segment: int, mb: int) -> Value:
    return Value(Name.DY, segment, mb)


def summand(segment: int, mb: int) -> Value:
    return Value(Name.SUMMAND, segment, mb)


def dsummand(segment: int, mb: int) -> Value:
    return Value(Name.DSUMMAND, segment, mb)


def loss_part(mb: int) -> Value:
    return Value(Name.LOSS_PART, 0, mb)


def loss_parts(mb: int) -> Value:
    return Value(Name.LOSS_PARTS, 0, mb)


def whole(unit: int) -> Value:
    return Value(Name.WHOLE, unit)


def part(unit: int) -> Value:
    return Value(Name.PART, unit)


def shard(unit: int) -> Value:
    return Value(Name.SHARD, unit)


def own(unit: int) -> Value:
    return Value(Name.OWN, unit)


def states(unit: int) -> Value:
    return Value(Name.STATES, unit)


def grad(unit: int) -> Value:
    return Value(Name.GRAD, unit)


def reduced(unit: int) -> Value:
    return Value(Name.REDUCED, unit)


def offloaded(unit: int) -> Value:
    return Value(Name.OFFLOADED, unit)


def held(unit: int) -> Value:
    return Value(Name.HELD, unit)


def new(unit: int) -> Value:
    return Value(Name.NEW, unit)


def grad_fp32(unit: int) -> Value:
    return Value(Name.GRAD_FP32, unit)
