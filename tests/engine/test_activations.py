"""Planned activations are the ledger's, after every action of a real step."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mpizero.engine.job import prepare
from mpizero.engine.trainer import run_steps
from mpizero.planner.activations import gpt_bytes, mlp_bytes, plan_activations
from tests.engine.runs import GPT, MLP


def planned_bytes(config):
    if config.model == "mlp":
        return mlp_bytes(config.hidden, 5, 32, 16, config.batch_size, config.dtype)
    return gpt_bytes(config.layers, config.d_model, config.heads, 256, config.batch_size, config.context, config.dtype)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("config", [MLP, GPT], ids=["mlp", "gpt"])
@pytest.mark.parametrize("stage, accumulation", [("0", 1), ("1", 2), ("2", 3), ("3", 2)])
def test_activations_after_every_action(group, config, dtype, stage, accumulation):
    config = replace(config, dtype=dtype, stage=stage, accumulation=accumulation, steps=1)
    job = prepare(config, group)
    job.executor.timeline = []
    progress = run_steps(job)
    counted = [(snapshot.action, snapshot.live["activation"]) for snapshot in job.executor.timeline]
    actions, model = job.lists.step(skipped=progress.skipped > 0), planned_bytes(config)  # float16 may overflow at first
    planned = plan_activations(actions, model)
    assert counted == list(zip(actions, planned, strict=True))
    assert max(planned) >= model.after_forward > 0 == planned[-1]
