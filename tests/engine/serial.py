"""A delayed Adam in one process: no ranks, lists or ledger, and an update of its own. What a run must equal bit for
bit."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from mpizero.data import global_samples
from mpizero.engine.job import Job
from mpizero.memory.ledger import Uncounted
from mpizero.nn.ops.gradients import Gradients
from mpizero.optim import learning_rate

MEM = Uncounted()
F = np.float32


@dataclass
class Serial:
    """params: what forward reads. late: the update that was begun and has not reached them. Flat arrays by unit."""

    job: Job  # for the model, the data and the settings
    delay: int | None
    params: list[np.ndarray] = field(default_factory=list)
    states: list[list[np.ndarray]] = field(default_factory=list)  # weights, first and second moments
    late: tuple[list[np.ndarray], int, float, float] | None = None
    losses: list[float] = field(default_factory=list)
    skipped: list[int] = field(default_factory=list)
    step: int = 0
    updates: int = 0
    good: int = 0
    scale: float = 1.0

    def __post_init__(self) -> None:
        kind = np.dtype(self.job.settings.dtype)
        self.scale = self.job.settings.loss_scale or 1.0
        for unit in self.job.wrapping.units:
            flat = np.zeros(unit.padded_numel, F)
            for name, view in unit.views(flat).items():
                view[...] = self.job.task.model.initial(name, self.job.settings.seed)
            self.params.append(flat.astype(kind))
            self.states.append([flat, np.zeros_like(flat), np.zeros_like(flat)])

    def run(self, steps: int) -> None:
        """And bring what is late."""
        optim = self.job.settings.optim
        for _ in range(steps):
            grads, loss = self._gradients()
            self.losses.append(loss)
            if self.late is not None:
                self.catch_up()
            if all(np.isfinite(grad).all() for grad in grads):
                lr = learning_rate(self.updates, base=optim.lr, warmup=optim.warmup, total=self.job.settings.steps)
                self.updates, self.late = self.updates + 1, (grads, self.updates + 1, lr, 1 / self.scale)
                if self.delay is None or self.step < self.delay:
                    self.catch_up()
                self.good += 1
                if self.good == self.job.settings.growth_interval:
                    self.scale, self.good = self.scale * 2, 0
            else:
                self.skipped.append(self.step)
                self.scale, self.good = self.scale / 2, 0
            self.step += 1
        self.catch_up()

    def catch_up(self) -> None:
        if self.late is not None:
            grads, number, lr, factor = self.late
            for grad, states, params in zip(grads, self.states, self.params, strict=True):
                adam(states, grad.astype(F) * F(factor), number, lr)
                params[...] = states[0].astype(params.dtype)
            self.late = None

    def _gradients(self) -> tuple[list[np.ndarray], float]:
        """Of the global batch: chunk c of a unit goes round the ranks from c + 1 to c, microbatch after microbatch."""
        ranks, settings = self.job.world.size, self.job.settings
        total: list[np.ndarray] | None = None
        losses = [0.0] * ranks
        for mb in range(settings.step.accumulation):
            mine = [self._of_rank(rank, mb, losses) for rank in range(ranks)]
            sums = [np.concatenate([_around([np.split(grads[unit], ranks)[c] for grads in mine], c)
                                    for c in range(ranks)]) for unit in range(len(self.params))]
            with np.errstate(over="ignore", invalid="ignore"):
                total = sums if total is None else [a + b for a, b in zip(total, sums, strict=True)]
        assert total is not None
        return total, np.array(losses).sum() / self._targets

    @property
    def _targets(self) -> int:
        return self.job.samples  # of the MLP

    def _of_rank(self, rank: int, mb: int, losses: list[float]) -> list[np.ndarray]:
        task, settings = self.job.task, self.job.settings
        views: dict[str, np.ndarray] = {}
        grads = [np.zeros_like(flat) for flat in self.params]
        grad_views: dict[str, np.ndarray] = {}
        for unit, flat, grad in zip(self.job.wrapping.units, self.params, grads, strict=True):
            views |= unit.views(flat)
            grad_views |= unit.views(grad)
        samples = global_samples(self.step * self.job.samples, mb, rank, world_size=self.job.world.size,
                                 batch_size=settings.batch_size)
        x, targets = task.data.train_batch(samples)
        written, contexts = Gradients(grad_views, set()), []
        with np.errstate(over="ignore", invalid="ignore"):
            for segment in task.model.segments:
                x, context = segment.forward(views, x, MEM)
                contexts.append(context)
            loss, _, context = task.loss.forward(x, targets, MEM)
            dy = task.loss.backward(context, self.scale / self._targets, MEM)
            for segment in reversed(task.model.segments):
                dy = segment.backward(views, contexts.pop(), dy, written, MEM)
        losses[rank] += loss
        return grads


def _around(chunks: list[np.ndarray], own: int) -> np.ndarray:
    """((x[c+1] + x[c+2]) + ...) + x[c]."""
    order = [chunks[(own + 1 + i) % len(chunks)] for i in range(len(chunks))]
    total = order[0]
    with np.errstate(over="ignore", invalid="ignore"):
        for chunk in order[1:]:
            total = total + chunk
    return total


def adam(states: list[np.ndarray], g: np.ndarray, t: int, lr: float, b1: float = 0.9, b2: float = 0.999,
         eps: float = 1e-8) -> None:
    """As PyTorch rounds it: sqrt(v / c) + eps, of which both sides are multiplied by sqrt(c)."""
    w, m, v = states
    correction = math.sqrt(1 - b2**t)
    m += (g - m) * F(1 - b1)
    v[...] = v * F(b2) + g * F(1 - b2) * g
    w -= m / (np.sqrt(v) + F(eps * correction)) * F(lr / (1 - b1**t) * correction)
