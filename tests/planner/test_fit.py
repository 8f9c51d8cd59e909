"""What fits where: bytes are the plans', seconds are sums by hand, the recommendation follows its rule."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mpizero.machine import Machine
from mpizero.papers import states
from mpizero.planner.fit import Question, anything_fits, rows
from mpizero.planner.model import flat, gpt, mlp
from mpizero.planner.recommend import recommend
from mpizero.text import in_units

GB = 10**9
PSI = 13 * GB
ASK = Question(flat(PSI), ranks=64, ranks_per_host=8, device_memory=80 * GB, host_memory=None, nvme=None,
               machine=Machine(), tokens=16_384,
               activations=4 * GB)


def table(question):
    return {(row.stage, row.offload): row for row in rows(question)}


def test_13b_on_64_devices_of_80_gb():
    found = table(ASK)
    assert list(found) == [("0", "none"), ("1", "none"), ("1", "cpu"), ("2", "none"), ("2", "cpu"), ("3", "none"),
                           ("3", "cpu"),
                           ("3", "cpu+params"), ("3", "nvme")]
    assert [found[stage, "none"].fits for stage in "0123"] == [False, True, True, True]
    assert found["0", "none"].lacks == ("device",) and found["2", "cpu"].fits is None
    for stage, grads in (("0", 2 * PSI), ("1", 2 * PSI), ("2", 2 * PSI // 64), ("3", 2 * PSI // 64)):
        assert found[stage, "none"].at_rest["device"] + grads == states.stage_bytes(PSI, stage, 64)
    assert all(row.device_bytes == row.peak["device"] + 4 * GB for row in found.values())
    assert recommend(ASK, rows(ASK)).row.stage == "3"


def test_seconds_by_hand():
    """Stage 2: forward computes; backward computes or reduces, whichever is longer; then the gather, which nothing
    hides."""
    row, machine = table(ASK)["2", "none"], ASK.machine
    ring = 32 * 63 * machine.alpha + 2 * PSI * 63 / 64 / machine.inter_bandwidth
    forward, backward = (machine.compute_seconds(PSI, ASK.tokens, count) for count in (2, 4))
    assert row.seconds == pytest.approx(forward + max(backward, ring) + ring) and row.bound_by == "compute"
    assert row.by_resource["inter-host"] == pytest.approx(2 * ring)
    slow = table(replace(ASK, machine=replace(machine, inter_bandwidth=1e9)))["2", "none"]
    assert slow.bound_by == "inter-host" and slow.seconds > 10 * row.seconds


def test_reductions_of_stage_1_overlap_its_backward():
    found = table(ASK)
    assert found["1", "none"].seconds == pytest.approx(found["2", "none"].seconds)


def test_tied_parameters_compute_once():
    ask = replace(ASK, model=gpt(4, 64, 4, 1000, context=64), activations=None, tokens=64, ranks=4)
    for row in rows(ask):
        assert row.by_resource["compute"] == pytest.approx(ask.machine.compute_seconds(ask.model.spec.psi, 64))


def test_a_step_on_one_host_uses_its_links():
    row = table(replace(ASK, ranks_per_host=64))["3", "none"]
    assert row.inter_host_bytes == 0 and "inter-host" not in row.by_resource and row.by_resource["intra-host"] > 0


def test_offload_is_bound_by_what_is_slow():
    known = replace(ASK, host_memory=1000 * GB, nvme=28_000 * GB)
    found = table(known)
    assert all(row.fits is not None for row in found.values()) and found["3", "nvme"].fits
    assert found["3", "nvme"].bound_by == "NVMe" and found["3", "nvme"].peak["nvme"] == 16 * PSI // 64
    assert found["3", "cpu"].by_resource["CPU update"] == pytest.approx(PSI / 64 * 8 / known.machine.host_adam)
    assert table(replace(known, host_memory=8 * GB))["3", "cpu"].lacks == ("host",)


def test_hybrid():
    row = table(replace(ASK, shard_size=8))["3", "none"]
    assert row.shard_size == 8 and row.at_rest["device"] == 14 * PSI // 8
    assert row.inter_host_bytes == 2 * 7 * 2 * PSI // 64


def test_activations_join_the_states_at_each_moment():
    """Of a GPT they come from its own table; the most of both together is less than the sum of both peaks."""
    ask = replace(ASK, model=gpt(4, 64, 4, 1000, context=64), activations=None, batch_size=8, tokens=8 * 64, ranks=4)
    for row in rows(ask):
        assert row.activations == ask.model.spec.activations((8, 64), "float16").after_forward
        assert max(row.peak["device"], row.activations) < row.device_bytes < row.peak["device"] + row.activations
    assert all(row.device_bytes >= row.peak["device"] for row in rows(replace(ask, model=mlp(), tokens=8)))


def test_the_most_on_the_device_by_hand():
    """A large batch on one rank: most is there while the head's backward runs, when its units' gradients live and all
    activations but the loss's own: its targets, and two numbers each."""
    tokens = 64 * 64
    ask = replace(ASK, model=gpt(4, 64, 4, 1000, context=64), activations=None, batch_size=64, tokens=tokens, ranks=1)
    row, head = table(ask)["0", "none"], 2 * (2 * 64) + 2 * (1000 + 64) * 64  # float16: ln_f; and wte with wpe, tied
    assert row.device_bytes == 14 * ask.model.spec.psi + head + row.activations - (8 + 2 * 4) * tokens


