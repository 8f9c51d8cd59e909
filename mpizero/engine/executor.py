"""Runs a list of actions on one rank. A table says what each action does; it knows no strategy and no stage."""

from __future__ import annotations

import time
import weakref
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
from mpizero.engine.pending import Pending
from mpizero.engine.rooms import Rooms
from mpizero.engine.sharing import Sharing
from mpizero.engine.shelf import Shelf
from mpizero.engine.task import Task
from mpizero.engine.unit import Unit
from mpizero.engine.update import Update, late_step, optim_step, store_param
from mpizero.errors import ConfigError
from mpizero.layout import DEVICE, HOST, NVME, Axis, Tier, Wrapping
from mpizero.layout.links import Way
from mpizero.memory.kinds import ACTIVATION, KEPT_INPUT
from mpizero.memory.ledger import owner_of
from mpizero.memory.links import Link
from mpizero.nn.ops.gradients import Gradients
from mpizero.schedule import values as v
from mpizero.schedule.actions import (
    Action,
    Agree,
    AllGatherLoss,
    AllGatherParam,
    AllReduceActivation,
    AllReduceBucket,
    AllReduceGrad,
    AllReduceInputGrad,
    AllReduceShard,
    AwaitFree,
    Backward,
    Begin,
    Broadcast,
    BroadcastParam,
    Bucket,
    DownloadGrad,
    DownloadKept,
    End,
    FetchParam,
    Forward,
    FreeGrad,
    GatherKept,
    Going,
    HoldGrad,
    LoadBatch,
    Loss,
    LossBackward,
    LossPart,
    MoveKept,
    MoveState,
    OptimStep,
    PartitionKept,
    Phase,
    Recompute,
    ReduceGrad,
    ReduceScatterBucket,
    ReduceScatterGrad,
    Reshard,
    Save,
    StoreParam,
    UnknownAction,
    Unshard,
    UploadGrad,
    UploadKept,
    UploadParam,
    bucket_name,
    show,
)
from mpizero.schedule.effects import again, output
from mpizero.schedule.values import Value

Array = np.ndarray


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


@dataclass
class LossSum:
    """Of one rank: the summed loss of the targets that counted, and their number. agreed: what all ranks made of it."""

    loss: float = 0.0
    targets: int = 0
    agreed: Agreed | None = None


