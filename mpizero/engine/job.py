"""A training run set up on one rank: model, data, mesh, buffers, and the lists of actions that each step runs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mpizero.data import Dataset, global_samples, load
from mpizero.dist import Group, Mesh, TrafficLog, all_gather_values, mesh
from mpizero.engine.config import TrainConfig
from mpizero.engine.executor import Executor
from mpizero.errors import DataError
from mpizero.layout import Policy, Wrapping, wrap
from mpizero.memory import Ledger
from mpizero.nn.gpt import GPTConfig, gpt
from mpizero.nn.mlp import mlp
from mpizero.nn.model import Model
from mpizero.optim import Adam, LossScaler
from mpizero.planner import Geometry
from mpizero.schedule import STRATEGIES, Lists, training_lists
from mpizero.text import parse_bytes


@dataclass(frozen=True)
class Job:
    """Everything a run is made of. `world` is the group that trains, with this run's own ledger and traffic log."""

    config: TrainConfig
    world: Group
    mesh: Mesh
    model: Model
    data: Dataset
    wrapping: Wrapping
    geometry: Geometry
    lists: Lists
    ledger: Ledger
    log: TrafficLog
    executor: Executor
    hyper: Adam
    scaler: LossScaler

    def batch(self, step: int, microbatch: int) -> tuple[np.ndarray, np.ndarray]:
        """This rank's inputs and targets."""
        config = self.config
        return self.data.train_batch(global_samples(step, microbatch, self.world.rank, world_size=self.world.size,
                                                    batch_size=config.batch_size, accumulation=config.accumulation))

    @property
    def traced(self) -> bool:
        """Whether actions and messages are timed: where a log is written."""
        return self.log.timed

    @property
    def targets(self) -> int:
        """Targets of a step's global batch: gradients are divided by it in the loss, so that sums over ranks are means."""
        return self.world.size * self.config.batch_size * self.config.accumulation * (self.config.value("context") or 1)


def prepare(config: TrainConfig, world: Group, *, model: Model | None = None, policy: Policy | None = None, debug: bool = False) -> Job:
    """Check the configuration, make the model's units on this rank's ledger, and compose the lists. Collective over `world`.

    model: in place of the one that the configuration names. policy: which parameters make a unit, see `layout.wrap` (one unit a stage).
    debug: fill new and freed storage with NaN.
    """
    config.check()
    ledger = Ledger(None if config.device_memory is None else parse_bytes(config.device_memory), debug)
    log = TrafficLog(timed=config.log is not None)
    world = world.using(log=log, mem=ledger)
    shards = 1 if config.stage == "0" else config.shard_size or world.size
    grid = mesh(world, shards)
    model = model or build_model(config)
    data = _load_data(config, world)
    strategy = STRATEGIES[config.stage]
    wrapping = wrap(model.spec, world.size, policy)
    lists = training_lists(strategy, wrapping, grid.replicate.size, shards, **config.list_options)
    executor = Executor(model, wrapping, strategy.placement, grid, config.dtype, ledger, config.seed)
    return Job(config, world, grid, model, data, wrapping, Geometry(wrapping, strategy.placement, grid.replicate.size, shards, config.dtype), lists,
               ledger, log, executor, Adam(weight_decay=config.value("weight_decay"), decoupled=config.value("optimizer") == "adamw"),
               LossScaler(enabled=config.dtype == "float16"))


def build_model(config: TrainConfig) -> Model:
    """The model that the configuration names."""
    if config.model == "mlp":
        return mlp(hidden=config.value("hidden"))
    return gpt(GPTConfig(**{name: config.value(name) for name in ("layers", "d_model", "heads", "context")}))


def _load_data(config: TrainConfig, world: Group) -> Dataset:
    """The dataset, which must be the same on every rank."""
    data = load(config.model, config.data, seed=config.seed, context=config.value("context") or 1)
    prints = all_gather_values(world, np.array([data.fingerprint], dtype=np.float64), op="check", phase="start")[:, 0]
    different = [rank for rank in range(world.size) if prints[rank] != prints[0]]
    if different:
        raise DataError(f"--data {config.data or '(default)'} holds something else on ranks {different} than on rank 0: "
                        "give all hosts the same files")
    return data
