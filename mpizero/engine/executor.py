"""Runs a list of actions on one rank. Knows actions and units; knows no strategy and no stage of ZeRO."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from mpizero.dist import Mesh
from mpizero.engine.unit import Unit
from mpizero.layout import Placement, Wrapping
from mpizero.memory import ACTIVATION, Ledger
from mpizero.nn.gradients import Gradients
from mpizero.nn.loss import cross_entropy, cross_entropy_backward
from mpizero.nn.model import Model
from mpizero.optim import Adam
from mpizero.schedule.actions import (
    Action,
    AllGatherParam,
    AllReduceGrad,
    AllReduceShard,
    Backward,
    Forward,
    FreeGrad,
    OptimStep,
    Phase,
    ReduceScatterGrad,
    Reshard,
    Unshard,
    show,
)

Array = np.ndarray


@dataclass(frozen=True)
class Update:
    """What an update needs that only the whole job knows: decided between two lists, the same on every rank."""

    hyper: Adam
    lr: float
    step: int  # of the optimizer, counted from 1: skipped steps do not count
    factor: float  # clip coefficient / loss scale


@dataclass(frozen=True)
class Done:
    """An action that was run: when (perf_counter), live bytes by kind after it, and the most that was live during it."""

    action: Action
    text: str  # as a person writes it
    label: str  # of its stage or unit
    phase: str
    begin_s: float
    end_s: float
    live: dict[str, int]
    peak_bytes: int


class Executor:
    """Holds what lives between actions: activations on their way, contexts for backward, the loss."""

    def __init__(self, model: Model, wrapping: Wrapping, placement: Placement, mesh: Mesh, dtype: str, ledger: Ledger, seed: int):
        """Makes the units of the model on this rank's `ledger` and initialises them from `seed`."""
        self.model, self.stages, self.ledger = model, wrapping.stages, ledger
        self._written: set[str] = set()
        self.units = [Unit(layout, placement, mesh, dtype, ledger, self._written) for layout in wrapping.units]
        for unit in self.units:
            unit.initialise(model, seed)
        self.after_backward: dict[str, int] = {}
        self.timeline: list[Done] | None = None  # set to [] to record every action
        self.phase = "start"
        self._flow: dict[int, Array] = {}  # microbatch -> input of the next stage, or gradient of the last one
        self._targets: dict[int, Array] = {}
        self._contexts: dict[tuple[int, int], Any] = {}  # (stage, microbatch)
        self._loss_contexts: dict[int, Any] = {}
        self._last = len(model.stages) - 1
        self._batch: Callable[[int], tuple[Array, Array]] | None = None
        self._grad_scale, self._loss, self._count = 1.0, 0.0, 0
        self._update: Update | None = None

    def run(self, actions: Iterable[Action], *, batch: Callable[[int], tuple[Array, Array]] | None = None, grad_scale: float = 1.0,
            update: Update | None = None) -> tuple[float, int]:
        """Do every action in order.

        batch: microbatch -> (inputs, targets). grad_scale: factor of the summed loss whose gradient is taken (loss scale / number of targets
        in the global batch, so that sums over ranks are means). Returns the summed loss of this rank and the number of its targets.
        """
        self._batch, self._grad_scale, self._update = batch, grad_scale, update
        self._loss, self._count = 0.0, 0
        with np.errstate(over="ignore", invalid="ignore"):  # an overflow is no surprise: the ranks agree on it after the list
            for action in actions:
                self._run_one(action)
        return self._loss, self._count

    def _run_one(self, action: Action) -> None:
        label = self._label(action)
        text = show(action)
        self.ledger.at(text, label)
        begin = time.perf_counter()
        self._do(action)
        if self.timeline is not None:
            self.timeline.append(
                Done(action, text, label, self.phase, begin, time.perf_counter(), dict(self.ledger.live), self.ledger.action_peak_bytes))

    def _label(self, action: Action) -> str:
        if isinstance(action, Forward | Backward):
            return self.stages[action.stage].name
        return "" if isinstance(action, Phase) else self.units[action.unit].layout.name

    def _do(self, action: Action) -> None:
        match action:
            case Phase(name, _):
                self._enter(name)
            case Unshard(unit):
                self.units[unit].unshard()
            case Reshard(unit):
                self.units[unit].reshard()
            case Forward(stage, mb, save):
                self._forward(stage, mb, save)
            case Backward(stage, mb):
                self._backward(stage, mb)
            case ReduceScatterGrad(unit):
                self.units[unit].reduce_scatter_grad()
            case AllReduceGrad(unit, axis):
                self.units[unit].all_reduce_grad(axis)
            case AllReduceShard(unit):
                self.units[unit].all_reduce_shard()
            case OptimStep(unit):
                assert self._update is not None, "an update needs its numbers"
                self.units[unit].optim_step(self._update.hyper, lr=self._update.lr, step=self._update.step, factor=self._update.factor)
            case AllGatherParam(unit):
                self.units[unit].all_gather_param()
            case FreeGrad(unit):
                self.units[unit].free_grad()

    def _enter(self, phase: str) -> None:
        self.phase = phase
        for unit in self.units:
            unit.phase = phase
        if phase == "reduce":  # the last one of a step stays
            self.after_backward = dict(self.ledger.live)

    def _params(self, stage: int) -> Mapping[str, Array]:
        views: dict[str, Array] = {}
        for unit in self.stages[stage].units:
            views.update(self.units[unit].layout.views(self.units[unit].whole_param))
        return views

    def _forward(self, stage: int, mb: int, save: bool) -> None:
        if stage == 0:
            self._open(mb)
        y, context = self.model.stages[stage].forward(self._params(stage), self._flow.pop(mb), self.ledger)
        if save:
            self._contexts[stage, mb] = context
        if stage < self._last:
            self._flow[mb] = y
            return
        loss, count, loss_context = cross_entropy(y, self._targets.pop(mb), self.ledger)
        self._loss, self._count = self._loss + loss, self._count + count
        if save:
            self._loss_contexts[mb] = loss_context

    def _open(self, mb: int) -> None:
        assert self._batch is not None, "a forward needs data"
        inputs, targets = self._batch(mb)
        self._flow[mb] = self.ledger.adopt(inputs, ACTIVATION)
        self._targets[mb] = self.ledger.adopt(targets, ACTIVATION)

    def _backward(self, stage: int, mb: int) -> None:
        if stage == self._last:
            self._flow[mb] = cross_entropy_backward(self._loss_contexts.pop(mb), self._grad_scale, self.ledger)
        views: dict[str, Array] = {}
        for unit in self.stages[stage].units:
            views.update(self.units[unit].open_grad())
        dx = self.model.stages[stage].backward(self._params(stage), self._contexts.pop((stage, mb)), self._flow.pop(mb),
                                               Gradients(views, self._written), self.ledger)
        if dx is not None:  # the first stage has none
            self._flow[mb] = dx
