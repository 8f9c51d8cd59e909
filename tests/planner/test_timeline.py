"""The simulator against the lecture's charts, character by character, its numbers for a 13B model, and rules that any
timeline obeys."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpizero.errors import ConfigError
from mpizero.machine import Machine
from mpizero.planner.costs import Costs, machine_costs
from mpizero.planner.model import flat, gpt
from mpizero.planner.timeline import COMMUNICATION, COMPUTE, gantt, simulate
from mpizero.schedule import STRATEGIES, effect_of, show
from mpizero.schedule.actions import (
    Agree, AwaitFree, Backward, Begin, End, Forward, OptimStep, Phase, Reshard, Unshard,
)
from tests.schedule.models import models
from tests.schedule.toys import chain, setup, step, tied

LECTURE = Costs(forward=2, backward=4, all_gather=1.5, reduce_scatter=1.5)


def gradients(units, numel=64, stage="3", spec=None, **options):
    """The accumulating part of a step on 64 ranks, and what it is about."""
    made = setup(stage, spec or chain((numel,) * units), 64, **{"overlap": True} | options)
    return made.lists.accumulate, made.geometry


def ends(timeline):
    return {show(event.action): (event.start, event.end) for event in timeline.events}


# -- the lecture: 4 units, F = 2, B = 4, A = R = 1.5, last unit kept, at most 2 gathered; two columns a second ---------


@pytest.mark.parametrize("options, overlap, finish, chart", [
    ({}, False, 40.5, ["   F0FF   F1FF   F2FF   F3FFB3BBBBBB      B2BBBBBB      B1BBBBBB      B0",
                       "A0A    A1A    A2A    A3A            R3RA2A        R2RA1A        R1RA0A  "]),
    ({}, True, 36.0, ["   F0FFF1FFF2FFF3FFB3BBBBBB      B2BBBBBB      B1BBBBBB      B0BBBBBB   ",
                      "A0AA1A A2A A3A             R3RA2A        R2RA1A        R1RA0A        R0R"]),
    ({"backward_prefetch": 1}, True, 27.0, [
        "   F0FFF1FFF2FFF3FFB3BBBBBBB2BBBBBBB1BBBBBBB0BBBBBB                     ",
        "A0AA1A A2A A3A A2A         R3RA1A  R2RA0A  R1R     R0R                  "]),
], ids=["no overlap", "no prefetch", "prefetch"])
def test_charts_of_the_lecture(options, overlap, finish, chart):
    timeline = simulate(*gradients(4, keep_last_unit=True, limit_all_gathers=2, overlap=overlap, **options), LECTURE)
    assert (timeline.finish, timeline.compute, timeline.peak_gathered) == (finish, 24.0, 2)
    assert gantt(timeline, scale=2) == f"compute |{chart[0]}|\ncomm    |{chart[1]}|"


# -- the lecture's 13B model: 40 blocks on 64 ranks, 16,384 tokens each ------------------------------------------------

BLOCK = 12 * 5120**2


@pytest.fixture(scope="module")
def large():
    return machine_costs(flat(40 * BLOCK, 40), gradients(40, BLOCK)[1], Machine(), 16_384, 8)


def play(large, limit=None, issue_seconds=0.0, **options):
    return simulate(*gradients(40, BLOCK, keep_last_unit=True, limit_all_gathers=limit, **options), large,
                    issue_seconds=issue_seconds)


def test_costs_of_a_block(large):
    geometry = gradients(40, BLOCK)[1]
    seconds = [large.of(effect_of(action, geometry).work) for action in (Forward(7, 0), Backward(7, 0), Unshard(7))]
    assert [round(1e3 * each, 2) for each in seconds] == [20.84, 41.67, 13.02]
    assert large.reduce_scatter == large.all_gather and len(set(large.all_gather)) == 1


def test_costs_of_a_hybrid_mesh():
    """Shards inside a host of 8, replicas across 8 hosts: each axis at its own speed, with its own number of rounds."""
    geometry = setup("3", chain((BLOCK,) * 2), 64, 8).geometry
    machine, model = Machine(alpha=1e-5, intra_bandwidth=400e9, inter_bandwidth=25e9), flat(2 * BLOCK, 2)
    costs = machine_costs(model, geometry, machine, 1, 8)
    assert costs.all_gather[1] == costs.reduce_scatter[0] == 7 * 1e-5 + 2 * BLOCK * 7 / 8 / 400e9
    assert costs.all_reduce_shard[1] == 14 * 1e-5 + 2 * (2 * BLOCK / 8) * 7 / 8 / 25e9
    assert costs.all_reduce[0] == 14 * 1e-5 + 2 * (2 * BLOCK) * 7 / 8 / 400e9
    assert costs.optim_step[1] == 28 * BLOCK / 8 / machine.memory_bandwidth
    whole = setup("0", chain((BLOCK,) * 2), 64).geometry
    assert machine_costs(model, whole, machine, 1, 8).all_reduce[0] == 126 * 1e-5 + 2 * (2 * BLOCK) * 63 / 64 / 25e9
    one_host = setup("0", chain((BLOCK,) * 2), 8).geometry
    assert machine_costs(model, one_host, machine, 1, 8).all_reduce[0] == 14e-5 + 2 * (2 * BLOCK) * 7 / 8 / 400e9


def test_a_tied_embedding_computes_in_the_head():
    """Once; its lookup costs nothing."""
    model, machine = gpt(2, 8, 2, 11, context=6), Machine()
    costs = machine_costs(model, setup("3", model.spec, 4).geometry, machine, 18, 8)
    assert costs.forward[0] == 18 * 2 * 6 * 8 / machine.flops  # positions alone
    assert costs.backward[3] == 2 * costs.forward[3] == 2 * 18 * 2 * (11 * 8 + 16) / machine.flops


def test_backward_prefetch_makes_the_step_1_40_times_faster(large):
    without, with_it = play(large), play(large, backward_prefetch=1)
    found = (without.finish, with_it.finish, without.finish / with_it.finish)
    assert tuple(round(value, 2) for value in found) == (3.54, 2.53, 1.40)
    a, f, b = large.all_gather[0], large.forward[0], large.backward[0]
    # of every unit but the last R and A lie in the open
    assert without.finish == pytest.approx(a + 40 * f + b + 39 * (2 * a + b) + a, rel=1e-12)
    assert with_it.finish == pytest.approx(a + 40 * (f + b) + a, rel=1e-12)  # the first A and the last R


def test_rate_limiter_79_buffers_become_2_at_no_cost(large):
    for options in ({}, {"backward_prefetch": 1}):
        free, limited = play(large, **options), play(large, limit=2, **options)
        assert (free.peak_gathered, limited.peak_gathered) == (79, 2)
        assert free.finish == limited.finish


def test_forward_prefetch_gains_nothing_here(large):
    """As the lecture finds: below 0.5 % however slow the CPU is, for a segment is one computation, issued at once."""
    for issue_seconds in (0, 1e-4, 1e-3, 5e-3, 10e-3, 13e-3, 15e-3, 20e-3, 30e-3):
        for limit in (None, 2, 3):
            without, with_it = (play(large, limit, issue_seconds, backward_prefetch=1, forward_prefetch=depth)
                                for depth in (0, 1))
            assert 1 - with_it.finish / without.finish < 0.005


# -- by hand -----------------------------------------------------------------------------------------------------------


def test_whole_parameters_and_reductions_behind_backward():
    costs = Costs(forward=2, backward=4, reduce_scatter=3)
    assert simulate(*gradients(4, stage="2"), costs).finish == 4 * 6 + 3
    # issued after all backwards, by a CPU that is far ahead of them
    assert simulate(*gradients(4, stage="1"), costs).finish == 4 * 6 + 3
    assert simulate(*gradients(4, stage="0"), Costs(forward=2, backward=4, all_reduce=5)).finish == 8 + 4 + 4 * 5


def test_reductions_of_a_microbatch_overlap_the_next_forward():
    timeline = simulate(*gradients(1, stage="2", accumulation=2), Costs(forward=2, backward=4, reduce_scatter=2))
    computed, sent = ([(event.start, event.end) for event in timeline.events if event.stream == stream]
                      for stream in (COMPUTE, COMMUNICATION))
    assert computed == [(0, 2), (2, 6), (6, 8), (8, 12)] and sent == [(6, 8), (12, 14)]


def test_a_whole_step_waits_for_all_gradients_and_gathers_what_it_updated():
    actions, geometry = step("2", chain((64, 64)), 64, overlap=True)
    costs = Costs(forward=1, backward=2, reduce_scatter=(3, 7), all_gather=(5, 6), optim_step=4)
    timeline = simulate(actions, geometry, costs)
    seen = ends(timeline)
    assert seen["ReduceScatterGrad(0)"] == (11, 14)
    assert [event.issue for event in timeline.events if event.action == OptimStep(1)] == [14]  # the CPU has waited
    assert ends(simulate([action for action in actions if action != Phase("update")], geometry, costs)) == seen
    updates = [seen[f"{name}({unit})"] for unit in (0, 1) for name in ("OptimStep", "AllGatherParam")]
    assert updates == [(14, 18), (18, 23), (18, 22), (23, 29)]
    twice = simulate([*actions, *actions], geometry, costs)
    assert min(event.start for event in twice.events[len(twice.events) // 2:]
               if isinstance(event.action, Forward)) == 29


@pytest.mark.parametrize("stage, shards, seconds, begin", [
    ("0", None, {"all_reduce": 7}, 1 + 2 + 7), ("1-allreduce", None, {"all_reduce": 7}, 1 + 2 + 7),
    ("2", 8, {"reduce_scatter": 3, "all_reduce_shard": 5}, 1 + 2 + 3 + 5),
])
def test_an_update_waits_for_the_sum_of_its_gradient(stage, shards, seconds, begin):
    """Not only because the CPU does: without the mark, too."""
    actions, geometry = step(stage, chain((64,)), 64, shards)
    unmarked = [action for action in actions if not isinstance(action, Agree | Phase)]
    timeline = simulate(unmarked, geometry, Costs(forward=1, backward=2, optim_step=4, **seconds))
    assert ends(timeline)["OptimStep(0)"] == (begin, begin + 4)


def test_stage_3_gathers_what_it_updated():
    actions, geometry = step("3", chain((64, 64)), 64, overlap=True)
    timeline = simulate([*actions, *actions], geometry, Costs(optim_step=4, all_gather=1))
    update, gather = ([event for event in timeline.events if event.action == action]
                      for action in (OptimStep(0), Unshard(0)))
    assert gather[2].start == update[0].end == 8


def test_a_host_waits_for_memory_where_the_list_says_so():
    """By hand: for the first of two units, for both, for none. A gather for nothing ends."""
    geometry = gradients(3)[1]
    begun = [Begin(Unshard(0)), Begin(Unshard(1)), End(Unshard(0)), Forward(0, 0), Reshard(0), End(Unshard(1)),
             Forward(1, 0), Reshard(1)]
    for awaited, issue in (([0], 3.5), ([1], 5.5), ([0, 1], 5.5), ([], 0)):
        actions = [*begun, *map(AwaitFree, awaited), Begin(Unshard(2)), End(Unshard(2))]
        assert simulate(actions, geometry, LECTURE).events[-1].issue == issue
    nothing = [Unshard(0), Reshard(0), AwaitFree(0), Unshard(1)]
    assert simulate(nothing, geometry, LECTURE).events[-1].issue == 1.5


@pytest.mark.parametrize("depth, finish", [(0, 61.5), (1, 54.0)])
def test_the_limit_is_the_list_s(depth, finish):
    """Six units, one gathered at once: the same for a host that runs ahead, and for one that computes. Of 36 s of
    computation no gather is hidden; a reduction is behind the next gather alone, which comes first with prefetch."""
    actions = gradients(6, keep_last_unit=True, backward_prefetch=depth, limit_all_gathers=1)
    for ahead in (True, False):
        timeline = simulate(*actions, LECTURE, ahead=ahead)
        assert (timeline.finish, timeline.peak_gathered) == (finish, 1)


def test_whoever_computes_runs_ahead_of_nothing():
    """A rank that computes gathers for forward only when it has time, and never holds more than the list does."""
    options = {"keep_last_unit": True, "backward_prefetch": 1, "limit_all_gathers": 2}
    timeline = simulate(*gradients(4, **options), LECTURE, ahead=False)
    assert (timeline.finish, timeline.peak_gathered) == (4 * 1.5 + 24 + 1.5, 2)  # forward's gathers, the last reduction
    timeline = simulate(*gradients(4, forward_prefetch=1, **options), LECTURE, ahead=False)
    assert timeline.finish == 1.5 + 24 + 1.5
    assert timeline.communication == 4 * 1.5 + 3 * 1.5 + 4 * 1.5


def test_replicas_have_a_stream_of_their_own():
    """The sum across replicas goes on beside the next reduction inside the shard group."""
    timeline = simulate(*gradients(3, stage="2", spec=chain((64,) * 3), shards=8),
                        Costs(forward=1, backward=2, reduce_scatter=2, all_reduce_shard=3))
    seen = ends(timeline)
    assert timeline.streams == ["compute", "communication", "replicas"]
    assert [seen[f"ReduceScatterGrad({unit})"] for unit in (2, 1, 0)] == [(5, 7), (7, 9), (9, 11)]
    assert [seen[f"AllReduceShard({unit})"] for unit in (2, 1, 0)] == [(7, 10), (10, 13), (13, 16)]


def test_segments_name_the_units_they_read():
    """A tied head waits for both gathers, and unit 0 keeps its memory until the head is done."""
    timeline = simulate(*gradients(3, spec=tied(), forward_prefetch=1), Costs(forward=1, all_gather=(10, 1, 1)))
    seen = [(show(event.action), event.start) for event in timeline.events][:7]
    assert seen == [("Unshard(0)", 0), ("Unshard(1)", 10), ("Forward(0, mb=0)", 10), ("Unshard(2)", 11),
                    ("Unshard(0)", 12),
                    ("Forward(1, mb=0)", 11), ("Forward(2, mb=0)", 22)]


def test_one_segment_may_need_more_than_the_limit():
    assert simulate(*gradients(3, spec=tied(), limit_all_gathers=1), LECTURE).peak_gathered == 2


def test_the_cpu_issues_one_after_the_other():
    timeline = simulate(*gradients(2), LECTURE, issue_seconds=0.25)
    assert [event.issue for event in timeline.events] == [0.25 * (i + 1) for i in range(len(timeline.events))]
    assert timeline.events[0].start == 0.25


def test_data_for_json():
    timeline = simulate(*gradients(1), LECTURE)
    data = json.loads(json.dumps(timeline.data()))
    assert (data["finish"], data["compute"], data["peak_gathered"]) == (9, 6, 2)  # A0 again while F0 runs
    assert data["events"][0] == {"action": "Unshard(0)", "stream": "communication", "issue": 0, "start": 0, "end": 1.5}
    nothing = simulate([Phase("update")], gradients(1)[1], LECTURE).data()
    assert nothing == {"finish": 0, "compute": 0, "peak_gathered": 0, "events": []}


def test_a_chart_fits_its_width():
    for timeline in (simulate(*gradients(9), LECTURE), simulate([], gradients(1)[1], LECTURE)):
        assert [len(row) for row in gantt(timeline, 50).splitlines()] == [60, 60]
        assert [len(row) for row in gantt(timeline, 50, scale=40).splitlines()] == [60, 60]


@pytest.mark.parametrize("wrong, words", [
    (lambda: Costs(all_gather=-1.5), "all-gather cannot take -1.5 seconds: give a number of at least 0"),
    (lambda: Costs(forward=(1, float("nan"))), "forward cannot take nan seconds"),
    (lambda: simulate(*gradients(1), LECTURE, issue_seconds=float("inf")), "issuing cannot take inf seconds"),
])
def test_impossible_numbers(wrong, words):
    with pytest.raises(ConfigError, match=words):
        wrong()


# -- any model ---------------------------------------------------------------------------------------------------------

SECONDS = st.integers(0, 5)


@settings(max_examples=150, deadline=None)
@given(spec=models(), stage=st.sampled_from(list(STRATEGIES)),
       costs=st.builds(Costs, SECONDS, SECONDS, SECONDS, SECONDS, SECONDS),
       depth=st.integers(0, 3), keep=st.booleans(), limit=st.none() | st.integers(1, 4),
       ahead=st.booleans(), issue=st.sampled_from([0, 0.5]))
def test_rules_of_every_timeline(spec, stage, costs, depth, keep, limit, ahead, issue):
    alone, both = (setup(stage, spec, 4, accumulation=2, backward_prefetch=depth, keep_last_unit=keep,
                         limit_all_gathers=limit, overlap=overlap) for overlap in (False, True))
    wrapping = both.wrapping
    alone, both = (simulate(made.lists.accumulate, made.geometry, costs, ahead=ahead, issue_seconds=issue)
                   for made in (alone, both))
    assert both.finish <= alone.finish and both.compute == alone.compute
    assert issue or alone.finish == sum(event.end - event.start for event in alone.events)
    for timeline in (alone, both):
        for stream in (COMPUTE, COMMUNICATION):
            events = [event for event in timeline.events if event.stream == stream]
            assert all(before.end <= after.start for before, after in zip(events, events[1:], strict=False))
        assert all(event.issue <= event.start for event in timeline.events)
        _computes_after_its_gathers(timeline, wrapping)
        widest = max(len(use.units) for use in wrapping.segments)
        assert limit is None or timeline.peak_gathered <= max(limit, widest)


def _computes_after_its_gathers(timeline, wrapping):
    gathered = {}
    for event in timeline.events:  # in the list's order
        if isinstance(event.action, Unshard):
            gathered[event.action.unit] = event.end
        elif event.stream == COMPUTE:
            assert all(gathered.get(unit, 0) <= event.start for unit in wrapping.segments[event.action.segment].units)
