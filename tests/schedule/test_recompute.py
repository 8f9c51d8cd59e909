"""Recompute: where the pass puts it, what the validator refuses, what it keeps, on any model and under all passes."""

from __future__ import annotations

from collections import Counter
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpizero.errors import ConfigError
from mpizero.layout import ActivationBytes, SegmentBytes, freeze
from mpizero.memory.kinds import ACTIVATION, KEPT_INPUT
from mpizero.planner import plan_memory, plan_traffic
from mpizero.planner.costs import Costs
from mpizero.planner.timeline import simulate
from mpizero.schedule import STRATEGIES, IllegalSchedule, StepSettings, show
from mpizero.schedule.actions import (
    Agree, AwaitFree, Backward, Begin, End, Forward, FreeGrad, Gather, LoadBatch, Loss, LossBackward, OptimStep, Phase,
    Recompute, ReduceScatterGrad, Reshard, Save, Unshard,
)
from mpizero.schedule.passes import backward_prefetch, forward_prefetch, keep_last_unit, limit_all_gathers, recompute
from tests.schedule.changes import before, exchanged, moved, refused, twice, without
from tests.schedule.models import models
from tests.schedule.test_effects import told
from tests.schedule.toys import chain, check, setup, step, tied

FIVE = chain((5, 7, 3, 4, 6))
LETTERS = {Unshard: "U", Forward: "F", Recompute: "C", Reshard: "R", Backward: "B", ReduceScatterGrad: "G"}
SAVES = {Save.ALL: "", Save.INPUT: "i", Save.NOTHING: "-"}


def names(actions):
    """U2 F2 C2 B2 R2 G2 for gather, forward, recompute, backward, free and reduction of unit or segment 2; Fi2 where
    the input alone is kept, F-2 where nothing is, C2> where the output goes on; `|` between forward and backward."""
    def word(action):
        if action == Phase("backward"):
            return "|"
        if isinstance(action, Phase | LoadBatch | Loss | LossBackward | Agree | AwaitFree):
            return ""
        number = action.segment if isinstance(action, Forward | Recompute | Backward) else action.unit
        save, onward = SAVES[getattr(action, "save", Save.ALL)], ">" * getattr(action, "onward", False)
        return f"{LETTERS[type(action)]}{save}{number}{onward}"

    return " ".join(filter(None, map(word, actions)))


def gradients(stage, spec=FIVE, interval=1, **options):
    return setup(stage, spec, 4, recompute=True, recompute_interval=interval, **options).lists.accumulate


# -- where it stands --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("interval, expected", [
    (1, "F0 Fi1 Fi2 Fi3 F4 | B4 G4 C3 B3 G3 C2 B2 G2 C1 B1 G1 B0 G0"),
    (2, "F0 Fi1 F-2 Fi3 F4 | B4 G4 C3 B3 G3 C1> C2 B2 G2 B1 G1 B0 G0"),
    (3, "F0 Fi1 F-2 F-3 F4 | B4 G4 C1> C2> C3 B3 G3 B2 G2 B1 G1 B0 G0"),
    (9, "F0 Fi1 F-2 F-3 F4 | B4 G4 C1> C2> C3 B3 G3 B2 G2 B1 G1 B0 G0"),
])
def test_by_hand(interval, expected):
    assert names(gradients("2", interval=interval)) == expected


FORWARD = "U0 F0 R0 U1 Fi1 R1 U2 {}2 R2 U3 Fi3 R3 U4 F4 R4 |"


@pytest.mark.parametrize("interval, options, expected", [
    (1, {}, "U4 B4 R4 G4 U3 C3 B3 R3 G3 U2 C2 B2 R2 G2 U1 C1 B1 R1 G1 U0 B0 R0 G0"),
    (2, {}, "U4 B4 R4 G4 U3 C3 B3 R3 G3 U1 C1> U2 C2 B2 R2 G2 B1 R1 G1 U0 B0 R0 G0"),
    (1, {"backward_prefetch": 1}, "U4 U3 B4 R4 G4 C3 U2 B3 R3 G3 C2 U1 B2 R2 G2 C1 U0 B1 R1 G1 B0 R0 G0"),
    (2, {"backward_prefetch": 1}, "U4 U3 B4 R4 G4 C3 U1 U2 B3 R3 G3 C1> C2 B2 R2 G2 U0 B1 R1 G1 B0 R0 G0"),
    # the two that are computed again together need two units, whatever the limit
    (2, {"backward_prefetch": 9, "limit_all_gathers": 1},
     "U4 B4 R4 U3 G4 C3 B3 R3 U1 G3 C1> U2 C2 B2 R2 G2 B1 R1 U0 G1 B0 R0 G0"),
])
def test_each_unit_is_gathered_once_in_backward(interval, options, expected):
    forward = FORWARD.format({1: "Fi", 2: "F-"}[interval])
    assert names(gradients("3", interval=interval, **options)) == f"{forward} {expected}"


