"""A training run set up on one rank: task, mesh, the lists of actions that each step runs, and the state that they
change."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial

from mpizero.comm import Group, Mesh, TrafficLog, mesh, overlaps, stream_for
from mpizero.data import Batch, global_samples, until
from mpizero.engine.alike import compare_data, compare_model, compare_settings
from mpizero.engine.config import Settings, TrainConfig
from mpizero.engine.executor import Executor
from mpizero.engine.fill import initialise
from mpizero.engine.fits import check_host, check_inputs, check_room
from mpizero.engine.need import Tables, run_need, tables
from mpizero.engine.optimizers import OptimSettings, parse_betas
from mpizero.engine.resolve import resolve
from mpizero.engine.rooms import Rooms
from mpizero.engine.samples import check_data, count_targets, with_epochs
from mpizero.engine.state import TrainingState
from mpizero.engine.storage import open_storage
from mpizero.engine.task import Task, built_in_task
from mpizero.engine.unit import Unit
from mpizero.errors import ConfigError
from mpizero.layout import (DEVICE, HOST, NVME, OPTIMIZERS, ActivationBytes, Axis, Geometry, Policy, Tier, Wrapping,
                            freeze, named_policy, with_decay)
from mpizero.layout.links import Way, parse_limits
from mpizero.memory.device import make_device
from mpizero.memory.heap import keep_heap
from mpizero.memory.ledger import Ledger
from mpizero.memory.links import Link, make_links
from mpizero.memory.regions import Storage
from mpizero.optim import ALONE, SGD, Adam, Lion, LossScaler, Optimizer, Workers
from mpizero.planner import moved_by_link, plan_traffic, sent_bytes
from mpizero.planner.need import Peak
from mpizero.schedule import Course, Schedule, set_up, updates_on


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
    tiers: Mapping[Tier, Ledger]
    links: Mapping[Way, Link]
    storage: Storage | None
    log: TrafficLog
    state: TrainingState
    executor: Executor
    optimizer: Optimizer
    workers: Workers

    @property
    def wrapping(self) -> Wrapping:
        return self.geometry.wrapping

    @property
    def ledger(self) -> Ledger:
        """The device's."""
        return self.tiers[DEVICE]

    @cached_property
    def _planned(self) -> dict[Course, tuple[int, dict[str, int]]]:
        return {}

    def planned(self, course: Course) -> tuple[int, dict[str, int]]:
        """Bytes that this rank sends in a step of this course, and those that it moves between tiers, by link."""
        if course not in self._planned:
            actions = self.lists.along(course)
            self._planned[course] = (sent_bytes(plan_traffic(actions, self.geometry, self.tables.train)),
                                     moved_by_link(actions, self.geometry, self.tables.train,
                                                   self.lists.before(course)))
        return self._planned[course]

    def delays(self, step: int) -> bool:
        """Whether the update of step number `step`, from 0, goes on beside the next one."""
        return self.lists.delay is not None and step >= self.lists.delay

    @property
    def update_ledger(self) -> Ledger:
        """Of the tier on which updates run, and gradients are looked at for them."""
        return self.tiers[updates_on(self.geometry.placement)]

    @property
    def traced(self) -> bool:
        """Whether actions and messages are timed: where a log is written."""
        return self.log.timed

    @property
    def samples(self) -> int:
        """How many a step's global batch has."""
        return self.settings.samples(self.mesh.shape.data_ranks)

    @property
    def data_place(self) -> tuple[int, int]:
        """This rank's number among those that have batches of their own, and how many there are: tensor parallel ranks
        have one together."""
        return self.mesh.shape.data_rank(self.world.rank), self.mesh.shape.data_ranks

    @property
    def end(self) -> int:
        """Number of the first sample that the next step does not see: where its global batch ends, or the last epoch
        does."""
        end = self.state.position + self.samples
        return end if self.settings.end is None else min(end, self.settings.end)

    def batch(self, microbatch: int) -> Batch:
        """This rank's samples of the step that comes next: as many as every other rank and microbatch has, of which
        those from `end` on are pads. So a batch that does not divide, or is smaller than the number of ranks, takes no
        other actions, bytes or seconds."""
        rank, size = self.data_place
        samples = global_samples(self.state.position, microbatch, rank, world_size=size,
                                 batch_size=self.settings.batch_size)
        return self.task.data.train_batch(until(samples, self.end))

    def count_targets(self) -> int:
        """Targets that count in the global batch of the next step: gradients are divided by it in the loss, so that
        sums over ranks are means."""
        return count_targets(self.task.data, self.state.position, self.end)

    @cached_property
    def tables(self) -> Tables:
        """Planned bytes of a microbatch, and of a held-out batch."""
        return tables(self.task, self.settings, self.mesh.shape.data_ranks)

    @cached_property
    def need(self) -> Peak | None:
        """The most that a rank's device must hold; None where the plan does not know all that computations take."""
        return run_need(self.lists, self.geometry, self.task, self.settings, self.tables)

    def activations(self) -> ActivationBytes | None:
        """Planned bytes of a microbatch; None where they are not known."""
        return self.tables.train


