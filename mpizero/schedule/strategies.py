"""Every way to share the work and the state, as data: what is kept, when something is sent, when it is freed.

Read them one under the other. With a mesh of R replicas of a shard group of F ranks (R = 1: full sharding) the group
that each action means follows from the action. psi: parameters; N: ranks; volumes in elements a rank sends times
N/(N-1).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from mpizero.layout.mesh import Axis
from mpizero.layout.placement import OWNED, REPLICATED, SHARDED, Placement
from mpizero.layout.wrapping import SegmentUse
from mpizero.schedule.actions import (
    Action,
    AllGatherParam,
    AllReduceGrad,
    AllReduceShard,
    Backward,
    Broadcast,
    Forward,
    Gather,
    OptimStep,
    ReduceGrad,
    ReduceScatterGrad,
    Reshard,
    Unshard,
)

Actions = Iterator[Action]


@dataclass(frozen=True, slots=True)
class Microbatch:
    """sync: gradients are reduced after it (always, or with `no_sync` only after the last). last: of the step."""

    index: int
    sync: bool
    last: bool


class Strategy(ABC):
    """Yields the actions of each part of a step; `schedule.step` puts the parts in order."""

    # grads: as they are when backward ends; the reduction after it (stage 1) makes them shards
    placement: ClassVar[Placement]
    # psi that a rank sends in a step of one microbatch, times (N-1)/N: ZeRO, sec. 7; see planner.formula_sent
    volume: ClassVar[int]

    @abstractmethod
    def forward(self, segment: SegmentUse, mb: Microbatch) -> Actions:
        """Forward of one segment."""

    @abstractmethod
    def backward(self, segment: SegmentUse, mb: Microbatch) -> Actions:
        """Backward of one segment; segments come in reverse."""

    @abstractmethod
    def reduce(self, unit: int, mb: Microbatch) -> Actions:
        """After the whole backward of a microbatch that syncs, unit by unit in reverse."""

    @abstractmethod
    def update(self, unit: int) -> Actions:
        """The update of one unit."""


class DataParallel(Strategy):
    """Everything on every rank: 16 psi bytes. One step sends 2 psi."""

    placement = Placement(params=REPLICATED, grads=REPLICATED, optim=REPLICATED)
    volume = 2

    def forward(self, segment: SegmentUse, mb: Microbatch) -> Actions:
        yield Forward(segment.index, mb.index)

    def backward(self, segment: SegmentUse, mb: Microbatch) -> Actions:
        yield Backward(segment.index, mb.index)
        if mb.sync:
            for unit in segment.completes:
                yield AllReduceGrad(unit, Axis.REPLICATE)

    def reduce(self, unit: int, mb: Microbatch) -> Actions:
        yield from ()

    def update(self, unit: int) -> Actions:
        yield OptimStep(unit)


class Zero1(Strategy):
    """P_os: 4 psi + 12 psi/N bytes after backward. One step sends 2 psi. ZeRO (arXiv:1910.02054), sec. 5.1, 7.2.1."""

    placement = Placement(params=REPLICATED, grads=REPLICATED, optim=SHARDED)
    volume = 2

    def forward(self, segment: SegmentUse, mb: Microbatch) -> Actions:
        yield Forward(segment.index, mb.index)

    def backward(self, segment: SegmentUse, mb: Microbatch) -> Actions:
        # the whole gradient lives until backward is over: stage 2 differs in this alone
        yield Backward(segment.index, mb.index)

    def reduce(self, unit: int, mb: Microbatch) -> Actions:
        yield ReduceScatterGrad(unit)
        if mb.last:
            yield AllReduceShard(unit)

    def update(self, unit: int) -> Actions:
        yield OptimStep(unit)
        yield AllGatherParam(unit)


class Zero1AllReduce(Strategy):
    """P_os as lectures draw it: all-reduce, of which each rank uses its shard alone. Bytes as Zero1, but one step sends
    3 psi."""

    placement = Placement(params=REPLICATED, grads=REPLICATED, optim=SHARDED)
    volume = 3

    def forward(self, segment: SegmentUse, mb: Microbatch) -> Actions:
        yield Forward(segment.index, mb.index)

    def backward(self, segment: SegmentUse, mb: Microbatch) -> Actions:
        yield Backward(segment.index, mb.index)

    def reduce(self, unit: int, mb: Microbatch) -> Actions:
        yield AllReduceGrad(unit, Axis.SHARD)
        if mb.last:
            yield AllReduceShard(unit)

    def update(self, unit: int) -> Actions:
        yield OptimStep(unit)
        yield AllGatherParam(unit)


class Zero2(Strategy):
    """P_os+g: 2 psi + 14 psi/N bytes after backward. One step sends 2 psi. ZeRO, sec. 5.2, 7.2.1."""

    placement = Placement(params=REPLICATED, grads=SHARDED, optim=SHARDED)
    volume = 2

    def forward(self, segment: SegmentUse, mb: Microbatch) -> Actions:
        yield Forward(segment.index, mb.index)

    def backward(self, segment: SegmentUse, mb: Microbatch) -> Actions:
        yield Backward(segment.index, mb.index)
        if mb.sync:
            for unit in segment.completes:
                yield ReduceScatterGrad(unit)  # the whole gradient is freed here
                if mb.last:
                    yield AllReduceShard(unit)

    def reduce(self, unit: int, mb: Microbatch) -> Actions:
        yield from ()

    def update(self, unit: int) -> Actions:
        yield OptimStep(unit)
        yield AllGatherParam(unit)


class GatheredForUse(Strategy):
    """Parameters are whole only while a segment uses them. gather: what makes a unit whole; reduction: what brings the
    sum of its gradient to where it is kept."""

    gather: ClassVar[type[Gather]]
    reduction: ClassVar[type[ReduceScatterGrad | ReduceGrad]]

    def forward(self, segment: SegmentUse, mb: Microbatch) -> Actions:
        for unit in segment.units:
            yield self.gather(unit)
        yield Forward(segment.index, mb.index)
        for unit in segment.units:
            yield Reshard(unit)

    def backward(self, segment: SegmentUse, mb: Microbatch) -> Actions:
        for unit in segment.units:
            yield self.gather(unit)
        yield Backward(segment.index, mb.index)
        for unit in segment.units:
            yield Reshard(unit)  # before the shard of the gradient is made, so the two never live at one time
        if mb.sync:
            for unit in segment.completes:
                yield self.reduction(unit)
                if mb.last:
                    yield AllReduceShard(unit)

    def reduce(self, unit: int, mb: Microbatch) -> Actions:
        yield from ()

    def update(self, unit: int) -> Actions:
        yield OptimStep(unit)  # nobody keeps whole parameters: the next forward gathers them


class Zero3(GatheredForUse):
    """P_os+g+p, FSDP: 16 psi/N bytes after backward. One step sends 3 psi, a tied unit 2 more per further use.

    ZeRO, sec. 5.3, 7.2.2; FSDP (arXiv:2304.11277).
    """

    placement = Placement(params=SHARDED, grads=SHARDED, optim=SHARDED)
    volume = 3
    gather, reduction = Unshard, ReduceScatterGrad


class Zero3Broadcast(GatheredForUse):
    """Stage 3 as lectures draw it: each unit has an owner, which broadcasts it. 16 psi/N bytes after backward and 3 psi
    + psi/N sent in a step are means of ranks: each holds 16 bytes of what it owns, and none of what it does not.
    """

    placement = Placement(params=OWNED, grads=OWNED, optim=OWNED)
    volume = 3  # and 1/N more, for sums on their way to the owner
    gather, reduction = Broadcast, ReduceGrad


STRATEGIES: dict[str, Strategy] = {"0": DataParallel(), "1": Zero1(), "1-allreduce": Zero1AllReduce(), "2": Zero2(),
                                   "3": Zero3(), "3-broadcast": Zero3Broadcast()}
