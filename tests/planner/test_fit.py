"""What fits where: bytes are the plans', seconds are sums by hand, the recommendation follows its rule."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mpizero.layout.tape import most
from mpizero.machine import Machine
from mpizero.memory.kinds import ACTIVATIONS
from mpizero.papers import states
from mpizero.planner import plan_memory
from mpizero.planner.candidate import Candidate
from mpizero.planner.fit import CLOSE, offloads, preferred, rows
from mpizero.planner.model import PROGRAMS, flat, gpt, mlp
from mpizero.planner.question import SETTINGS, Question
from mpizero.planner.recommend import recommend
from mpizero.planner.tiers import NONE, plan_tiers
from mpizero.schedule import StepSettings, set_up

GB = 10**9
PSI = 13 * GB
ASK = Question(flat(PSI), ranks=64, ranks_per_host=8, device_memory=80 * GB, host_memory=None, nvme=None,
               machine=Machine(), tokens=16_384,
               activations=4 * GB)
ALL = replace(ASK, shard_size=64)  # one shard group
SMALL = replace(ALL, model=gpt(4, 64, 4, 1000, context=64), activations=None, batch_size=8, tokens=8 * 64, ranks=4,
                shard_size=4)


def table(question):
    return {(row.stage, row.offload): row for row in rows(question)}


def test_13b_on_64_devices_of_80_gb():
    found = table(ALL)
    assert list(found) == [("0", "none"), ("1", "none"), ("1", "cpu"), ("2", "none"), ("2", "cpu"), ("3", "none"),
                           ("3", "cpu"),
                           ("3", "cpu+params"), ("3", "nvme")]
    assert [found[stage, "none"].fits for stage in "0123"] == [False, True, True, True]
    assert found["0", "none"].lacks == ("device",) and found["2", "cpu"].fits is None
    for stage, grads in (("0", 2 * PSI), ("1", 2 * PSI), ("2", 2 * PSI // 64), ("3", 2 * PSI // 64)):
        assert found[stage, "none"].at_rest["device"] + grads == states.stage_bytes(PSI, stage, 64)
    for row in found.values():
        assert row.device_bytes == row.peak["device"] + 4 * GB
    for stage, offload in (("2", "none"), ("3", "none")):  # a gradient is reduced while the next backward computes
        apart = set_up(ALL.model.spec, 64, StepSettings(stage, backward_prefetch=1, forward_prefetch=1))
        assert found[stage, offload].peak["device"] > plan_tiers(apart.lists.step(), apart.geometry).peak["device"]
    assert recommend(ALL, rows(ALL)).row.stage == "3"


def test_seconds_by_hand():
    """Stage 2: forward computes; backward computes or reduces, whichever is longer; then the gather, which nothing
    hides."""
    row, machine = table(ALL)["2", "none"], ALL.machine
    ring = 32 * 63 * machine.alpha + 2 * PSI * 63 / 64 / machine.inter_bandwidth
    forward, backward = (machine.compute_seconds(PSI, ALL.tokens, count) for count in (2, 4))
    assert row.seconds == pytest.approx(forward + max(backward, ring) + ring) and row.bound_by == "compute"
    assert row.by_resource["inter-host"] == pytest.approx(2 * ring)
    slow = table(replace(ALL, machine=replace(machine, inter_bandwidth=1e9)))["2", "none"]
    assert slow.bound_by == "inter-host" and slow.seconds > 10 * row.seconds


def test_reductions_of_stage_1_overlap_its_backward():
    found = table(ALL)
    assert found["1", "none"].seconds == pytest.approx(found["2", "none"].seconds)


def test_tied_parameters_compute_once():
    ask = replace(ALL, model=gpt(4, 64, 4, 1000, context=64), activations=None, tokens=64, ranks=4, shard_size=4)
    scores = 4 * 3 * 4 * 64 * 64 * 64 / ask.machine.flops  # 4 blocks, 3 passes, 4 h operations a token and position
    for row in rows(ask):
        assert row.by_resource["compute"] == pytest.approx(ask.machine.compute_seconds(ask.model.spec.psi, 64) + scores)


def test_a_step_on_one_host_uses_its_links():
    row = table(replace(ALL, ranks_per_host=64))["3", "none"]
    assert row.host_bytes == 0 and "inter-host" not in row.by_resource and row.by_resource["intra-host"] > 0


def test_offload_is_bound_by_what_is_slow():
    known = replace(ALL, host_memory=1000 * GB, nvme=28_000 * GB)
    found = table(known)
    assert all(row.fits is not None for row in found.values()) and found["3", "nvme"].fits
    assert found["3", "nvme"].bound_by == "NVMe" and found["3", "nvme"].peak["nvme"] == 16 * PSI // 64
    assert found["3", "cpu"].by_resource["CPU update"] == pytest.approx(PSI / 64 * 8 / known.machine.host_adam)
    assert table(replace(known, host_memory=8 * GB))["3", "cpu"].lacks == ("host",)


def test_hybrid():
    row = table(replace(ALL, shard_size=8))["3", "none"]
    assert row.shard_size == 8 and row.at_rest["device"] == 14 * PSI // 8
    assert row.host_bytes == 8 * 2 * 7 * 2 * PSI // 64  # 8 ranks of a host, each in a ring of its own


def test_activations_join_the_states_at_each_moment():
    """Of a GPT they come from its own table; the most of both together is less than the sum of both peaks."""
    ask = replace(SMALL, program="pytorch")
    for row in (row for row in rows(ask) if row.offload == "none"):
        assert row.activations == ask.table.after_forward
        assert max(row.peak["device"], row.activations) < row.device_bytes < row.peak["device"] + row.activations
    ask = replace(SMALL, program="mpizero")
    for row in rows(ask):
        assert row.activations == ask.model.spec.activations((8, 64), "float16").after_forward
        assert max(row.peak["device"], row.activations) < row.device_bytes
    assert all(row.device_bytes >= row.peak["device"] for row in rows(replace(ask, model=mlp(), tokens=8)))


def test_the_most_on_the_device_by_hand():
    """A large batch on one rank: most is there while the head runs. In its backward its units' gradients live and all
    activations but the loss's own: its targets, and two numbers each; and what the backward holds on its way."""
    tokens = 64 * 64
    ask = replace(SMALL, program="mpizero", batch_size=64, tokens=tokens, ranks=1, shard_size=1)
    row, head = table(ask)["0", "none"], 2 * (2 * 64) + 2 * (1000 + 64) * 64  # float16: ln_f; and wte with wpe, tied
    kept = 14 * ask.model.spec.psi + row.activations - (8 + 2 * 4) * tokens
    last = ask.table.segments[-1]
    forward, backward = (most(tape, set()) for tape in (last.forward, last.backward))
    assert forward > 2 * 1000 * tokens and backward > 2 * 2 * 64 * tokens
    # its forward comes to more: there are no logits before it, and the loss has kept nothing, but it has float32 tiles
    assert row.device_bytes == kept - 2 * 1000 * tokens + forward > kept + head + backward


