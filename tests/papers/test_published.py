"""Published runs: shares of the peak follow from throughput and number of GPUs."""

from __future__ import annotations

import pytest

from mpizero.papers import published


@pytest.mark.parametrize("run, percent", [
    (published.MEGATRON, 4.0), (published.ZERO, 30.0), (published.INFINITY, 39.06), (published.FSDP_1, 55.45),
    (published.FSDP_2, 59.62), (published.OFFLOAD, 32.0)])
def test_share_of_the_peak(run, percent):
    assert run.of_peak == pytest.approx(percent, abs=0.005)
    assert run.share is None or abs(run.of_peak - run.share) <= 1


def test_what_is_printed_of_runs():
    per_gpu = {run.params: run.flops / run.gpus / 1e12 for run in published.RUNS if run.gpus == 512}
    assert (per_gpu["10T"], per_gpu["20T"], per_gpu["175B"]) == (43, 34, 186)
    assert published.LARGEST == 32e12 and published.FILLED["fine-tuning GPT-3"] == (175e9, 128, "V100")
