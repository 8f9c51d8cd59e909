"""The actions of which every training step consists: intent only. `effects` defines what each means; who acts on them
stands elsewhere.

A *unit* is what is gathered (a FlatParameter), a *segment* what is computed; both are named by index. An action costs:

    action                     memory on the rank                          sent by the rank, n = size of the group
    LoadBatch(mb)              + inputs and targets
    Unshard(unit)              + whole parameters                          (n-1)/n of the unit, all-gather
    Broadcast(unit)            + whole parameters                          the unit, all but the last of a chain
    Reshard(unit)              - whole parameters
    Forward(segment, mb)       + activations, or its input alone
    Recompute(segment, mb)     + activations, of the input that was kept
    Loss(mb)                   + what its backward needs
    LossBackward(mb)           + gradient of the last output, - what Loss kept
    Backward(segment, mb)      + whole gradient of its units that train, - activations
    ReduceScatterGrad(unit)    + reduced gradient (a shard), - whole one   (n-1)/n, reduce-scatter
    ReduceGrad(unit)           + reduced gradient (whole, at the owner)    (n-1)/n, and 1/n to the owner
    AllReduceGrad(unit, axis)  whole gradient becomes the reduced one      2(n-1)/n, all-reduce
    AllReduceShard(unit)                                                   2(n-1)/n of what is kept, all-reduce
    ReduceScatterBucket(pieces)  as ReduceScatterGrad, of pieces of units  (n-1)/n of them
    AllReduceBucket(pieces)    as AllReduceGrad, of pieces of units        2(n-1)/n of them
    Agree()                                                                a few bytes that no formula counts
    DownloadGrad(unit)         - reduced gradient of the device, + off it  (this rank's part moves down)
    UploadGrad(unit)           + reduced gradient, - off the device        (and up)
    OptimStep(unit)            + float32 gradient of one block, meanwhile
    HoldGrad(unit)
    UploadParam(unit)          - new parameters of the host                (this rank's part moves up)
    StoreParam(unit)           - new parameters of the host
    FetchParam(unit)           + whole parameters, this rank's part there  (its part moves up)
    DownloadKept(segment, mb)  - a kept input, + off the device            (moves down)
    UploadKept(segment, mb)    + a kept input, - off the device            (moves up)
    AllReduceActivation(segment, mb)                                       2(n-1)/n of its output, all-reduce
    AllReduceInputGrad(segment, mb)                                        2(n-1)/n of its input, all-reduce
    PartitionKept(segment, mb) - (n-1)/n of a kept input
    GatherKept(segment, mb)    + (n-1)/n of it                             (n-1)/n of it, all-gather
    LossPart(mb)               + what ranks tell each other of their logits
    AllGatherLoss(mb)                                                      (n-1)/n of it, all-gather
    AllGatherParam(unit)                                                   (n-1)/n, all-gather
    BroadcastParam(unit)                                                   the unit, all but the last of a chain
    FreeGrad(unit)             - reduced gradient
    AwaitFree(unit)

Moves between tiers send nothing; what they move counts apart, by link.

A collective runs along one axis of the mesh, named where it is not the usual one. As it stands it is over when the next
action begins. `Begin(collective)` ... `End(collective)` stand for one that goes on meanwhile: what it makes takes
memory from Begin on, and what it reads or frees does until End, so bytes follow from the list, not from the network.
A late update, on the host, is begun and ended likewise: one after the other, beside what the device does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import NamedTuple

from mpizero.layout.mesh import Axis


class UnknownAction(TypeError):
    """A reader met an action that it does not know. Nothing is skipped in silence."""

    def __init__(self, action: object):
        super().__init__(f"{action!r} is no action of mpizero.schedule.actions")


@dataclass(frozen=True, slots=True)
class Phase:
    """A mark: what follows belongs to this part of the step (forward, backward, reduce, update, zero_grad,
    evaluate)."""

    name: str
    mb: int = 0


@dataclass(frozen=True, slots=True)
class LoadBatch:
    """Bring inputs and targets of the microbatch to the device."""

    mb: int


@dataclass(frozen=True, slots=True)
class Unshard:
    """Gather the whole parameters of the unit from the shards."""

    unit: int
    axis: Axis = Axis.SHARD


@dataclass(frozen=True, slots=True)
class Broadcast:
    """Every rank gets the whole parameters of the unit from the one that owns it."""

    unit: int
    axis: Axis = Axis.SHARD


@dataclass(frozen=True, slots=True)
class Reshard:
    """Free the whole parameters of the unit; what the rank keeps of them stays."""

    unit: int


class Save(StrEnum):
    """What a forward keeps: all that its backward needs; its input, for a Recompute; the same, but a copy of it; or
    nothing."""

    ALL = "all"
    INPUT = "input"
    COPY = "copy"
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class Forward:
    """Compute the segment, and keep what `save` says. Its input is gone afterwards, unless that needs it."""

    segment: int
    mb: int
    save: Save = Save.ALL


@dataclass(frozen=True, slots=True)
class Recompute:
    """Compute the segment again from the input that was kept, and keep all that its backward needs. onward: its output
    stays as well, as the kept input of the next segment, or what the next part of a computation goes on with."""

    segment: int
    mb: int
    onward: bool = False


@dataclass(frozen=True, slots=True)
class Loss:
    """Compute the loss of the last segment's output; keep what its backward needs if `save`."""

    mb: int
    save: bool = True


