"""The ledger against tracemalloc, which knows nothing of it; and a device that is too small."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest

from mpizero.engine.job import prepare
from mpizero.engine.trainer import run_steps
from mpizero.errors import OutOfDeviceMemory
from tests.engine.runs import GPT, MLP

# NumPy reports its buffers to tracemalloc in a domain of their own, after allocation. What it counts beyond the ledger
# during a step: the batch while it is made (index arrays and noise in float64), per-row statistics and bias sums, and
# the ring's table of agreed values.
SMALL = {"mlp": 40_000, "gpt": 60_000}


@pytest.mark.parametrize("config", [replace(MLP, hidden=160, batch_size=16),
                                    replace(GPT, d_model=64, context=32, batch_size=8)], ids=["mlp", "gpt"])
@pytest.mark.parametrize("stage", ["0", "2", "3"])
def test_peak_is_that_of_tracemalloc(group, config, stage):
    job = prepare(replace(config, stage=stage, steps=1), group)
    run_steps(job)
    domain = tracemalloc.DomainFilter(inclusive=True, domain=np.lib.tracemalloc_domain)
    assert domain.domain == np.lib.tracemalloc_domain
    tracemalloc.start()
    try:
        at_rest = job.ledger.live_bytes
        run_steps(job, steps=1)
        peak = tracemalloc.get_traced_memory()[1]  # of all domains, but Python's own objects are few
        objects = tracemalloc.take_snapshot().filter_traces([tracemalloc.DomainFilter(True, 0)])
        python = sum(stat.size for stat in objects.statistics("filename"))
    finally:
        tracemalloc.stop()
    counted = job.ledger.peak_bytes - at_rest
    assert counted > 100_000
    assert -1000 <= peak - counted <= SMALL[config.model] + python


def test_a_device_that_is_just_large_enough(group):
    config = replace(MLP, stage="3")
    job = prepare(config, group)
    run_steps(job)
    needed = job.ledger.peak_bytes
    run_steps(prepare(replace(config, device_memory=f"{needed}B"), group))
    with pytest.raises(OutOfDeviceMemory, match="bytes asked for|bytes of"):
        run_steps(prepare(replace(config, device_memory=f"{needed - 1}B"), group))
