"""Runs a list of actions on one rank. A table says what each action does; it knows no strategy and no stage."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mpizero.comm import Group, Polled, Stream
from mpizero.data import Batch
from mpizero.engine import collectives, moves
from mpizero.engine.agreement import Agreed
from mpizero.engine.beside import Host
from mpizero.engine.bucket import reduce_bucket
from mpizero.engine.computation import Computation, LossSum
from mpizero.engine.pending import Pending
from mpizero.engine.rooms import Rooms
from mpizero.engine.sharing import Sharing
from mpizero.engine.shelf import Shelf
from mpizero.engine.task import Task
from mpizero.engine.unit import Unit
from mpizero.engine.update import Update, late_step, optim_step, store_param
from mpizero.layout import DEVICE, HOST, NVME, Axis, Tier, Wrapping
from mpizero.layout.links import Way
from mpizero.memory.kinds import ACTIVATION
from mpizero.memory.links import Link
from mpizero.schedule import values as v
from mpizero.schedule.actions import (
    Action, Agree, AllGatherLoss, AllGatherParam, AllReduceActivation, AllReduceBucket, AllReduceGrad,
    AllReduceInputGrad, AllReduceShard, AwaitFree, Backward, Begin, Broadcast, BroadcastParam, Bucket, DownloadGrad,
    DownloadKept, End, FetchParam, Forward, FreeGrad, GatherKept, Going, HoldGrad, LoadBatch, Loss, LossBackward,
    LossPart, MoveKept, MoveState, OptimStep, PartitionKept, Phase, Recompute, ReduceGrad, ReduceScatterBucket,
    ReduceScatterGrad, Reshard, StoreParam, UnknownAction, Unshard, UploadGrad, UploadKept, UploadParam, bucket_name,
    show,
)


@dataclass(frozen=True)
class ActionRecord:
    """An action that was run: when (perf_counter), live bytes by kind after it, and the most that lived during it, also
    by kind, all of the device; and of the other tiers what lived after it and the most during it."""

    action: Action
    text: str  # as a person writes it
    label: str  # of its segment or unit
    phase: str
    begin_s: float
    end_s: float
    live: dict[str, int]
    peak_bytes: int
    peak_live: dict[str, int]
    elsewhere: dict[Tier, tuple[dict[str, int], int]]


class Executor:
    """Holds what lives between actions: `values` those of forward and backward; units their own."""

    def __init__(self, task: Task, wrapping: Wrapping, units: Sequence[Unit], written: set[str],
                 rooms: Rooms, links: Mapping[Way, Link], tensor: Group, stream: Stream | None = None,
                 checkpoints: Tier = DEVICE):
        """written: the parameters whose gradient an unsharded gradient holds already; the units' own set. rooms: as the
        units have them. tensor: the ranks that compute each batch together. stream: what drives collectives that are
        begun; by polls, unless given. checkpoints: where kept inputs rest."""
        self.task, self.segments, self.units, self.links = task, wrapping.segments, units, links
        self.rooms, self.tiers, self.checkpoints = rooms, rooms.ledgers, checkpoints
        self.ledger = self.tiers[DEVICE]
        self.sharing = Sharing(wrapping.segments, tensor, self.ledger)
        self.computation = Computation(task, wrapping, units, written, self.ledger)
        self.values = self.computation.values
        self.stream = stream or Polled()
        self.host = Host(self.stream.poll)
        self._pending: dict[Going | OptimStep, Pending] = {}  # what was begun
        self._names: dict[Action, tuple[str, str]] = {}  # text and label of actions met before: each comes every step
        self.after_backward: dict[str, int] = {}  # live bytes by kind when the last backward had ended
        self.timeline: list[ActionRecord] | None = None  # set to [] to record every action
        self.spent: dict[type, float] = defaultdict(float)  # seconds by kind of action, since somebody cleared it
        self.phase = "start"
        self._agreement: Callable[[LossSum], Agreed] | None = None
        self._update: Update | None = None

    def run(self, actions: Iterable[Action], *, batch: Callable[[int], Batch] | None = None, grad_scale: float = 1.0,
            agree: Callable[[LossSum], Agreed] | None = None, update: Update | None = None) -> LossSum:
        """Do every action in order. UnknownAction for one that is none of ours.

        batch: microbatch -> its samples. grad_scale: factor of the summed loss whose gradient is taken (loss scale /
        number of targets in the global batch, so that sums over ranks are means). agree: what Agree does. update: what
        an OptimStep needs.
        """
        compute, self._agreement, self._update = self.computation, agree, update
        compute.batch, compute.grad_scale, compute.sum = batch, grad_scale, LossSum()
        # an overflow is no surprise: the ranks agree on it at the end of the list
        with np.errstate(over="ignore", invalid="ignore"):
            try:
                for action in actions:
                    self._run_one(action)
            except BaseException:
                self.stream.abandon()
                raise
        compute.batch = self._agreement = self._update = None
        return compute.sum

    def _run_one(self, action: Action) -> None:
        execute = EXECUTE.get(type(action))
        if execute is None:
            raise UnknownAction(action)
        self.stream.poll()
        text, label = self._names.get(action) or self._names.setdefault(action, (show(action), self._label(action)))
        for ledger in self.tiers.values():
            ledger.at(text, label)
        begin = time.perf_counter()
        execute(self, action)
        end = time.perf_counter()
        self.spent[_kind(action)] += end - begin
        if self.timeline is not None:
            self.timeline.append(ActionRecord(action, text, label, self.phase, begin, end,
                                              dict(self.ledger.live), self.ledger.action_peak_bytes,
                                              self.ledger.action_peak_live,
                                              {tier: (dict(ledger.live), ledger.action_peak_bytes)
                                               for tier, ledger in self.tiers.items() if tier is not DEVICE}))

    def _label(self, action: Any) -> str:
        """The name of the segment, unit or bucket that the action is about; "" if of none."""
        if isinstance(action, Begin | End):
            return self._label(action.action)
        if hasattr(action, "segment"):
            return self.segments[action.segment].name
        if isinstance(action, Bucket):
            return bucket_name(action.pieces)
        return self.units[action.unit].layout.name if hasattr(action, "unit") else ""

    # -- what actions do ----------------------------------------------------------------------------------------------

    def _enter(self, action: Phase) -> None:
        self.phase = action.name
        for unit in self.units:
            unit.phase = action.name
        if action.name == "reduce":  # the last one of a step stays
            self.after_backward = dict(self.ledger.live)

    # -- collectives and moves ----------------------------------------------------------------------------------------

    def _make(self, action: Going) -> Pending:
        """What can be begun, not yet under way."""
        if isinstance(action, MoveKept):
            return KEPT[type(action)](self, action)
        if isinstance(action, MoveState):
            return MOVES[type(action)](self.units[action.unit], self.links)
        if isinstance(action, Bucket):
            return reduce_bucket(self.units, action)
        return COLLECTIVES[type(action)](self.units[action.unit], action.axis)

    def _go(self, action: Going) -> None:
        self._make(action).finish()

    @property
    def updating(self) -> bool:
        """Whether an update is under way."""
        return any(isinstance(action, OptimStep) for action in self._pending)

    def _begin(self, action: Begin) -> None:
        going = action.action
        self._pending[going] = pending = self._late(going) if isinstance(going, OptimStep) else self._make(going)
        pending.begin(self.stream)

    def _end(self, action: End) -> None:
        self._pending.pop(action.action).end(self.stream)

    def _download_kept(self, action: DownloadKept) -> Pending:
        kept = (v.kept_part if action.part else v.kept)(action.segment, action.mb)
        shelved = v.shelved(action.segment, action.mb, action.part)
        name = self.segments[action.segment].name
        self.values[shelved] = shelf = Shelf(self.values[kept], self.rooms, self.checkpoints, action.segment, name)
        return shelf.fill(self.links, lambda: self.ledger.rekind(self.computation.take(kept), ACTIVATION))

    def _upload_kept(self, action: UploadKept) -> Pending:
        shelf: Shelf = self.computation.take(v.shelved(action.segment, action.mb, action.part))
        to = v.kept_part if action.part else v.kept
        self.values[to(action.segment, action.mb)] = kept = shelf.room(self.ledger)
        return shelf.empty(self.links, kept)

    # -- the end of a step --------------------------------------------------------------------------------------------

    def _agree(self, action: Agree) -> None:
        assert self._agreement is not None, "an agreement needs the other ranks"
        self.computation.sum.agreed = self._agreement(self.computation.sum)

    def _late(self, action: OptimStep) -> Pending:
        assert self._update is not None, "an update needs its numbers"
        return late_step(self.units[action.unit], self._update, self.host)

    def _optim_step(self, action: OptimStep) -> None:
        assert self._update is not None, "an update needs its numbers"
        before = self._waited_for_files()
        optim_step(self.units[action.unit], self._update)
        self.spent[OptimStep] -= self._waited_for_files() - before  # which is no updating

    def _waited_for_files(self) -> float:
        """Seconds, since the records were cleared."""
        return sum(record.exposed for way in FILES if way in self.links for record in self.links[way].records)


def _kind(action: Action) -> type:
    """What its seconds are of: to wait for an update is part of it."""
    late = isinstance(action, Begin | End) and isinstance(action.action, OptimStep)
    return OptimStep if late else type(action)


FILES = (HOST, NVME), (NVME, HOST)
COLLECTIVES: dict[type, Callable[[Unit, Axis], Pending]] = {
    Unshard: collectives.unshard,
    Broadcast: collectives.unshard,
    ReduceScatterGrad: collectives.reduce_scatter_grad,
    ReduceGrad: collectives.reduce_grad,
    AllReduceGrad: collectives.all_reduce_grad,
    AllReduceShard: collectives.all_reduce_shard,
    AllGatherParam: collectives.all_gather_param,
    BroadcastParam: collectives.broadcast_param,
}
MOVES: dict[type, Callable[[Unit, Mapping[Way, Link]], Pending]] = {
    DownloadGrad: moves.download_grad,
    UploadGrad: moves.upload_grad,
    UploadParam: moves.upload_param,
    FetchParam: moves.fetch_param,
}
KEPT: dict[type, Callable[[Executor, Any], Pending]] = {
    DownloadKept: Executor._download_kept,
    UploadKept: Executor._upload_kept,
}
EXECUTE: dict[type, Callable[[Executor, Any], None]] = {
    Phase: Executor._enter,
    LoadBatch: lambda run, action: run.computation.load_batch(action),
    Reshard: lambda run, action: run.units[action.unit].reshard(),
    Forward: lambda run, action: run.computation.forward(action),
    Recompute: lambda run, action: run.computation.recompute(action),
    Loss: lambda run, action: run.computation.loss(action),
    LossPart: lambda run, action: run.computation.loss_part(action),
    PartitionKept: lambda run, action: run.sharing.partition_kept(run.values, action),
    GatherKept: lambda run, action: run.sharing.gather_kept(run.values, action, run.phase),
    LossBackward: lambda run, action: run.computation.loss_backward(action),
    Backward: lambda run, action: run.computation.backward(action),
    Agree: Executor._agree,
    OptimStep: Executor._optim_step,
    FreeGrad: lambda run, action: run.units[action.unit].free_grad(action.late),
    HoldGrad: lambda run, action: run.units[action.unit].hold_grad(),
    StoreParam: lambda run, action: store_param(run.units[action.unit]),
    AwaitFree: lambda run, action: None,  # whoever computes has nothing under way
    Begin: Executor._begin,
    End: Executor._end,
    **dict.fromkeys((AllReduceActivation, AllReduceInputGrad, AllGatherLoss),
                    lambda run, action: run.sharing.share(run.values, action, run.phase)),
    **dict.fromkeys((*COLLECTIVES, ReduceScatterBucket, AllReduceBucket, *MOVES, *KEPT), Executor._go),
}