def test_what_is_freed_and_gathered_anew_within_a_group_stays():
    """Unit a belongs to segments 1 and 3, of which segment 2 lies between."""
    unit_of = {"p1": "a", "p3": "a"}
    actions = gradients("3", interval=3, policy=lambda name: unit_of.get(name, name))
    assert names(actions).partition(" | ")[2] == "U3 B4 R3 G3 U1 C1> U2 C2> C3 B3 B2 R2 G2 B1 R1 G1 U0 B0 R0 G0"


def test_a_unit_that_the_backward_before_has_gathered():
    """The last segment and the one before share a unit: it is there already."""
    actions = gradients("3", policy=lambda name: "last" if name in ("p3", "p4") else name)
    assert names(actions).partition(" | ")[2] == (
        "U3 B4 C3 B3 R3 G3 U2 C2 B2 R2 G2 U1 C1 B1 R1 G1 U0 B0 R0 G0")


def test_a_segment_that_needs_no_backward_keeps_nothing():
    one, two = (gradients("2", freeze(FIVE, ["p0", "p1"]), interval) for interval in (1, 2))
    assert names(one) == "F-0 F-1 Fi2 Fi3 F4 | B4 G4 C3 B3 G3 C2 B2 G2"
    assert names(two) == "F-0 F-1 Fi2 F-3 F4 | B4 G4 C2> C3 B3 G3 B2 G2"


@pytest.mark.parametrize("stage", STRATEGIES)
def test_nothing_lies_between_two_segments(stage):
    """And an evaluation has no backward."""
    plain, again = (setup(stage, chain((5, 7)), 4, recompute=on) for on in (False, True))
    assert plain.lists == again.lists
    assert setup(stage, FIVE, 4).lists.evaluate == setup(stage, FIVE, 4, recompute=True).lists.evaluate


def test_an_interval_without_recompute():
    with pytest.raises(ConfigError, match="`recompute_interval` 2 says how many segments share the input that"):
        StepSettings(recompute_interval=2)
    with pytest.raises(ConfigError, match="`recompute_interval` 0 is impossible: it must be at least 1"):
        StepSettings(recompute=True, recompute_interval=0)


# -- what it does to values --------------------------------------------------------------------------------------------


def test_values_by_hand():
    """Of four segments the two in the middle, from one input."""
    lines = told(*step("2", chain((5, 7, 3, 4)), 4, recompute=True, recompute_interval=2))
    assert lines[1:5] == [
        "Forward(0, mb=0): +x[1] +saved[0] -x[0]", "Forward(1, mb=0, save=input): +x[2] +kept[1] -x[1]",
        "Forward(2, mb=0, save=nothing): +x[3] -x[2]", "Forward(3, mb=0): +x[4] +saved[3] -x[3]"]
    assert lines[9:11] == ["Recompute(1, mb=0, onward=True): +saved[1] +kept[2] -kept[1]",
                           "Recompute(2, mb=0): +x[3] +saved[2] -kept[2] -x[3]"]


@pytest.mark.parametrize("keeps_output", [False, True])
def test_bytes_by_hand(keeps_output):
    """Five segments whose outputs have 10, 20, 30, 40, 50 bytes, and which keep 1, 2, 3, 4, 5 more; x has 7. One unit
    of a rank, so gradients do not matter."""
    segments = tuple(SegmentBytes(10 * i, i, keeps_output=keeps_output) for i in range(1, 6))
    table = ActivationBytes(7, 6, segments, 9)

    def live(interval):
        made = setup("0", FIVE, 1, recompute=True, recompute_interval=interval)
        points = plan_memory(made.lists.accumulate, made.geometry, table).points
        return [(show(point.action).split(",")[0].replace("(mb=0)", ""), point.live[KEPT_INPUT], point.live[ACTIVATION])
                for point in points if isinstance(point.action, Forward | Loss | Recompute | Backward)]

    first = 7 + 1  # what the first segment keeps; its output is kept by the next one, or by itself as well
    assert live(1) == [
        ("Forward(0", 0, first + 10 + 6), ("Forward(1", 10, first + 20 + 6), ("Forward(2", 30, first + 30 + 6),
        ("Forward(3", 60, first + 40 + 6), ("Forward(4", 60, first + 40 + 5 + 50 + 6),
        ("Loss", 60, first + 40 + 5 + 50 + 6 + 9), ("Backward(4", 60, first + 40),
        # dy, the input and what it saves; then dx in their place
        ("Recompute(3", 30, first + 40 + 30 + 4 + 40 * keeps_output), ("Backward(3", 30, first + 30),
        ("Recompute(2", 10, first + 30 + 20 + 3 + 30 * keeps_output), ("Backward(2", 10, first + 20),
        ("Recompute(1", 0, first + 20 + 10 + 2 + 20 * keeps_output),
        ("Backward(1", 0, first + 10 + 10 * keeps_output), ("Backward(0", 0, 0)]
    assert live(3)[4:10] == [
        ("Forward(4", 10, first + 40 + 5 + 50 + 6), ("Loss", 10, first + 40 + 5 + 50 + 6 + 9),
        ("Backward(4", 10, first + 40),
        ("Recompute(1", 20, first + 40 + 10 + 2), ("Recompute(2", 30, first + 40 + 10 + 2 + 20 + 3),
        ("Recompute(3", 0, first + 40 + 10 + 2 + 20 + 3 + 30 + 4 + 40 * keeps_output)]


