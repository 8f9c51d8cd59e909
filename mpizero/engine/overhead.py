"""What a step costs beyond its arithmetic: the same NumPy operators without ledger, schedule and rings, timed in turn with whole steps."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from mpizero.dist import Group, all_gather_values
from mpizero.engine.config import TrainConfig
from mpizero.engine.job import Job, prepare
from mpizero.engine.trainer import run_steps
from mpizero.layout import FlatLayout
from mpizero.memory import Uncounted
from mpizero.nn.gradients import Gradients
from mpizero.nn.loss import cross_entropy, cross_entropy_backward
from mpizero.optim import adam_update


@dataclass(frozen=True)
class Overhead:
    """Medians over repeats, in seconds, of the rank whose step took longest.

    rings_s: of its step_s, inside collectives, waiting for other ranks included. With more ranks than cores every time holds waiting for a core.
    """

    stage: str
    ranks: int
    step_s: float
    arithmetic_s: float
    rings_s: float


def measure(config: TrainConfig, world: Group, repeat: int) -> Overhead:
    """Collective over `world`; the same on every rank."""
    job = prepare(replace(config, steps=1), world)
    bare = _bare_step(job)
    samples = np.empty((repeat + 2, 3))
    for row in samples:
        world.barrier()
        row[0] = _seconds(lambda: run_steps(job))
        row[2] = sum(record.seconds for record in job.log.records)
        world.barrier()
        row[1] = _seconds(bare)
    every = all_gather_values(world, samples[2:].reshape(-1)).reshape(world.size, repeat, 3)  # the first two rounds warm up
    slowest = every[every[:, :, 0].argmax(axis=0), np.arange(repeat)]
    step_s, arithmetic_s, rings_s = np.median(slowest, axis=0)
    return Overhead(config.stage, world.size, float(step_s), float(arithmetic_s), float(rings_s))


def _seconds(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def _bare_step(job: Job) -> Callable[[], None]:
    """A step of this rank's samples on plain arrays; the update covers what this rank optimises."""
    mem, dtype, units = Uncounted(), job.executor.units[0].dtype, job.wrapping.units
    params = [np.zeros(unit.padded_numel, dtype) for unit in units]
    views = _views(units, params)
    for name, view in views.items():
        view[...] = job.model.initial(name, 0)
    grads = [np.zeros(unit.padded_numel, dtype) for unit in units]
    grad_views = _views(units, grads)
    states = [[np.zeros(unit.exp_avg.size, np.float32) for _ in range(3)] for unit in job.executor.units]

    def step() -> None:
        x, targets = job.batch(0, 0)
        contexts = []
        for stage in job.model.stages:
            x, context = stage.forward(views, x, mem)
            contexts.append(context)
        *_, loss_context = cross_entropy(x, targets, mem)
        dy, sink = cross_entropy_backward(loss_context, 1.0 / job.targets, mem), Gradients(grad_views, set())
        for stage in reversed(job.model.stages):
            dx = stage.backward(views, contexts.pop(), dy, sink, mem)
            dy = dy if dx is None else dx
        for (master, exp_avg, exp_avg_sq), grad, param in zip(states, grads, params, strict=True):
            part = slice(0, master.size)
            out = None if dtype == np.float32 else param[part]
            adam_update(job.hyper, master, exp_avg, exp_avg_sq, grad[part], lr=1e-3, step=1, factor=1.0, mem=mem, out=out)

    return step


def _views(units: tuple[FlatLayout, ...], flats: list[np.ndarray]) -> dict[str, np.ndarray]:
    return {name: view for unit, flat in zip(units, flats, strict=True) for name, view in unit.views(flat).items()}
