"""Collectives that begin and end: where the pass puts them, what the validator refuses, what they cost in memory."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpizero.planner import plan_memory, plan_traffic
from mpizero.schedule import STRATEGIES, IllegalSchedule, effect_of, show
from mpizero.schedule.actions import (
    Backward, Begin, Collective, End, Forward, OptimStep, Phase, ReduceScatterGrad, Reshard, Unshard,
)
from mpizero.schedule.passes import overlapped
from tests.schedule.models import models
from tests.schedule.toys import chain, check, setup, step, tied

SHORT = {"Unshard": "U", "Forward": "F", "Reshard": "-", "Backward": "B", "ReduceScatterGrad": "G",
         "AllReduceGrad": "S", "AllReduceShard": "S", "OptimStep": "O", "AllGatherParam": "P", "Agree": "agree"}


def names(actions):
    """`[U2` where the gather of unit 2 begins, `U2]` where it ends; F2 B2 forward and backward of segment 2, `-2` where
    unit 2 is freed, `[G2` a reduction, `|` where a phase begins."""
    return " ".join(filter(None, map(_name, actions)))


def _name(action):
    match action:
        case Begin(inner):
            return "[" + _name(inner)
        case End(inner):
            return _name(inner) + "]"
        case Phase():
            return "|"
    text = show(action)
    kind, number = text.split("(")[0], text.split("(")[1][:1].replace(")", "")
    return SHORT[kind] + number if kind in SHORT else ""


@pytest.mark.parametrize("stage, options, expected", [
    # without prefetch a gather waits for nothing but itself; a reduction goes on beside the next backward
    ("3", {}, "| [U0 U0] F0 -0 [U1 U1] F1 -1 | [U1 U1] B1 -1 [G1 [U0 U0] B0 -0 G1] [G0 G0] | agree"),
    ("3", {"backward_prefetch": 1, "forward_prefetch": 1},
     "| [U0 [U1 U0] F0 -0 U1] F1 -1 | [U1 [U0 U1] B1 -1 [G1 U0] B0 -0 G1] [G0 G0] | agree"),
    ("2", {}, "| F0 F1 | B1 [G1 B0 G1] [G0 G0] | agree"),
    # the sum across replicas begins where the shard is there, and goes on beside the next reduction
    ("2", {"shards": 2}, "| F0 F1 | B1 [G1 B0 G1] [S1 [G0 S1] G0] [S0 S0] | agree"),
    ("1", {}, "| F0 F1 | B1 B0 | [G1 G1] [G0 G0] agree"),
    ("0", {}, "| F0 F1 | B1 [S1 B0 S1] [S0 S0] | agree"),
    # the last reduction of a microbatch goes on beside the next forward
    ("2", {"accumulation": 2},
     "| F0 F1 | B1 [G1 B0 G1] [G0 | | F0 F1 | B1 G0] [G1 B0 G1] [G0 G0] | agree"),
])
def test_by_hand(stage, options, expected):
    spec = options.pop("spec", chain((5, 7)))
    made = setup(stage, spec, 4, options.pop("shards", None), overlap=True, **options)
    assert names(made.lists.accumulate) == expected


def test_updated_parameters_are_gathered_beside_further_updates():
    assert names(setup("1", chain((5, 7)), 4, overlap=True).lists.update) == "| O0 [P0 O1 [P1 P0] P1]"


def test_a_tied_unit_is_reduced_after_its_last_use():
    """The head reads unit 0 too: what is open on it ends before it is gathered or used again."""
    actions = setup("3", tied(), 4, overlap=True, backward_prefetch=1).lists.accumulate
    assert names(actions) == ("| [U0 U0] F0 -0 [U1 U1] F1 -1 [U2 [U0 U2] U0] F2 -2 -0 | "
                              "[U2 [U0 [U1 U2] U0] B2 -2 -0 [G2 [U0 U1] B1 -1 G2] [G1 U0] B0 -0 G1] [G0 G0] | agree")


# -- what the validator refuses ----------------------------------------------------------------------------------------


def _at(actions, action):
    return actions.index(action)


def _without(action):
    def change(actions):
        del actions[_at(actions, action)]
    return change


def _put(action, before, moved):
    """moved: take it away from where it stands."""
    def change(actions):
        if moved:
            del actions[_at(actions, action)]
        actions.insert(_at(actions, before), action)
    return change


@pytest.mark.parametrize("change, words", [
    (_without(End(Unshard(1))), "Forward(1, mb=0): it meets the all_gather of unit 1, which has not ended"),
    (_without(Begin(Unshard(1))), "End(Unshard(1)): it ends what was not begun"),
    (_put(End(Unshard(1)), Begin(Unshard(1)), True), "End(Unshard(1)): it ends what was not begun"),
    (_put(Begin(Unshard(1)), End(Unshard(1)), False), "meets the all_gather of unit 1, which has not ended"),
    (_put(Reshard(1), End(Unshard(1)), True), "meets the all_gather of unit 1, which has not ended"),
    (_put(End(ReduceScatterGrad(1)), Begin(ReduceScatterGrad(1)), False), "it ends what was not begun"),
    (_put(Unshard(1), End(Unshard(1)), False), "meets the all_gather of unit 1, which has not ended"),
    (_without(End(ReduceScatterGrad(0))), "Agree(): it meets the reduce_scatter of unit 0, which has not ended"),
    (_put(Backward(1, 0), End(ReduceScatterGrad(1)), False), "meets the reduce_scatter of unit 1"),
])
def test_wrong_lists(change, words):
    actions, geometry = step("3", chain((5, 7)), 4, overlap=True, forward_prefetch=1)
    check(actions, geometry)
    change(actions)
    with pytest.raises(IllegalSchedule) as refusal:
        check(actions, geometry)
    assert words in str(refusal.value)


def test_an_update_of_what_is_being_gathered_is_refused():
    actions, geometry = step("2", chain((5, 7)), 4, overlap=True)
    place = _at(actions, OptimStep(1))
    with pytest.raises(IllegalSchedule, match="it meets the all_gather of unit 0"):
        check([*actions[:place], OptimStep(0), *actions[place:]], geometry)


def test_what_meets():
    """What one reads the other may not change, whichever is under way; two that read the same do not meet."""
    geometry = step("3", chain((5, 7)), 4)[1]
    gather, update, other = (effect_of(action, geometry) for action in (Unshard(1), OptimStep(1), OptimStep(0)))
    assert gather.meets(update) and update.meets(gather)
    assert not gather.meets(other) and not other.meets(gather)
    forward = effect_of(Forward(1, 0), geometry)
    assert gather.meets(forward) and forward.meets(gather)  # which reads what the gather makes
    backward = effect_of(Backward(1, 0), geometry)
    assert not effect_of(ReduceScatterGrad(0), geometry).meets(backward)


def test_a_list_ends_what_it_begins():
    actions, geometry = step("3", chain((5, 7)), 4, overlap=True)
    with pytest.raises(IllegalSchedule, match="at the end of the step: the all_gather of unit 0 has not ended"):
        check([*actions, Begin(Unshard(0))], geometry)


# -- memory ------------------------------------------------------------------------------------------------------------


def test_storage_is_live_from_begin_and_what_is_read_until_end():
    """Two units of 8 and 16 float16 elements on 4 ranks."""
    actions, geometry = step("3", chain((8, 16)), 4, overlap=True, backward_prefetch=1)
    plan = plan_memory(actions, geometry)
    live = {names([point.action]): point.live for point in plan.points if isinstance(point.action, Begin | End)}
    assert live["[U1"]["unsharded_param"] == 2 * 16 and live["[U0"]["unsharded_param"] == 2 * (16 + 8)
    assert live["[G1"]["unsharded_grad"] == 2 * 16
    assert live["[G1"]["grad"] == 2 * 16 // 4  # the sum has its place before it is there
    assert live["G1]"]["unsharded_grad"] == 2 * 8  # of unit 0, computed meanwhile
    assert live["G0]"]["unsharded_grad"] == 0
    alone = plan_memory(*step("3", chain((8, 16)), 4, backward_prefetch=1))
    assert plan.after_backward == alone.after_backward
    assert alone.peak_by_kind["unsharded_grad"] == 2 * 16  # now unit 1's is still there beside unit 0's
    assert plan.peak_by_kind["unsharded_grad"] == 2 * (16 + 8)


@pytest.mark.parametrize("stage", STRATEGIES)
def test_a_wider_sum_has_its_place_from_begin_on(stage):
    actions, geometry = step(stage, chain((8, 16)), 4, overlap=True, sum_dtype="float32")
    begun = next(point for point in plan_memory(actions, geometry).points
                 if isinstance(point.action, Begin) and effect_of(point.action.action, geometry).sums)
    sums = {"0": 16, "1-allreduce": 16, "3-broadcast": 0}.get(stage, 4)  # nothing beside its owner, which is place 1
    assert begun.live["unsharded_grad"] >= 2 * 16 and begun.live["grad"] == 4 * sums


# -- any model ---------------------------------------------------------------------------------------------------------


def plainly(actions):
    """Without beginnings and ends: a collective where it begins."""
    return [action.action if isinstance(action, Begin) else action for action in actions if not isinstance(action, End)]


@settings(max_examples=100, deadline=None)
@given(spec=models(), stage=st.sampled_from(list(STRATEGIES)), shards=st.sampled_from([None, 2]),
       depth=st.integers(0, 2), limit=st.none() | st.integers(1, 3), accumulation=st.integers(1, 2))
def test_rules_of_every_list(spec, stage, shards, depth, limit, accumulation):
    options = dict(backward_prefetch=depth, forward_prefetch=depth, limit_all_gathers=limit, accumulation=accumulation)
    shards = None if stage == "0" else shards
    plain, made = (setup(stage, spec, 4, shards, overlap=overlap, **options) for overlap in (False, True))
    for before, after in zip(vars_of(plain.lists), vars_of(made.lists), strict=True):
        assert sorted(map(show, plainly(after))) == sorted(map(show, before))
        computed = [action for action in after if isinstance(action, Forward | Backward | OptimStep)]
        assert computed == [action for action in before if isinstance(action, Forward | Backward | OptimStep)]
        assert not any(isinstance(action, Collective) for action in after)
        open_along = Counter()
        for action in after:
            if isinstance(action, Begin | End) and (all_sums := effect_of(action.action, made.geometry).sums):
                (sums,) = all_sums
                open_along[sums.axis] += 1 if isinstance(action, Begin) else -1
                assert open_along[sums.axis] in (0, 1)  # one reduction at a time along each axis
    sent = [[(each.op, each.axis, each.nbytes) for each in plan_traffic(lists.lists.step(), lists.geometry)]
            for lists in (plain, made)]
    assert sorted(sent[0]) == sorted(sent[1])
    assert overlapped([], made.geometry) == []


def vars_of(lists):
    return lists.accumulate, lists.update, lists.zero_grad, lists.evaluate