def test_it_takes_as_long_as_a_forward():
    """Unless its own seconds are known."""
    made = setup("0", FIVE, 1, recompute=True, recompute_interval=2)
    actions, geometry = made.lists.accumulate, made.geometry
    assert simulate(actions, geometry, Costs(forward=[1, 2, 3, 4, 5], backward=10)).compute == 15 + 50 + 2 + 3 + 4
    assert simulate(actions, geometry, Costs(forward=1, backward=10, recompute=[0, 2, 3, 4, 0])).compute == 55 + 9


# -- what the validator refuses ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("change, stage, interval, words", [
    (without(Recompute(2, 0)), "2", 1, "Backward(2, mb=0): it reads saved[2, mb=0], which is not there"),
    (twice(Recompute(2, 0)), "2", 1, "Recompute(2, mb=0): it reads kept[2, mb=0], which is not there"),
    (exchanged(Forward(2, 0, Save.INPUT), Forward(2, 0, Save.NOTHING)), "2", 1,
     "Recompute(2, mb=0): it reads kept[2, mb=0], which is not there"),
    (exchanged(Forward(2, 0, Save.INPUT), Forward(2, 0)), "2", 1,
     "Recompute(2, mb=0): it reads kept[2, mb=0], which is not there"),
    (moved(Recompute(2, 0), Forward(2, 0, Save.INPUT)), "2", 1,
     "Recompute(2, mb=0): it comes too early: x[3, mb=0] is still there"),
    (moved(Recompute(2, 0), Loss(0)), "2", 1,
     "Recompute(2, mb=0): it comes too early: kept[3, mb=0] is still there"),
    (moved(Recompute(2, 0), Backward(4, 0)), "2", 1,
     "Recompute(2, mb=0): it comes too early: kept[3, mb=0] is still there"),
    (moved(Recompute(2, 0), Recompute(3, 0)), "2", 1,
     "Recompute(2, mb=0): it comes too early: saved[3, mb=0] is still there"),
    (moved(Recompute(2, 0), Backward(3, 0)), "3", 1, "Recompute(2, mb=0): it reads whole[2], which is not there"),
    (exchanged(Recompute(2, 0), Recompute(2, 0, onward=True)), "2", 1,
     "Recompute(1, mb=0): it comes too early: kept[3, mb=0] is still there"),
    (exchanged(Recompute(1, 0, onward=True), Recompute(1, 0)), "2", 2,
     "Recompute(2, mb=0): it reads kept[2, mb=0], which is not there"),
    (exchanged(Recompute(1, 0, onward=True), Recompute(2, 0)), "2", 2,
     "Recompute(2, mb=0): it reads kept[2, mb=0], which is not there"),
    (before(Backward(1, 0), Recompute(1, 1)), "2", 1, "Recompute(1, mb=1): it reads kept[1, mb=1], which is not there"),
])
def test_wrong_lists(change, stage, interval, words):
    refused(words, change, stage, FIVE, recompute=True, recompute_interval=interval)


def test_a_limit_holds_beside_what_is_computed_again_together():
    actions, geometry = step("3", FIVE, 4, recompute=True, recompute_interval=3)
    check(actions, geometry, limit=1)
    ahead = backward_prefetch(actions, 1)
    check(ahead, geometry, limit=4)
    with pytest.raises(IllegalSchedule, match=r"units were gathered at once: above the limit"):
        check(ahead, geometry, limit=1)


# -- in all cases ------------------------------------------------------------------------------------------------------

SETTINGS = st.fixed_dictionaries({
    "backward_prefetch": st.integers(0, 3), "forward_prefetch": st.integers(0, 3), "keep_last_unit": st.booleans(),
    "limit_all_gathers": st.none() | st.integers(1, 4), "overlap": st.booleans(), "accumulation": st.integers(1, 3),
    "no_sync": st.booleans()})


