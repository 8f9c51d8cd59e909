"""What a step costs beyond its arithmetic: the same NumPy operators without ledger, schedule and rings, timed in turn
with whole steps."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from mpizero.comm import Group, all_gather_values, barrier
from mpizero.data import Batch
from mpizero.engine.config import TrainConfig
from mpizero.engine.job import Job, prepare
from mpizero.engine.task import Task
from mpizero.engine.trainer import run_steps
from mpizero.layout import MASTER, FlatLayout
from mpizero.memory.ledger import Allocator, Uncounted
from mpizero.nn.ops.gradients import Gradients


WARM_UP = 2  # rounds


@dataclass(frozen=True)
class Overhead:
    """Medians over repeats, in seconds, of the rank whose step took longest.

    rings_s: of its step_s, inside collectives, waiting for other ranks included. With more ranks than cores every time
    holds waiting for a core.
    """

    stage: str
    ranks: int
    step_s: float
    arithmetic_s: float
    rings_s: float


def measure(config: TrainConfig, world: Group, repeat: int) -> Overhead:
    """`repeat` steps, all on the run's first batch, after two that warm up. Collective over `world`; the same on every
    rank."""
    job = prepare(replace(config, steps=1), world)
    bare = _bare_step(job)
    samples = np.empty((WARM_UP + repeat, 3))  # columns: step_s, arithmetic_s, rings_s
    for row in samples:
        job.state.position = 0
        barrier(world)
        row[0] = _seconds(lambda: run_steps(job, steps=1))
        row[2] = sum(record.seconds for record in job.log.records)
        job.state.position = 0
        barrier(world)
        row[1] = _seconds(bare)
    every = all_gather_values(world, samples[WARM_UP:]).reshape(world.size, repeat, 3)
    slowest = every[every[:, :, 0].argmax(axis=0), np.arange(repeat)]
    step_s, arithmetic_s, rings_s = np.median(slowest, axis=0)
    return Overhead(config.stage, world.size, float(step_s), float(arithmetic_s), float(rings_s))


def _seconds(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def _bare_step(job: Job) -> Callable[[], None]:
    """A step of this rank's samples on plain arrays; the update covers what this rank optimises."""
    units, dtype, mem = job.wrapping.units, job.state.units[0].dtype, Uncounted()
    params, grads = ([np.zeros(unit.padded_numel, dtype) for unit in units] for _ in range(2))
    views, grad_views, scale = _views(units, params), _views(units, grads), 1.0 / job.count_targets()
    for name, view in views.items():
        view[...] = job.task.model.initial(name, 0)
    states = [{name: np.zeros(state.size, state.dtype) for name, state in unit.states.items()}
              for unit in job.state.units]

    def step() -> None:
        _gradients(job.task, job.batch(0), scale, views, Gradients(grad_views, set()), mem)
        for kept, grad, param in zip(states, grads, params, strict=True):
            part = slice(0, kept[MASTER.name].size)
            out = None if kept[MASTER.name].dtype == dtype else param[part]
            job.optimizer.update(kept[MASTER.name], kept, grad[part], lr=1e-3, step=1, factor=1.0, mem=mem, out=out)

    return step


def _gradients(task: Task, batch: Batch, scale: float, params: Mapping[str, np.ndarray], grads: Gradients,
               mem: Allocator) -> None:
    """Forward and backward of a batch: `grads` receives the gradients of `scale` times its summed loss."""
    x, targets = batch
    contexts = []
    for segment in task.model.segments:
        x, context = segment.forward(params, x, mem)
        contexts.append(context)
    *_, loss_context = task.loss.forward(x, targets, mem)
    dy = task.loss.backward(loss_context, scale, mem)
    for segment in reversed(task.model.segments):
        dx = segment.backward(params, contexts.pop(), dy, grads, mem)
        dy = dy if dx is None else dx


def _views(units: tuple[FlatLayout, ...], flats: list[np.ndarray]) -> dict[str, np.ndarray]:
    """Name -> parameter, of all units."""
    return {name: view for unit, flat in zip(units, flats, strict=True) for name, view in unit.views(flat).items()}
