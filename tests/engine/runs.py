"""Short training runs, and everything a run leaves behind."""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from mpizero.comm import Group
from mpizero.engine.config import TrainConfig
from mpizero.engine.export import whole_state
from mpizero.engine.job import Job, prepare
from mpizero.engine.trainer import StepRecord, run_steps

# of this seed no float16 gradient overflows at the first loss scale, on 1 to 4 ranks
MLP = TrainConfig(model="mlp", hidden=10, steps=4, batch_size=3, dtype="float16", seed=39, overlap="off")
GPT = TrainConfig(model="gpt", layers=2, d_model=8, heads=2, context=6, steps=3, batch_size=2, dtype="float32",
                  data=argparse.__file__, overlap="off")


@dataclass(frozen=True)
class Outcome:
    """What a run computed: comparable with `==` bit for bit, or by `distance`."""

    losses: list[float]
    norms: list[float]
    states: dict[str, bytes]  # master, exp_avg, exp_avg_sq over all units, without padding

    def arrays(self, name: str) -> np.ndarray:
        return np.frombuffer(self.states[name], np.float32)


def dealt(names: str, *axes: Sequence[Any]) -> pytest.MarkDecorator:
    """Parametrizes the product of the axes, each cell on 4 ranks and on 1, or on 3 and on 2, by turns: half of what all
    four numbers would take, and each value of an axis still meets all of them where there is another axis.

    names: of `parametrize`. axes: their values; a tuple is those of several names.
    """
    cells = []
    for cell in itertools.product(*map(enumerate, axes)):
        values = [value for _, each in cell for value in (each if isinstance(each, tuple) else (each,))]
        words = "-".join(str(getattr(value, "model", value)) for value in values)
        cells += [pytest.param(ranks, *values, id=f"n={ranks}-{words}")
                  for ranks in ((4, 1), (3, 2))[sum(place for place, _ in cell) % 2]]
    return pytest.mark.parametrize(f"group, {names}", cells, indirect=["group"])


def outcome(job: Job, records: list[StepRecord]) -> Outcome:
    """Collective over the job's ranks."""
    units = job.state.units
    states = {name: b"".join(whole_state(unit, name).tobytes() for unit in units) for name in units[0].states}
    return Outcome([record.loss for record in records], [record.grad_norm for record in records], states)


def run(config: TrainConfig, group: Group, **options) -> tuple[Job, Outcome]:
    """Prepare, train and collect."""
    job = prepare(config, group, **options)
    return job, outcome(job, run_steps(job).records)


def distance(here: Outcome, there: Outcome) -> float:
    """Largest relative difference, by norm for states and element by element for losses and norms."""
    pairs = [(here.arrays(name), there.arrays(name)) for name in here.states]
    pairs += [(np.array(here.losses), np.array(there.losses)), (np.array(here.norms), np.array(there.norms))]
    return max(float(np.linalg.norm(a.astype(np.float64) - b) / np.linalg.norm(b)) for a, b in pairs)