def test_recompute_keeps_one_input_a_block():
    """By hand, for each program: most is there at the end of forward, when the inputs of 4 blocks and of the head, the
    logits and what the head and the loss keep are; of the middle blocks one is made anew in backward, which is less."""
    tokens, flow = 8 * 64, 2 * 64
    ends = {"mpizero": 2 * 1000 + 8 + 8, "pytorch": 2 * 1000 + flow + 8 + 12 * 1000}
    for program, end in ends.items():
        for row in rows(replace(SMALL, program=program, recompute=True)):
            assert row.activations == tokens * (8 + 8 + 5 * flow + end)


@pytest.mark.parametrize("layers, vocab, context", [(1, 5, 8192), (2, 1000, 64), (8, 5, 64), (8, 1000, 8192)])
def test_recompute_never_costs_memory(layers, vocab, context):
    for program in PROGRAMS:
        ask = replace(SMALL, model=gpt(layers, 64, 4, vocab, context=context), program=program).batch(1)
        for less, more in zip(rows(replace(ask, recompute=True)), rows(ask), strict=True):
            assert less.device_bytes <= more.device_bytes and less.activations <= more.activations
            assert layers < 8 or less.activations < more.activations


def test_a_block_that_is_made_anew_counts():
    """Long texts: with eager attention most is there in a block's backward."""
    ask = replace(SMALL, model=gpt(4, 64, 4, 5, context=4096), program="pytorch-eager", recompute=True).batch(1)
    scores = 5 * 4 * 4096
    assert all(4096 * scores < row.activations < 2 * 4096 * scores for row in rows(ask))


def test_whose_activations_unless_told():
    """PyTorch's with flash attention; of the MLP, which is ours alone, ours."""
    assert rows(SMALL)[0].activations == rows(replace(SMALL, program="pytorch"))[0].activations
    assert SMALL.model.programs == ("pytorch", "pytorch-eager", "mpizero") and mlp().programs == ("mpizero",)
    assert replace(SMALL, model=mlp()).table == mlp().spec.activations((8,), "float16") and flat(10**6).programs == ()


def test_a_margin_is_kept_free():
    row = table(ALL)["3", "none"]
    for memory, fits in ((row.device_bytes / 0.95 + 1, True), (row.device_bytes / 0.95 - 1, False)):
        assert table(replace(ALL, device_memory=int(memory), margin=0.05))["3", "none"].fits == fits


