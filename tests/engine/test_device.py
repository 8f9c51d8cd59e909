"""The ledger against tracemalloc, which knows nothing of it."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest

from mpizero.engine.job import prepare
from mpizero.engine.summary import summarise
from mpizero.engine.trainer import run_steps
from tests.engine.runs import GPT, MLP

pytestmark = pytest.mark.usefixtures("few_held_out")

# NumPy reports its buffers to tracemalloc in a domain of their own, after allocation. What it counts beyond the ledger
# during a step: the batch while it is made (index arrays and noise in float64), per-row statistics and bias sums, and
# the ring's table of agreed values.
SMALL = {"mlp": 40_000, "gpt": 60_000}


def traced_peak(act) -> tuple[int, int]:
    """Bytes that `act` had allocated at most, of all domains, and those of Python's own objects that it left."""
    domain = tracemalloc.DomainFilter(inclusive=True, domain=np.lib.tracemalloc_domain)
    assert domain.domain == np.lib.tracemalloc_domain
    tracemalloc.start()
    try:
        kept = act()
        peak = tracemalloc.get_traced_memory()[1]
        objects = tracemalloc.take_snapshot().filter_traces([tracemalloc.DomainFilter(True, 0)])
        del kept
        return peak, sum(stat.size for stat in objects.statistics("filename"))
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("config", [replace(MLP, hidden=160, batch_size=16),
                                    replace(GPT, d_model=64, context=32, batch_size=8)], ids=["mlp", "gpt"])
@pytest.mark.parametrize("stage", ["0", "2", "3"])
def test_peak_is_that_of_tracemalloc(group, config, stage):
    job = prepare(replace(config, stage=stage, steps=1), group)
    run_steps(job)
    at_rest = job.ledger.live_bytes
    peak, python = traced_peak(lambda: run_steps(job, steps=1))
    counted = job.ledger.peak_bytes - at_rest
    assert counted > 100_000
    assert -1000 <= peak - counted <= SMALL[config.model] + python


def test_setting_up_is_counted(group):
    """Initial values too: a block at a time, of what a rank keeps, and never a whole parameter."""
    jobs, config = [], replace(MLP, hidden=300, stage="3")
    prepare(config, group)  # warms caches
    peak, python = traced_peak(lambda: jobs.append(prepare(config, group)))
    counted = jobs[0].ledger.peak_bytes
    assert 24 * (300 * 300 // 16) < counted - jobs[0].ledger.live_bytes < 4 * 300 * 300 / 2
    assert -1000 <= peak - counted <= SMALL["mlp"] + python


def test_summing_up_is_counted(group):
    """Held-out loss, checksums, digests: a whole float32 unit at a time."""
    job = prepare(replace(MLP, hidden=300, stage="3", steps=1), group)
    progress = run_steps(job)
    summarise(job, progress)  # warms caches
    job.ledger.reset_peaks()
    at_rest = job.ledger.live_bytes
    peak, python = traced_peak(lambda: summarise(job, progress))
    counted = job.ledger.peak_bytes - at_rest
    assert counted >= 4 * 300 * 300
    assert -1000 <= peak - counted <= SMALL["mlp"] + python


def test_peaks_are_of_the_steps_not_of_setting_up(group):
    job = prepare(MLP, group)
    job.ledger.empty(10**7, np.uint8, "workspace")  # gone at once
    assert job.ledger.peak_bytes > 10**7
    run_steps(job, steps=1)
    assert 0 < job.ledger.peak_bytes < 10**7