class Executor:
    """Holds the values that live between actions: `values` maps those of forward and backward; units hold their own."""

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
        self._divided = task.divided if wrapping.divided else None
        self._written, self.stream = written, stream or Polled()
        self.host = Host(self.stream.poll)
        self._pending: dict[Going | OptimStep, Pending] = {}  # what was begun
        self.values: dict[Value, Any] = {}
        self._names: dict[Action, tuple[str, str]] = {}  # text and label of actions met before: each comes every step
        self.after_backward: dict[str, int] = {}  # live bytes by kind when the last backward had ended
        self.timeline: list[ActionRecord] | None = None  # set to [] to record every action
        self.spent: dict[type, float] = defaultdict(float)  # seconds by kind of action, since somebody cleared it
        self.phase = "start"
        self._batch: Callable[[int], Batch] | None = None
        self._agreement: Callable[[LossSum], Agreed] | None = None
        self._update: Update | None = None
        self._grad_scale, self._sum = 1.0, LossSum()

    def run(self, actions: Iterable[Action], *, batch: Callable[[int], Batch] | None = None, grad_scale: float = 1.0,
            agree: Callable[[LossSum], Agreed] | None = None, update: Update | None = None) -> LossSum:
        """Do every action in order. UnknownAction for one that is none of ours.

        batch: microbatch -> its samples. grad_scale: factor of the summed loss whose gradient is taken (loss scale /
        number of targets in the global batch, so that sums over ranks are means). agree: what Agree does. update: what
        an OptimStep needs.
        """
        self._batch, self._grad_scale, self._agreement, self._update = batch, grad_scale, agree, update
        self._sum = LossSum()
        # an overflow is no surprise: the ranks agree on it at the end of the list
        with np.errstate(over="ignore", invalid="ignore"):
            try:
                for action in actions:
                    self._run_one(action)
            except BaseException:
                self.stream.abandon()
                raise
        self._batch = self._agreement = self._update = None
        return self._sum

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

    # -- values -------------------------------------------------------------------------------------------------------

    def _take(self, value: Value) -> Any:
        """The value, which is gone from here on: whoever took it holds the last reference, and passes it on unnamed."""
        assert value in self.values, f"{value} is not there: the list was not validated"
        return self.values.pop(value)

    def _params(self, segment: int) -> Mapping[str, Array]:
        """Name -> whole parameter, of all units that the segment reads."""
        views: dict[str, Array] = {}
        for unit in self.segments[segment].units:
            views.update(self.units[unit].layout.views(self.units[unit].whole_param))
        return views

    def _grads(self, segment: int) -> Gradients:
        """Where the segment's backward puts the gradients of these parameters."""
        views: dict[str, Array] = {}
        use = self.segments[segment]
        for unit in use.trains:
            views.update(self.units[unit].open_grad())
        frozen = {param.name: param.shape for unit in use.units if unit not in use.trains
                  for param in self.units[unit].layout.params}
        return Gradients(views, self._written, frozen)

    # -- what actions do ----------------------------------------------------------------------------------------------

    def _enter(self, action: Phase) -> None:
        self.phase = action.name
        for unit in self.units:
            unit.phase = action.name
        if action.name == "reduce":  # the last one of a step stays
            self.after_backward = dict(self.ledger.live)

    def _load_batch(self, action: LoadBatch) -> None:
        assert self._batch is not None, "a forward needs data"
        inputs, targets = self._batch(action.mb)
        self.values[v.x(0, action.mb)] = self.ledger.adopt(inputs, ACTIVATION)
        self.values[v.targets(action.mb)] = self.ledger.adopt(targets, ACTIVATION)

    def _forward(self, action: Forward) -> None:
        segment, mb, x = action.segment, action.mb, v.x(action.segment, action.mb)
        if action.save is Save.COPY:
            self.values[x] = self._copied(self._take(x))
        if action.save in (Save.INPUT, Save.COPY):
            self.values[v.kept(segment, mb)] = self.ledger.rekind(self.values[x], KEPT_INPUT)
        compute = self.task.model.segments[segment].forward
        y, context = compute(self._params(segment), self._take(x), self.ledger)
        self.values[output(self.segments[segment])(mb)] = y
        if action.save is Save.ALL:
            self.values[v.saved(segment, mb)] = context

    def _copied(self, x: Array) -> Array:
        """A copy, whose place is another kind's. Where somebody holds x all the while, x itself: two would not do."""
        there, copy = weakref.ref(owner_of(x)), self.ledger.empty(x.shape, x.dtype, KEPT_INPUT)
        np.copyto(copy, x)
        del x
        held = there()
        return copy if held is None or held.size != copy.size else held.reshape(copy.shape)

    def _recompute(self, action: Recompute) -> None:
        segment, mb = action.segment, action.mb
        x, y = (again(self.segments, index)(index, mb) for index in (segment, segment + 1))
        if x.name is v.Name.KEPT:
            self.ledger.rekind(self.values[x], ACTIVATION)
        compute = self.task.model.segments[segment].forward
        result, self.values[v.saved(segment, mb)] = compute(self._params(segment), self._take(x), self.ledger)
        if action.onward and self.segments[segment].sums:
            self.values[v.summand(segment + 1, mb)] = result
        elif action.onward:
            self.values[y] = self.ledger.rekind(result, KEPT_INPUT) if y.name is v.Name.KEPT else result

    def _loss_part(self, action: LossPart) -> None:
        assert self._divided is not None, "outputs that are whole have no parts"
        outputs, targets = self.values[v.x(len(self.segments), action.mb)], self.values[v.targets(action.mb)]
        self.values[v.loss_part(action.mb)] = self._divided.part(outputs, targets, self.ledger)

    def _loss(self, action: Loss) -> None:
        last, mb = len(self.segments), action.mb
        x, targets = v.x(last, mb), v.targets(mb)
        if self._divided is not None:
            loss, count, context = self._divided.forward(self._take(x), self._take(targets),
                                                         self._take(v.loss_parts(mb)), self.ledger)
        else:
            loss, count, context = self.task.loss.forward(self._take(x), self._take(targets), self.ledger)
        self._sum.loss += loss
        self._sum.targets += count
        if action.save:
            self.values[v.saved(last, mb)] = context

    def _loss_backward(self, action: LossBackward) -> None:
        last, mb = len(self.segments), action.mb
        loss = self._divided or self.task.loss
        self.values[v.dy(last - 1, mb)] = loss.backward(self._take(v.saved(last, mb)), self._grad_scale, self.ledger)

    def _backward(self, action: Backward) -> None:
        segment, mb = action.segment, action.mb
        compute, grads = self.task.model.segments[segment].backward, self._grads(segment)
        dx = compute(self._params(segment), self._take(v.saved(segment, mb)), self._take(v.dy(segment, mb)), grads,
                     self.ledger)
        if segment and self.segments[segment - 1].backward:
            if dx is None:
                raise ConfigError(f"segment {self.segments[segment].name} gave no gradient of its input, which the "
                                  "segment before it needs: let its backward return one")
            to = v.dsummand if self.segments[segment].sums_back else v.dy
            self.values[to(segment - 1, mb)] = dx

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
        return shelf.fill(self.links, lambda: self.ledger.rekind(self._take(kept), ACTIVATION))

    def _upload_kept(self, action: UploadKept) -> Pending:
        shelf: Shelf = self._take(v.shelved(action.segment, action.mb, action.part))
        to = v.kept_part if action.part else v.kept
        self.values[to(action.segment, action.mb)] = kept = shelf.room(self.ledger)
        return shelf.empty(self.links, kept)

    # -- the end of a step --------------------------------------------------------------------------------------------

    def _agree(self, action: Agree) -> None:
        assert self._agreement is not None, "an agreement needs the other ranks"
        self._sum.agreed = self._agreement(self._sum)

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
    LoadBatch: Executor._load_batch,
    Reshard: lambda run, action: run.units[action.unit].reshard(),
    Forward: Executor._forward,
    Recompute: Executor._recompute,
    Loss: Executor._loss,
    LossPart: Executor._loss_part,
    PartitionKept: lambda run, action: run.sharing.partition_kept(run.values, action),
    GatherKept: lambda run, action: run.sharing.gather_kept(run.values, action, run.phase),
    LossBackward: Executor._loss_backward,
    Backward: Executor._backward,
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