def test_recompute_takes_a_third_more_time():
    """Of 32 equal units all but the first and the last compute a forward more, whatever the interval."""
    plain = table(ALL)["3", "none"].by_resource["compute"]
    for interval in (1, 4):
        again = table(replace(ALL, recompute=True, recompute_interval=interval))["3", "none"].by_resource["compute"]
        sizes = [param.numel for param in ALL.model.spec.params]
        assert again == pytest.approx((1 + sum(sizes[1:-1]) / PSI / 3) * plain) and again > 1.3 * plain


@pytest.mark.parametrize("dtype, size", [("float16", 2), ("float32", 4)])
def test_one_kept_input_for_several_blocks(dtype, size):
    """By hand, 4 blocks: at the end of forward the inputs of 4 / K blocks and of the head are there; what K blocks save
    is there when the first of their backwards begins, which is more."""
    tokens, flow, saved = 8 * 64, 64 * size, 9 * 64 * size + (4 + 4) * 4
    for interval, kept in ((1, 4), (2, 2), (3, 2), (4, 1)):
        ask = replace(SMALL, program="mpizero", dtype=dtype, recompute=True, recompute_interval=interval)
        forward = 8 + 8 + (kept + 1) * flow + 1000 * size + 8 + 8
        # the inputs of groups, dy, what one group saves and the inputs within it; of 3 and 1 that of 3 is the larger
        kept = 1 if interval == 3 else kept
        backward = 8 + (kept + 1) * flow + interval * saved + (interval - 1) * flow
        assert all(row.activations == tokens * max(forward, backward) for row in rows(ask))


@pytest.mark.parametrize("stage", ["0", "2", "3"])
@pytest.mark.parametrize("dtype, interval, accumulation", [("float16", 1, 1), ("float32", 2, 2), ("bfloat16", 3, 1)])
def test_recompute_takes_the_activations_of_the_list_that_runs(stage, dtype, interval, accumulation):
    """Those of `mpizero`, whose plan a run's ledger equals after every action."""
    ask = replace(SMALL, program="mpizero", dtype=dtype, accumulation=accumulation, recompute=True,
                  recompute_interval=interval)
    made = set_up(ask.model.spec, 4, StepSettings(stage, accumulation=accumulation, recompute=True,
                                                  recompute_interval=interval), dtype=dtype)
    points = plan_memory(made.lists.step(), made.geometry, ask.table).points
    assert table(ask)[stage, "none"].activations == max(sum(point.live[kind] for kind in ACTIVATIONS)
                                                        for point in points)


def test_unknown_activations_are_not_taken_for_nothing():
    found = table(replace(ALL, activations=None))
    assert [found[stage, "none"].fits for stage in "0123"] == [False, None, None, None]
    assert {row.activations for row in found.values()} == {None}
    assert all("activations" in row.unknown for row in found.values())
    assert found["3", "none"].device_bytes == table(ALL)["3", "none"].device_bytes - 4 * GB
    assert found["3", "none"].might_fit and not found["3", "cpu"].might_fit  # nobody told of the host's memory


# -- which shard size -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("memory, best", [(80, 8), (25, 16)])
def test_every_shard_size_is_tried(memory, best):
    """As good as to ask for each alone. In less memory the fastest has no room."""
    ask = replace(ASK, device_memory=memory * GB, tokens=2048, host_memory=1000 * GB,
                  machine=replace(ASK.machine, inter_bandwidth=12.5e9))
    alone = {size: table(replace(ask, shard_size=size)) for size in (2, 4, 8, 16, 32, 64)}
    for key, row in table(ask).items():
        if key[0] == "0":
            continue
        assert row.seconds_by_size == {size: pytest.approx(found[key].seconds) for size, found in alone.items()}
        fitting = [found[key] for found in alone.values() if not found[key].lacks]
        assert bool(fitting) == (not row.lacks)
        fastest = min((each.seconds for each in fitting), default=alone[64][key].seconds)
        assert row.seconds <= CLOSE * fastest * (1 + 1e-12)
        for name in ("at_rest", "peak", "device_bytes", "sent_bytes", "host_bytes", "lacks"):
            assert getattr(row, name) == getattr(alone[row.shard_size][key], name)
    assert table(ask)["3", "none"].shard_size == best
    assert memory < 80 or round(table(ask)["3", "none"].seconds, 2) == 0.58


def test_a_larger_shard_group_never_needs_more():
    """So where the largest does not fit, none does."""
    for model, ranks in ((flat(10**6, 7), 12), (gpt(2, 8, 2, 11, context=6), 12), (mlp(), 8)):
        ask = replace(ASK, model=model, ranks=ranks, activations=1, tokens=8)
        found = [table(replace(ask, shard_size=size)) for size in ask.sizes("3")]
        for less, more in zip(found[1:], found, strict=False):
            for key, row in less.items():
                assert all(row.needs[tier] <= more[key].needs[tier] for tier in row.needs), key