@dataclass(frozen=True, slots=True)
class LossBackward:
    """Compute the gradient of the last segment's output."""

    mb: int


@dataclass(frozen=True, slots=True)
class Backward:
    """Compute the gradients of the segment, adding to what its units have from later segments or earlier
    microbatches."""

    segment: int
    mb: int


@dataclass(frozen=True, slots=True)
class ReduceScatterGrad:
    """Sum the whole gradient along the axis; this rank's shard of the sum is added to its reduced gradient."""

    unit: int
    axis: Axis = Axis.SHARD


@dataclass(frozen=True, slots=True)
class ReduceGrad:
    """Sum the whole gradient along the axis; at the unit's owner the whole sum is added to its reduced gradient."""

    unit: int
    axis: Axis = Axis.SHARD


@dataclass(frozen=True, slots=True)
class AllReduceGrad:
    """Sum the whole gradient along the axis; the whole sum is added to the reduced gradient."""

    unit: int
    axis: Axis


@dataclass(frozen=True, slots=True)
class AllReduceShard:
    """Sum what this rank keeps of the reduced gradient along the axis: its shard, or all of what it owns."""

    unit: int
    axis: Axis = Axis.REPLICATE


@dataclass(frozen=True, slots=True)
class AllReduceActivation:
    """Sum the output of the segment, of which each tensor parallel rank has a summand. again: of its Recompute."""

    segment: int
    mb: int
    again: bool = False


@dataclass(frozen=True, slots=True)
class AllReduceInputGrad:
    """Sum the gradient of the input of the segment, of which each tensor parallel rank has a summand."""

    segment: int
    mb: int


@dataclass(frozen=True, slots=True)
class PartitionKept:
    """Of a kept input, which all tensor parallel ranks have alike, keep this rank's part."""

    segment: int
    mb: int


@dataclass(frozen=True, slots=True)
class GatherKept:
    """Make it whole again from the parts, since its segment is about to be computed again."""

    segment: int
    mb: int


@dataclass(frozen=True, slots=True)
class LossPart:
    """Find what other tensor parallel ranks must know of this one's part of the last segment's output."""

    mb: int


@dataclass(frozen=True, slots=True)
class AllGatherLoss:
    """Every tensor parallel rank gets what the others have found."""

    mb: int


class Piece(NamedTuple):
    """Of the whole gradient of a unit the elements begin .. end - 1 of each of its chunks, which have `width`."""

    unit: int
    begin: int
    end: int
    width: int

    @property
    def size(self) -> int:
        """Elements of each chunk."""
        return self.end - self.begin

    @property
    def last(self) -> bool:
        """Whether the gradient ends with it."""
        return self.end == self.width

    def __str__(self) -> str:
        """`3`, and of a part of the unit `3[0:512]`."""
        return f"{self.unit}" if self.size == self.width else f"{self.unit}[{self.begin}:{self.end}]"


def bucket_name(pieces: Sequence[Piece]) -> str:
    """For records and charts: by its first piece, which no other bucket of a microbatch has."""
    return f"bucket {pieces[0]}"


@dataclass(frozen=True, slots=True)
class ReduceScatterBucket:
    """ReduceScatterGrad of all pieces at once, copied into one buffer. With its last piece a gradient is freed."""

    pieces: tuple[Piece, ...]
    axis: Axis = Axis.SHARD


@dataclass(frozen=True, slots=True)
class AllReduceBucket:
    """AllReduceGrad of all pieces at once, likewise."""

    pieces: tuple[Piece, ...]
    axis: Axis


@dataclass(frozen=True, slots=True)
class Agree:
    """All ranks agree on the loss, the global norm, and whether to update at all: gradients are complete."""