def plainly(actions):
    """Without what waits, and a collective where it begins."""
    return [action.action if isinstance(action, Begin) else action for action in actions
            if not isinstance(action, End | AwaitFree)]


def compare(plain, made, interval):
    """What recompute must not change, and what it must. `set_up` has validated both."""
    between = [use.index for use in made.wrapping.segments[1:-1] if use.backward]
    old, new = plainly(plain.lists.accumulate), plainly(made.lists.accumulate)
    again = [(action.segment, action.mb) for action in new if isinstance(action, Recompute)]
    assert Counter(again) == Counter(product(between, range(made.settings.accumulation)))
    computed = Forward | Loss | LossBackward | Backward | Phase | Agree | OptimStep | FreeGrad
    unsaved = [[replace_save(action) for action in actions if isinstance(action, computed)] for actions in (old, new)]
    assert unsaved[0] == unsaved[1]
    lost, came = Counter(old) - Counter(new), Counter(new) - Counter(old)
    assert not [action for action in came if not isinstance(action, Forward | Recompute)]
    freed = {action: count for action, count in lost.items() if not isinstance(action, Forward)}
    assert all(isinstance(action, Gather | Reshard) for action in freed)
    gathers, frees = (sum(count for action, count in freed.items() if isinstance(action, kind))
                      for kind in (Gather, Reshard))
    assert gathers == frees and (interval > 1 or not freed)
    readers, phase, gathered = Counter(unit for use in made.wrapping.segments for unit in use.units), None, Counter()
    for action in new:  # for a segment's backward and its recompute its units are gathered once
        phase = action if isinstance(action, Phase) else phase
        if isinstance(action, Gather) and readers[action.unit] == 1:
            gathered[phase, action.unit] += 1
    assert set(gathered.values()) <= {1}
    kept = Counter(action.mb for action in new if isinstance(action, Forward) and action.save is Save.INPUT)
    assert all(count == -(-len(between) // interval) for count in kept.values()) and bool(kept) == bool(between)
    assert made.lists.update == plain.lists.update and made.lists.evaluate == plain.lists.evaluate


def replace_save(action):
    return Forward(action.segment, action.mb) if isinstance(action, Forward) else action


@settings(max_examples=200, deadline=None)
@given(spec=models(), stage=st.just("3") | st.sampled_from(list(STRATEGIES)), shards=st.sampled_from([1, 2, 3, 6]),
       options=SETTINGS, interval=st.integers(1, 4), together=st.integers(1, 3), frozen=st.integers(0, 3))
def test_on_any_model(spec, stage, shards, options, interval, together, frozen):
    """together: parameters that make a unit, so units cut across segments. frozen: the first parameters."""
    names_of = [param.name for param in spec.params]
    if 0 < frozen < len(names_of):
        spec = freeze(spec, names_of[:frozen])
    unit_of = {name: f"unit{i // together}" for i, name in enumerate(names_of)}
    plain = setup(stage, spec, 6, shards, unit_of.get, **options)
    made = setup(stage, spec, 6, shards, unit_of.get, recompute=True, recompute_interval=interval, **options)
    compare(plain, made, interval)
    for actions in (made.lists.step(), made.lists.step(skipped=True)):
        plan = plan_memory(actions, made.geometry)
        assert plan.points[-1].live == plan.at_rest


@pytest.mark.parametrize("stage", STRATEGIES)
def test_traffic_is_the_same(stage):
    for spec, interval, accumulation in product((FIVE, tied()), (1, 2), (1, 2)):
        sent = [Counter((each.op, each.action.unit, each.nbytes) for each in plan_traffic(*step(
            stage, spec, 4, accumulation=accumulation, **options)))
            for options in ({}, {"recompute": True, "recompute_interval": interval})]
        assert sent[0] == sent[1]


@settings(max_examples=40, deadline=None)
@given(spec=models(), limit=st.integers(1, 3), interval=st.integers(1, 3),
       order=st.permutations([lambda a: backward_prefetch(a, 2), lambda a: forward_prefetch(a, 1), keep_last_unit]))
def test_other_passes_behind_it_in_any_order_and_twice(spec, limit, interval, order):
    actions, geometry = step("3", spec, 4, accumulation=2, recompute=True, recompute_interval=interval)
    segments = geometry.wrapping.segments
    for number, change in enumerate([*order, *order]):
        actions = change(actions)
        check(actions, geometry)
        limited = limit_all_gathers(actions, limit, segments)
        check(limited, geometry, limit)
        assert limit_all_gathers(limited, limit, segments) == limited, number
        assert recompute(limited, segments, interval) == limited
