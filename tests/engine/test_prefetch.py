"""Passes change when parameters are gathered: no bit of the result, and bytes and traffic stay as planned, on every
number of ranks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mpizero.engine.config import TrainConfig
from mpizero.engine.job import prepare
from mpizero.engine.resolve import resolve
from mpizero.engine.trainer import AGREEMENT_OPS, run_steps
from mpizero.errors import ConfigError
from tests.engine.plans import run_as_planned
from tests.engine.runs import GPT, MLP, distance, run

OPTIONS = [{"backward_prefetch": 2, "forward_prefetch": 1, "keep_last_unit": True}, {"backward_prefetch": 1},
           {"backward_prefetch": 9, "forward_prefetch": 9, "limit_all_gathers": 3}]


@pytest.mark.parametrize("config, every", [
    (MLP, OPTIONS), (replace(MLP, accumulation=2, no_sync=True), OPTIONS[:1]),
    (replace(GPT, accumulation=2), OPTIONS[:1]),
], ids=["mlp", "mlp, no_sync", "gpt, tied, accumulated"])
def test_same_bits_and_as_planned(group, config, every):
    for shards in (shards for shards in range(1, group.size + 1) if group.size % shards == 0):
        plain = replace(config, stage="3", shard_size=shards, clip=0.5, steps=2)
        expected = run(plain, group)[1]
        for options in every:
            assert run_as_planned(replace(plain, **options), group)[1] == expected, (shards, options)


@pytest.mark.parametrize("policy", [lambda name: "all", lambda name: name.split(".")[-1]], ids=["one unit", "by kind"])
def test_units_that_cut_across_segments(group, policy):
    plain = replace(MLP, stage="3", steps=2)
    expected = run(plain, group, policy=policy)[1]
    for options in OPTIONS:
        assert run_as_planned(replace(plain, **options), group, policy=policy, debug=True)[1] == expected, options


def test_golden_peaks_and_traffic(group):
    """The five-layer MLP, by hand. Depth 1: the peak is the backward of unit 2, now beside the whole parameters of
    unit 1."""
    golden = replace(MLP, stage="3", hidden=96, batch_size=16, steps=1)
    size, psi, last = group.size, 32_656, 1552
    for options, gathers, ahead in (({}, 2 * psi, 0), ({"backward_prefetch": 1}, 2 * psi, 9312),
                                    ({"keep_last_unit": True}, 2 * psi - last, 0)):
        job = prepare(replace(golden, **options), group)
        progress = run_steps(job)
        if size != 3:  # no padding
            assert progress.sent["all_gather"] == 2 * gathers * (size - 1) // size
        if size == 4:
            shards, whole = 114_296, 2 * 2 * 9312
            reduced = 2 * (1552 + 9312 * (1 if ahead else 2)) // 4
            assert job.ledger.peak_model_state_bytes == shards + reduced + whole + 2 * ahead
        assert job.ledger.peak["unsharded_param"] == 2 * (9312 + ahead)
    assert set(progress.sent) - set(AGREEMENT_OPS) == {"all_gather", "reduce_scatter"}


@pytest.mark.parametrize("stage", ["0", "1", "2"])
def test_other_stages_gather_nothing_and_stay_as_they_are(group, stage):
    plain, ahead = (prepare(replace(MLP, stage=stage, **options), group) for options in ({}, OPTIONS[0]))
    assert plain.lists == ahead.lists


@pytest.mark.parametrize("wrong, words", [
    ({"backward_prefetch": -1}, "`backward_prefetch` -1 is impossible: it must be at least 0"),
    ({"limit_all_gathers": 0}, "`limit_all_gathers` 0 is impossible: it must be at least 1"),
])
def test_impossible_depths(wrong, words):
    with pytest.raises(ConfigError, match=words):
        resolve(TrainConfig(stage="3", **wrong))


@pytest.mark.parametrize("wrap", ["layer", "block", "40kB", "1GB"])
def test_units_by_a_word(group, wrap):
    """Other units, so other chunks, in which the ranks' gradients are added in another order."""
    plain = replace(MLP, stage="3", steps=2, dtype="float32", clip=None)
    expected, wrapped = run(plain, group)[1], replace(plain, wrap=wrap, overlap="on", backward_prefetch=1)
    assert distance(run_as_planned(wrapped, group)[1], expected) < 1e-5