@dataclass(frozen=True, slots=True)
class OptimStep:
    """Update what this rank optimises of the unit, and write it to the parameters it keeps. late: off the device, with
    the gradient that is held for it."""

    unit: int
    late: bool = False


@dataclass(frozen=True, slots=True)
class AllGatherParam:
    """Complete the kept whole parameters from the parts that each rank along the axis updated."""

    unit: int
    axis: Axis = Axis.SHARD


@dataclass(frozen=True, slots=True)
class BroadcastParam:
    """Complete whole parameters that the unit's owner has fetched from where they rest off the device."""

    unit: int
    axis: Axis = Axis.SHARD


@dataclass(frozen=True, slots=True)
class FreeGrad:
    """Free the reduced gradient of the unit; the one that was held for an update if `late`."""

    unit: int
    late: bool = False


@dataclass(frozen=True, slots=True)
class HoldGrad:
    """Keep the reduced gradient, off the device, for an update that goes on while the next step makes another one."""

    unit: int


@dataclass(frozen=True, slots=True)
class AwaitFree:
    """Wait until the memory that the last Reshard of the unit gave up can be used again. A device that computes when it
    is told has nothing to wait for; a host that runs ahead of its device has."""

    unit: int


@dataclass(frozen=True, slots=True)
class DownloadGrad:
    """Move this rank's part of the reduced gradient to where the optimizer's states rest, off the device; it is added
    to what is there of earlier microbatches."""

    unit: int


@dataclass(frozen=True, slots=True)
class UploadGrad:
    """Move it back, since more is to be summed."""

    unit: int


@dataclass(frozen=True, slots=True)
class UploadParam:
    """Move what an update off the device gave into the parameters that are kept on it."""

    unit: int


@dataclass(frozen=True, slots=True)
class StoreParam:
    """Write what a late update gave into the parameters that are kept on the same tier."""

    unit: int


@dataclass(frozen=True, slots=True)
class FetchParam:
    """Move what this rank keeps of the parameters, off the device, to its place in the whole ones."""

    unit: int


@dataclass(frozen=True, slots=True)
class DownloadKept:
    """Move a kept input off the device; this rank's part of it, if it is partitioned."""

    segment: int
    mb: int
    part: bool = False


@dataclass(frozen=True, slots=True)
class UploadKept:
    """Move it back, since its segment is about to be computed again."""

    segment: int
    mb: int
    part: bool = False


MoveKept = DownloadKept | UploadKept
MoveState = DownloadGrad | UploadGrad | UploadParam | FetchParam
Move = MoveState | MoveKept  # between tiers
Gather = Unshard | Broadcast  # make whole parameters, which Reshard frees
Bucket = ReduceScatterBucket | AllReduceBucket
Collective = (Gather | ReduceScatterGrad | ReduceGrad | AllReduceGrad | AllReduceShard | AllGatherParam
              | BroadcastParam | Bucket)
# among tensor parallel ranks, who wait for it
Share = AllReduceActivation | AllReduceInputGrad | GatherKept | AllGatherLoss

Going = Collective | Move  # what can go on while a rank computes


@dataclass(frozen=True, slots=True)
class Begin:
    """Set the collective or move going, after those that were begun along the same axis or link before; or the late
    update, after those before it."""

    action: Going | OptimStep


@dataclass(frozen=True, slots=True)
class End:
    """Wait until what was begun is over: from here on its result can be used."""

    action: Going | OptimStep


Action = (Phase | LoadBatch | Reshard | Forward | Recompute | Loss | LossBackward | Backward | Agree | OptimStep
          | FreeGrad | HoldGrad | StoreParam | AwaitFree | Collective | Share | PartitionKept | LossPart | Move | Begin
          | End)


def show(action: Action) -> str:
    """The action as a person writes it: `Unshard(2)`, `Backward(2, mb=0)`, `AllReduceGrad(1, replicate)`,
    `ReduceScatterBucket(2 1[0:512])`; defaults are left out. UnknownAction if it is none of ours."""
    if not isinstance(action, Action):
        raise UnknownAction(action)
    if isinstance(action, Phase):
        return f"-- {action.name} mb={action.mb}"
    if isinstance(action, Begin | End):
        return f"{type(action).__name__}({show(action.action)})"
    words = []
    for field in fields(action):
        value = getattr(action, field.name)
        if value != field.default:
            words.append(" ".join(map(str, value)) if field.name == "pieces" else
                         str(value) if field.name in ("unit", "segment", "axis") else f"{field.name}={value}")
    return f"{type(action).__name__}({', '.join(words)})"
