"""Tokens that a model writes, one after the other: the same ones on any number of ranks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from mpizero.data import Batch
from mpizero.data.counter import bits
from mpizero.engine.job import Job
from mpizero.errors import ConfigError
from mpizero.schedule import values as v
from mpizero.schedule.actions import Loss

_DRAW = 9  # a stream of random numbers


def outputs(job: Job, inputs: np.ndarray) -> np.ndarray:
    """What the model makes of the same inputs (n, ...) on all ranks: of a GPT logits (n, T, V). Collective: the list
    that evaluates, without the loss."""
    values = job.executor.values
    actions = (action for action in job.lists.evaluate if not isinstance(action, Loss))
    job.executor.run(actions, batch=lambda mb: Batch(inputs, np.zeros(len(inputs), np.int64)))
    del values[v.targets(0)]
    return values.pop(v.x(len(job.wrapping.segments), 0))


def generate(job: Job, prompt: Sequence[int], count: int, *, context: int, temperature: float = 1.0,
             top_k: int | None = None, seed: int = 0) -> Iterator[int]:
    """`count` tokens that follow the prompt, of which the model sees the last `context`. Token i of them is a function
    of the model, what stands before, seed and i. Collective: each rank takes all.

    temperature: 0: always the likeliest. top_k: among so many of the likeliest; None: all. ConfigError for logits that
    are not finite.
    """
    tokens = list(prompt)
    for number in range(count):
        seen = np.array([tokens[-context:]], np.int64)
        logits = outputs(job, seen)[0, -1].astype(np.float64)  # (V,)
        draw = int(bits(seed, _DRAW, np.array([number]), 1)[0, 0] >> np.uint64(11)) * 2.0**-53
        tokens.append(pick(logits, temperature, top_k, draw))
        yield tokens[-1]


def pick(logits: np.ndarray, temperature: float, top_k: int | None, draw: float) -> int:
    """One of the tokens by softmax(logits / temperature), logits (V,). draw: from 0 to below 1. Of equal logits the
    smaller number counts as likelier."""
    if not np.isfinite(logits).all():
        raise ConfigError("the model's logits are not finite: its weights are, or lead, beyond what its dtype holds")
    order = np.argsort(-logits, kind="stable")[: 1 if temperature == 0 else top_k]
    if len(order) == 1:
        return int(order[0])
    with np.errstate(over="ignore"):  # differences over a tiny temperature: exp(-inf) is 0
        sums = np.cumsum(np.exp((logits[order] - logits[order[0]]) / temperature))
    return int(order[min(np.searchsorted(sums, draw * sums[-1], side="right"), len(order) - 1)])