@pytest.mark.parametrize("ask", [ALL, replace(ALL, activations=None), SMALL, replace(SMALL, program="mpizero"),
                                 replace(SMALL, program="mpizero", recompute=True, accumulation=2)],
                         ids=["bare", "unknown", "pytorch", "own", "recompute"])
def test_nothing_that_fits_is_passed_over(ask):
    """What is there in any case is never more than what is needed, and nearly that much where one unit is all."""
    for model in (ask.model, flat(10**6, 1)) if ask.activations else (ask.model,):
        for stage in "0123":
            for offload in offloads(stage):
                candidate = Candidate(replace(ask, model=model), stage, offload, ask.sizes(stage)[-1])
                assert all(candidate._least(tier) <= candidate.needs[tier] for tier in candidate.needs)
    assert Candidate(ALL, "2", NONE, 64)._least("device") > 0.9 * Candidate(ALL, "2", NONE, 64).needs["device"]


def test_sizes_divide_the_ranks():
    assert ASK.sizes("1") == [2, 4, 8, 16, 32, 64] and ASK.sizes("0") == [1] and ALL.sizes("3") == [64]
    assert replace(ASK, ranks=1).sizes("3") == [1] and replace(ASK, ranks=7).sizes("2") == [7]
    assert replace(ASK, ranks=10**6).sizes("2")[-3:] == [250_000, 500_000, 10**6]


# -- which row --------------------------------------------------------------------------------------------------------


def test_of_equally_fast_rows_the_one_that_sends_and_needs_least():
    """Links that cost nothing: stages 1 to 3 take as long, stage 3 sends more, stage 1 needs more."""
    question = replace(ALL, machine=replace(ALL.machine, inter_bandwidth=1e15, intra_bandwidth=1e15, alpha=1e-12))
    advice = recommend(question, rows(question))
    assert (advice.row.stage, advice.row.offload) == ("2", "none")
    assert "No faster, and more to send or to keep: stage 1 and 3" in advice.reason


@pytest.mark.parametrize("slower, chosen", [(1.0099, "1"), (1.0101, "2"), (1.03, "2")])
def test_within_one_percent_is_equally_fast(slower, chosen):
    """Stage 1 sends less here, so it is taken as long as it is no slower."""
    found = table(ALL)
    one = replace(found["1", "none"], seconds=12.345 * slower, sent_bytes=10)
    two = replace(found["2", "none"], seconds=12.345, sent_bytes=11)
    advice = recommend(ALL, [one, two])
    assert advice.row.stage == chosen
    assert ("No faster, and more to send or to keep: stage 2" in advice.reason) == (chosen == "1")


def test_among_equals_no_offload_and_one_shard_group():
    """Whatever they send or need."""
    row = table(ALL)["3", "none"]
    moved = replace(row, offload="cpu", device_bytes=1, sent_bytes=1)
    hybrid = replace(row, shard_size=8, device_bytes=1, sent_bytes=1)
    assert preferred([moved, hybrid, row], 64) is row and preferred([moved, hybrid], 64) is hybrid
    quick = replace(moved, seconds=row.seconds / 1.02)
    assert preferred([quick, hybrid, row], 64) is quick
    large = replace(ASK, model=flat(10**11, 100), ranks=128, ranks_per_host=16, device_memory=32 * GB,
                    host_memory=1500 * GB, nvme=28_000 * GB,
                    machine=replace(ASK.machine, inter_bandwidth=12.5e9, peak_flops=125e12))
    best = recommend(large, rows(large)).row
    assert (best.stage, best.offload) == ("3", "none")  # offload was recommended, with gigabytes free


@pytest.mark.parametrize("ranks, sharing", [(2, 2), (8, 8), (64, 8)])
def test_the_ranks_of_a_host_share_its_memory(ranks, sharing):
    capacity = replace(ALL, ranks=ranks, host_memory=1000 * GB).capacity
    assert capacity == {"device": 80 * GB, "host": 1000 * GB // sharing, "nvme": None}


@pytest.mark.parametrize("shards", [8, 64])
@pytest.mark.parametrize("stage", ["0", "1", "2", "3"])
def test_bytes_are_of_the_list_that_a_run_with_these_settings_has(stage, shards):
    """Weighed on the mesh that is asked about, though the list was made on a smaller one."""
    for model in (gpt(40, 5120, 40, 32_000, context=4096), flat(7_500_000_000, 16)):
        size = 1 if stage == "0" else shards
        made = set_up(model.spec, 64, StepSettings(stage, size, **SETTINGS))
        weighed = Candidate(replace(ASK, model=model), stage, NONE, size).tiers
        assert weighed.device_points == plan_tiers(made.lists.step(), made.geometry).device_points
