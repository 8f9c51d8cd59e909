"""Jobs that are saved and gone on with, and all that a job holds, comparable with `==`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from mpizero.checkpoint.resume import Resumed, resume
from mpizero.checkpoint.save import save
from mpizero.comm import Group, TrafficLog
from mpizero.engine.config import TrainConfig
from mpizero.engine.export import whole_state
from mpizero.engine.job import Job, prepare
from mpizero.engine.trainer import run_steps
from tests.engine.runs import GPT, MLP

CONFIGS = {"mlp-float16": MLP, "mlp-float32": replace(MLP, dtype="float32"),
           "mlp-bfloat16": replace(MLP, dtype="bfloat16"),
           "gpt": replace(GPT, steps=4, clip=0.5, warmup=2, accumulation=2)}


def first(world: Group, n: int) -> Group | None:
    """The first n ranks; None on the others."""
    if n > world.size:
        pytest.skip(f"needs {n} ranks, there are {world.size}")
    return world.subgroup(range(n), f"first {n}", log=TrafficLog())


def begin(config: TrainConfig, group: Group, steps: int, **options) -> Job:
    """A job that has trained."""
    job = prepare(config, group, **options)
    run_steps(job, steps=steps)
    return job


def go_on(config: TrainConfig, group: Group, path: Path, **options) -> Resumed:
    """Weights are another seed's before, so that nothing is right by chance."""
    job = prepare(config, group, **options)
    for unit in job.state.units:
        for name, _, _ in unit.kept():
            for span, values in unit.blocks(name, writes=True):
                values[: max(unit.layout.numel - span.start, 0)] = 7
    return resume(job, path)


def numbers(job: Job) -> dict[str, object]:
    """All that a checkpoint keeps, whatever the layout. Collective."""
    state, found = job.state, {}
    for unit in state.units:
        for name in unit.states:
            for param, view in unit.layout.views(whole_state(unit, name)).items():
                found[name, param] = view.tobytes()
    return {"step": state.step, "updates": state.updates, "position": state.position,
            "scaler": state.scaler.state_dict()} | found


def kept(job: Job) -> list[bytes]:
    """Every buffer of this rank that rests, without padding at its end."""
    return [b"".join(values[: max(unit.layout.numel - span.start, 0)].tobytes() for span, values in unit.blocks(name))
            for unit in job.state.units for name, _, _ in unit.kept()]


__all__ = ["CONFIGS", "begin", "first", "go_on", "kept", "numbers", "save"]