def prepare(config: TrainConfig, world: Group, *, task: Task | None = None, policy: Policy | None = None,
            debug: bool = False) -> Job:
    """Check the configuration, make the model's units on this rank's ledger, and compose the lists. Collective over
    `world`.

    task: in place of the one that the configuration names. policy: which parameters make a unit, see `layout.wrap`, in
    place of the configuration's `wrap`. debug: as of the configuration, which need not say so too.

    ConfigError for what can never work, DataError for data that cannot be used, OutOfDeviceMemory where the run would
    not fit: before anything is made, if its plan knows all that it takes.
    """
    keep_heap()
    data_ranks = max(world.size // max(config.tensor_size, 1), 1)
    settings = resolve(config, ranks=data_ranks)
    if config.overlap == "auto" and overlaps(world.hosts):
        settings = replace(settings, step=replace(settings.step, overlap=True))
    debug |= config.debug
    device = make_device(settings.step.allocator, settings.device_memory)
    tiers = {DEVICE: Ledger(settings.device_memory, debug, device=device),
             HOST: Ledger(settings.host_memory, debug, HOST), NVME: Ledger(None, debug, NVME)}
    ledger, log = tiers[DEVICE], TrafficLog(timed=config.log is not None)
    world = world.using(log=log, mem=ledger, checked=debug)
    compare_settings(config, settings, world)
    settings.step.mesh(world.size)  # a shard size that does not divide shows before data is read
    if task is None:
        outputs = [path for path in (config.log, config.json, config.save) if path]
        task = built_in_task(settings, world.rank, epochs=config.epochs is not None, outputs=outputs)
    elif settings.tiles != 1 and settings.tiles not in {param.tiles for param in task.model.spec.params}:
        raise ConfigError(f"`tiles` {settings.tiles} cuts the matrices of the built-in models, and the model "
                          f"{task.model.name} is your own: give its parameters `tiles`, and leave this out")
    compare_data(task.data.fingerprint, world)
    check_data(task.data, settings)
    if config.epochs is not None:
        settings = with_epochs(config, task.data, data_ranks)
    if config.freeze:
        task = replace(task, model=replace(task.model, spec=freeze(task.model.spec, config.freeze)))
    optimizer = make_optimizer(settings.optim)
    setup = set_up(with_decay(task.model.spec, settings.optim.decay), world.size, settings.step, dtype=settings.dtype,
                   reduce_dtype=settings.reduce_dtype, sum_dtype=settings.sum_dtype, optimizer=settings.optim.spec,
                   policy=policy or named_policy(settings.wrap, task.model.spec, settings.dtype))
    check_host(setup, world)
    limited = settings.device_memory is not None or settings.host_memory is not None
    in_files = setup.geometry.placement.tiers.checkpoints is NVME
    # what batches weigh is known from batches: nobody is asked for one where nothing follows
    sizes = tables(task, settings, setup.geometry.mesh.data_ranks) if limited or in_files else Tables(None, None)
    check_room(setup, task, settings, sizes, world)
    check_inputs(setup, sizes.train, task)
    if setup.wrapping.divided and task.divided is None:
        raise ConfigError(f"of the outputs of the model {task.model.name} each tensor parallel rank has a part, and "
                          "the task has no loss for that: give it `divided`, such as DividedCrossEntropy(place)")
    compare_model(setup.wrapping, world, setup.geometry.tensors)
    grid, written = mesh(world, setup.geometry.mesh), set[str]()
    geometry = setup.geometry.at(grid.group(Axis.SHARD).rank)
    stream = stream_for(world)
    ledger.between = stream.poll
    links = make_links(parse_limits(settings.limit), stream.poll)
    storage = open_storage(world, config.nvme, geometry, tiers, links, sizes.train, setup.lists.shelved)
    rooms = Rooms(tiers, storage)
    units = [Unit(index, geometry, grid, rooms, written) for index in range(len(setup.wrapping.units))]
    for unit in units:
        initialise(unit, task.model, settings.seed)
    state = TrainingState(units, make_scaler(settings))
    executor = Executor(task, setup.wrapping, units, written, rooms, links, grid.group(Axis.TENSOR), stream,
                        geometry.placement.tiers.checkpoints)
    return Job(config, settings, task, world, grid, geometry, setup.lists, tiers, links, storage, log, state, executor,
               optimizer, _workers(settings, geometry))


def _workers(settings: Settings, geometry: Geometry) -> Workers:
    """The threads of this rank's updates: those asked for where these run on the host. One unless asked: in the blocks
    of an update, after each of whose operations a thread needs the interpreter, two are slower."""
    if updates_on(geometry.placement) is DEVICE:
        return ALONE
    return Workers(settings.host_threads or 1)


def make_scaler(settings: Settings) -> LossScaler:
    """The loss scale that the settings name; of other dtypes than float16 it is 1 for ever."""
    if settings.loss_scale is None or settings.growth_interval is None:
        return LossScaler(enabled=False)
    return LossScaler(settings.loss_scale, growth_interval=settings.growth_interval)


def make_optimizer(settings: OptimSettings) -> Optimizer:
    """The optimizer that the settings name."""
    makers: dict[str, Callable[..., Optimizer]] = {"adam": partial(Adam, decoupled=False), "adamw": Adam, "sgd": SGD,
                                                   "lion": Lion}
    assert makers.keys() == OPTIMIZERS.keys()
    given = {"betas": settings.betas and parse_betas(settings.betas), "momentum": settings.momentum}
    return makers[settings.optimizer](weight_decay=settings.weight_decay,
                                      **{name: value for name, value in given.items() if value is not None})
