"""Stage x accumulation x ranks x dtype, in batches that do not divide, partly frozen: same bits, planned bytes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mpizero.engine.job import prepare
from mpizero.engine.trainer import run_steps
from mpizero.schedule import STRATEGIES
from tests.engine.plans import follows_its_plan
from tests.engine.runs import MLP, dealt
from tests.engine.test_frozen import states


@dealt("dtype, accumulation, freeze", ["float16", "bfloat16", "float32"],
       [(1, ()), (2, ("layers.0.weight", "layers.3.*")), (4, ())])
def test_parameters_and_moments_are_the_same_at_every_stage(group, dtype, accumulation, freeze):
    if dtype == "bfloat16":
        pytest.importorskip("ml_dtypes")
    config = replace(MLP, hidden=7, dtype=dtype, accumulation=accumulation, global_batch=4 * accumulation + 3,
                     batch_size=16, freeze=freeze, steps=1, clip=0.5)
    outcomes = []
    for stage in STRATEGIES:
        job = prepare(replace(config, stage=stage), group)
        records = run_steps(job).records
        outcomes.append((states(job), [(record.loss, record.grad_norm) for record in records]))
        follows_its_plan(job)
    assert all(outcome == outcomes[0] for outcome in outcomes)