def test_recompute_keeps_one_input_a_block():
    """The papers' closed forms: 2 bsz seq hd nl, and what one block needs while it is computed again."""
    ask = replace(ASK, model=gpt(4, 64, 4, 1000, context=64), activations=None, batch_size=8, tokens=8 * 64, ranks=4,
                  recompute=True)
    assert {row.activations for row in rows(ask)} == {2 * 8 * 64 * 64 * 4 + 8 * 64 * (16 * 64 + 2 * 4 * 64)}


def test_recompute_takes_a_third_more_time():
    plain, again = (table(replace(ASK, recompute=recompute))["3", "none"] for recompute in (False, True))
    assert again.by_resource["compute"] == pytest.approx(8 / 6 * plain.by_resource["compute"])


def test_of_equally_fast_rows_the_one_that_sends_and_needs_least():
    """Links that cost nothing: stages 1 to 3 take as long, stage 3 sends more, stage 1 needs more."""
    question = replace(ASK, machine=replace(ASK.machine, inter_bandwidth=1e15, alpha=1e-12))
    advice = recommend(question, rows(question))
    assert (advice.row.stage, advice.row.offload) == ("2", "none")
    assert "no faster, and more to send or to keep: stage 1, stage 3" in advice.reason


@pytest.mark.parametrize("slower, chosen, words", [
    (1.0099, "1", "no faster, and more to send or to keep: stage 2"), (1.0101, "2", "12.3 s a step"),
    (1.03, "2", "the fastest of 2 that fit"),
])
def test_within_one_percent_is_equally_fast(slower, chosen, words):
    """Stage 1 sends less here, so it is taken as long as it is no slower."""
    found = table(ASK)
    one = replace(found["1", "none"], seconds=12.345 * slower, sent_bytes=10)
    two = replace(found["2", "none"], seconds=12.345, sent_bytes=11)
    advice = recommend(ASK, [one, two])
    assert advice.row.stage == chosen and words in advice.reason
    assert ("stage 1" in advice.reason) == (chosen == "1")


@pytest.mark.parametrize("faster, told", [(0.995, False), (0.98, True)])
def test_what_would_be_faster_with_more_room(faster, told):
    found = table(ASK)
    best, large = found["2", "none"], replace(found["0", "none"], seconds=found["2", "none"].seconds * faster)
    assert ("faster, but without room: stage 0" in recommend(ASK, [large, best]).reason) == told


@pytest.mark.parametrize("changes, words", [
    ({}, "stage 3, the fastest of 3 that fit: 2.58 s a step, bound by compute"),
    ({"device_memory": 2 * GB, "activations": GB // 10}, "tell --host-memory"),
    ({"device_memory": 2 * GB, "activations": GB // 10, "host_memory": 1000 * GB},
     "faster, but without room: stage 0, stage 3"),
    ({"device_memory": 6 * GB, "host_memory": 0, "nvme": 0}, "use 1,024 ranks"),
    ({"device_memory": GB, "host_memory": 2000 * GB, "nvme": 28_000 * GB},
     "use smaller units, devices with more memory"),
])
def test_recommendations_have_a_reason(changes, words):
    question = replace(ASK, **changes)
    advice = recommend(question, rows(question))
    assert words in advice.reason and (advice.row is None) == ("fits" in advice.reason)


def test_the_recommended_number_of_ranks_works():
    question = replace(ASK, device_memory=6 * GB, host_memory=0, nvme=0)
    assert not any(row.fits
                   for row in rows(replace(question, ranks=512))) and not anything_fits(replace(question, ranks=512))
    assert any(row.fits for row in rows(replace(question, ranks=1024)))


def test_sizes_in_words():
    assert [in_units(n) for n in (0, 999, 1000, 16_640_625_000, 999_400_000, 999_600_000, 75.29e9, 1.5e15)] == \
        ["0 B", "999 B", "1 KB", "16.6 GB", "999 MB", "1 GB", "75.3 GB", "1,500 TB"]


@pytest.mark.parametrize("ranks, sharing", [(2, 2), (8, 8), (64, 8)])
def test_the_ranks_of_a_host_share_its_memory(ranks, sharing):
    capacity = replace(ASK, ranks=ranks, host_memory=1000 * GB).capacity
    assert capacity == {"device": 80 * GB, "host": 1000 * GB // sharing, "nvme": None}
