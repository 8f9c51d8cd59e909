"""What a rank computes: forward, loss and backward of microbatches, segment by segment, and the values in between."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from mpizero.data import Batch
from mpizero.engine.agreement import Agreed
from mpizero.engine.task import Task
from mpizero.engine.unit import Unit
from mpizero.errors import ConfigError
from mpizero.layout import Wrapping
from mpizero.memory.kinds import ACTIVATION, KEPT_INPUT
from mpizero.memory.ledger import Ledger, owner_of
from mpizero.nn.ops.gradients import Gradients
from mpizero.schedule import values as v
from mpizero.schedule.actions import Backward, Forward, LoadBatch, Loss, LossBackward, LossPart, Recompute, Save
from mpizero.schedule.effects import again, output
from mpizero.schedule.values import Value

Array = np.ndarray


@dataclass
class LossSum:
    """Of one rank: the summed loss of the targets that counted, and their number. agreed: what all ranks made of it."""

    loss: float = 0.0
    targets: int = 0
    agreed: Agreed | None = None


@final
class Computation:
    """Holds what lives between actions of forward and backward, in `values`. batch: microbatch -> its samples.
    grad_scale: factor of the summed loss whose gradient is taken. sum: what losses have come to since somebody set
    it."""

    def __init__(self, task: Task, wrapping: Wrapping, units: Sequence[Unit], written: set[str], ledger: Ledger):
        """written: the parameters whose gradient an unsharded gradient holds already; the units' own set."""
        self.task, self.segments, self.units, self.ledger = task, wrapping.segments, units, ledger
        self._divided = task.divided if wrapping.divided else None
        self._written = written
        self.values: dict[Value, Any] = {}
        self.batch: Callable[[int], Batch] | None = None
        self.grad_scale, self.sum = 1.0, LossSum()

    def take(self, value: Value) -> Any:
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

    def load_batch(self, action: LoadBatch) -> None:
        assert self.batch is not None, "a forward needs data"
        inputs, targets = self.batch(action.mb)
        self.values[v.x(0, action.mb)] = self.ledger.adopt(inputs, ACTIVATION)
        self.values[v.targets(action.mb)] = self.ledger.adopt(targets, ACTIVATION)

    def forward(self, action: Forward) -> None:
        segment, mb, x = action.segment, action.mb, v.x(action.segment, action.mb)
        if action.save is Save.COPY:
            self.values[x] = self._copied(self.take(x))
        if action.save in (Save.INPUT, Save.COPY):
            self.values[v.kept(segment, mb)] = self.ledger.rekind(self.values[x], KEPT_INPUT)
        compute = self.task.model.segments[segment].forward
        y, context = compute(self._params(segment), self.take(x), self.ledger)
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

    def recompute(self, action: Recompute) -> None:
        segment, mb = action.segment, action.mb
        x, y = (again(self.segments, index)(index, mb) for index in (segment, segment + 1))
        if x.name is v.Name.KEPT:
            self.ledger.rekind(self.values[x], ACTIVATION)
        compute = self.task.model.segments[segment].forward
        result, self.values[v.saved(segment, mb)] = compute(self._params(segment), self.take(x), self.ledger)
        if action.onward and self.segments[segment].sums:
            self.values[v.summand(segment + 1, mb)] = result
        elif action.onward:
            self.values[y] = self.ledger.rekind(result, KEPT_INPUT) if y.name is v.Name.KEPT else result

    def loss_part(self, action: LossPart) -> None:
        assert self._divided is not None, "outputs that are whole have no parts"
        outputs, targets = self.values[v.x(len(self.segments), action.mb)], self.values[v.targets(action.mb)]
        self.values[v.loss_part(action.mb)] = self._divided.part(outputs, targets, self.ledger)

    def loss(self, action: Loss) -> None:
        last, mb = len(self.segments), action.mb
        x, targets = v.x(last, mb), v.targets(mb)
        if self._divided is not None:
            loss, count, context = self._divided.forward(self.take(x), self.take(targets),
                                                         self.take(v.loss_parts(mb)), self.ledger)
        else:
            loss, count, context = self.task.loss.forward(self.take(x), self.take(targets), self.ledger)
        self.sum.loss += loss
        self.sum.targets += count
        if action.save:
            self.values[v.saved(last, mb)] = context

    def loss_backward(self, action: LossBackward) -> None:
        last, mb = len(self.segments), action.mb
        loss = self._divided or self.task.loss
        self.values[v.dy(last - 1, mb)] = loss.backward(self.take(v.saved(last, mb)), self.grad_scale, self.ledger)

    def backward(self, action: Backward) -> None:
        segment, mb = action.segment, action.mb
        compute, grads = self.task.model.segments[segment].backward, self._grads(segment)
        dx = compute(self._params(segment), self.take(v.saved(segment, mb)), self.take(v.dy(segment, mb)), grads,
                     self.ledger)
        if segment and self.segments[segment - 1].backward:
            if dx is None:
                raise ConfigError(f"segment {self.segments[segment].name} gave no gradient of its input, which the "
                                  "segment before it needs: let its backward return one")
            to = v.dsummand if self.segments[segment].sums_back else v.dy
            self.values[to(segment - 1, mb)] = dx
