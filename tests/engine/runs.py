"""Short training runs, and everything a run leaves behind."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import numpy as np

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
