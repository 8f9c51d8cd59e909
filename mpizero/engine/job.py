"""A training run set up on one rank: task, mesh, the lists of actions that each step runs, and the state that they
change."""

from __future__ import annotations

import math
import numbers
import os
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np

from mpizero.comm import Group, Mesh, TrafficLog, all_gather_values, mesh
from mpizero.data import Batch, Dataset, global_samples, until
from mpizero.engine.config import OptimSettings, Settings, TrainConfig
from mpizero.engine.executor import Executor
from mpizero.engine.state import TrainingState
from mpizero.engine.task import Task, built_in_task
from mpizero.engine.unit import Unit
from mpizero.errors import DataError
from mpizero.layout import OPTIMIZERS, ActivationBytes, Geometry, Policy, Wrapping
from mpizero.memory.ledger import Ledger
from mpizero.optim import Adam, LossScaler, Optimizer
from mpizero.planner import plan_traffic, sent_bytes
from mpizero.schedule import Schedule, set_up

_PART = 2**20  # samples that a dataset counts at once


@dataclass(frozen=True)
class Job:
    """Everything a run is made of. `world` is the group that trains, with this run's own ledger and traffic log."""

    config: TrainConfig
    settings: Settings
    task: Task
    world: Group
    mesh: Mesh
    geometry: Geometry
    lists: Schedule
    ledger: Ledger
    log: TrafficLog
    state: TrainingState
    executor: Executor
    optimizer: Optimizer

    @property
    def wrapping(self) -> Wrapping:
        return self.geometry.wrapping

    @cached_property
    def planned_sent(self) -> dict[bool, int]:
        """Bytes that this rank sends in a step, by whether its update is skipped."""
        return {skipped: sent_bytes(plan_traffic(self.lists.step(skipped), self.geometry)) for skipped in (False, True)}

    @property
    def traced(self) -> bool:
        """Whether actions and messages are timed: where a log is written."""
        return self.log.timed

    @property
    def samples(self) -> int:
        """How many a step's global batch has."""
        return self.world.size * self.settings.batch_size * self.settings.step.accumulation

    def batch(self, microbatch: int) -> Batch:
        """This rank's samples of the step that comes next."""
        samples = global_samples(self.state.position, microbatch, self.world.rank, world_size=self.world.size,
                                 batch_size=self.settings.batch_size)
        return self.task.data.train_batch(until(samples, self.settings.end))

    def count_targets(self) -> int:
        """Targets that count in the global batch of the next step: gradients are divided by it in the loss, so that
        sums over ranks are means."""
        begin, end = self.state.position, self.state.position + self.samples
        end = end if self.settings.end is None else min(end, self.settings.end)
        parts = (np.arange(part, min(part + _PART, end), dtype=np.int64) for part in range(begin, end, _PART))
        return sum(_whole_number(self.task.data, self.task.data.count(part)) for part in parts)

    def activations(self) -> ActivationBytes | None:
        """Planned bytes of a microbatch; None where the model does not tell."""
        plan = self.task.model.spec.activations
        return plan and plan(self.batch(0).targets.shape, self.settings.dtype)


def prepare(config: TrainConfig, world: Group, *, task: Task | None = None, policy: Policy | None = None,
            debug: bool = False) -> Job:
    """Check the configuration, make the model's units on this rank's ledger, and compose the lists. Collective over
    `world`.

    task: in place of the one that the configuration names. policy: which parameters make a unit, see `layout.wrap` (one
    unit a segment). debug: fill new and freed storage with NaN.

    ConfigError for what can never work, DataError for data that cannot be used, OutOfDeviceMemory where the states do
    not fit.
    """
    settings = config.resolved()
    ledger, log = Ledger(settings.device_memory, debug), TrafficLog(timed=config.log is not None)
    world = world.using(log=log, mem=ledger)
    settings.step.mesh(world.size)  # a shard size that does not divide shows before data is read
    if task is None:
        outputs = [path for path in (config.log, config.json) if path]
        task = built_in_task(settings, epochs=config.epochs is not None, outputs=outputs)
    _compare_data(task.data, settings, world)
    _check_data(task.data, settings)
    if config.epochs is not None:
        settings = with_epochs(config, task.data, world.size)
    optimizer = make_optimizer(settings.optim)
    setup = set_up(task.model.spec, world.size, settings.step, dtype=settings.dtype, optimizer=optimizer.spec,
                   policy=policy)
    grid, written = mesh(world, setup.geometry.mesh), set[str]()
    units = [Unit(layout, setup.geometry, grid, ledger, written) for layout in setup.wrapping.units]
    for unit in units:
        unit.initialise(task.model, settings.seed)
    state = TrainingState(units, LossScaler(enabled=settings.dtype == "float16"))
    executor = Executor(task, setup.wrapping, units, written, ledger)
    return Job(config, settings, task, world, grid, setup.geometry, setup.lists, ledger, log, state, executor,
               optimizer)


def make_optimizer(settings: OptimSettings) -> Optimizer:
    """The optimizer that the settings name."""
    makers = {"adam": lambda: Adam(weight_decay=settings.weight_decay, decoupled=False),
              "adamw": lambda: Adam(weight_decay=settings.weight_decay, decoupled=True)}
    assert makers.keys() == OPTIMIZERS.keys()
    return makers[settings.optimizer]()


def _compare_data(data: Dataset, settings: Settings, world: Group) -> None:
    """The dataset must be the same on every rank."""
    prints = all_gather_values(world, np.array([data.fingerprint]), op="check", phase="start")[:, 0]
    different = [rank for rank in range(world.size) if prints[rank] != prints[0]]
    if different:
        raise DataError(f"`data` {settings.data or '(default)'} holds something else on ranks {different} than on "
                        "rank 0: give all hosts the same files")


def _check_data(data: Dataset, settings: Settings) -> None:
    """DataError for a dataset that breaks its promises, or whose batches no host could hold."""
    eval_size: Any = data.eval_size  # a user's own may be anything
    if not isinstance(eval_size, numbers.Integral) or eval_size < 1:
        raise DataError(f"{type(data).__name__}.eval_size is {eval_size!r}, but it is the number of held-out "
                        "samples, and an evaluation needs one: let it be an integer of at least 1")
    sample = sum(array.nbytes for array in data.train_batch(np.zeros(1, np.int64)))
    batch, host = sample * settings.batch_size, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if batch > host:
        raise DataError(f"`batch_size` {settings.batch_size:,} means {batch:,} bytes a batch, more than the {host:,} "
                        "bytes of this host's memory: lower it")


def _whole_number(data: Dataset, count: Any) -> int:
    if not isinstance(count, numbers.Integral) or count < 0:
        raise DataError(f"{type(data).__name__}.count gave {count!r}, by which gradients are divided: let it give how "
                        "many targets count, an integer")
    return int(count)


def with_epochs(config: TrainConfig, data: Dataset, ranks: int) -> Settings:
    """The settings of a run whose length `epochs` gives: its last step is filled up with pads, so that each sample is
    seen once an epoch. DataError where data has no end."""
    if data.epoch_size is None or config.epochs is None:
        raise DataError(f"`epochs` cannot be counted, since samples of this data are drawn without end "
                        f"({data.describe()}): give `steps`, or other `data`")
    end = math.ceil(Fraction(repr(config.epochs)) * data.epoch_size)  # of decimals as they are written
    return replace(config.resolved(-(-end // (ranks * config.batch_size * config.accumulation))), end=end)
