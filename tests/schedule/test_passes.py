"""The passes that move and drop gathers: by hand, on a grid, on random models; and what must not change."""

from __future__ import annotations

from collections import Counter
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpizero.memory.kinds import WORKSPACE
from mpizero.planner import plan_memory
from mpizero.schedule import STRATEGIES, IllegalSchedule, show
from mpizero.schedule.actions import (
    Agree, AwaitFree, Backward, Forward, Gather, LoadBatch, Loss, LossBackward, Phase, ReduceScatterGrad, Reshard,
    Unshard,
)
from mpizero.schedule.passes import backward_prefetch, forward_prefetch, keep_last_unit, limit_all_gathers
from tests.schedule.models import models
from tests.schedule.toys import chain, check, setup, step, tied

GATHERING = ("3", "3-broadcast")
LETTERS = {Unshard: "U", Forward: "F", Reshard: "R", Backward: "B", ReduceScatterGrad: "G"}
ENDS = LoadBatch | Loss | LossBackward | Agree  # of every microbatch, and of all, in the same places


def names(actions):
    """U2 F2 R2 B2 G2 for gather, forward, free, backward and reduction of unit or segment 2; `|` between forward and
    backward."""
    words = {Phase("forward"): "", Phase("backward"): "|", Phase("reduce"): ""}

    def word(action):
        number = action.segment if isinstance(action, Forward | Backward) else action.unit
        return LETTERS[type(action)] + str(number)

    shown = [words[action] if action in words else word(action) for action in actions
             if not isinstance(action, ENDS | AwaitFree)]
    return " ".join(shown).strip()


def gradients(spec, **options):
    """The accumulating part of a step at stage 3 on 4 ranks."""
    return setup("3", spec, 4, **options).lists.accumulate


@pytest.mark.parametrize("options, expected", [
    ({}, "U0 F0 R0 U1 F1 R1 U2 F2 R2 | U2 B2 R2 G2 U1 B1 R1 G1 U0 B0 R0 G0"),
    ({"backward_prefetch": 1}, "U0 F0 R0 U1 F1 R1 U2 F2 R2 | U2 U1 B2 R2 G2 U0 B1 R1 G1 B0 R0 G0"),
    ({"backward_prefetch": 2}, "U0 F0 R0 U1 F1 R1 U2 F2 R2 | U2 U1 U0 B2 R2 G2 B1 R1 G1 B0 R0 G0"),
    ({"forward_prefetch": 1}, "U0 U1 F0 R0 U2 F1 R1 F2 R2 | U2 B2 R2 G2 U1 B1 R1 G1 U0 B0 R0 G0"),
    ({"keep_last_unit": True}, "U0 F0 R0 U1 F1 R1 U2 F2 | B2 R2 G2 U1 B1 R1 G1 U0 B0 R0 G0"),
    ({"keep_last_unit": True, "backward_prefetch": 1, "forward_prefetch": 9},
     "U0 U1 U2 F0 R0 F1 R1 F2 | U1 B2 R2 G2 U0 B1 R1 G1 B0 R0 G0"),
    ({"forward_prefetch": 9, "backward_prefetch": 9, "limit_all_gathers": 2},
     "U0 U1 F0 R0 U2 F1 R1 F2 R2 | U2 U1 B2 R2 U0 G2 B1 R1 G1 B0 R0 G0"),
    ({"forward_prefetch": 9, "backward_prefetch": 9, "limit_all_gathers": 1},
     "U0 F0 R0 U1 F1 R1 U2 F2 R2 | U2 B2 R2 U1 G2 B1 R1 U0 G1 B0 R0 G0"),
])
def test_by_hand(options, expected):
    assert names(gradients(chain(), **options)) == expected


def test_a_tied_unit_is_not_gathered_while_it_still_is():
    """The head reads unit 0 again, so its gather cannot pass the Reshard after the first segment."""
    deep = {"forward_prefetch": 9, "backward_prefetch": 9}
    assert names(gradients(tied())) == (
        "U0 F0 R0 U1 F1 R1 U2 U0 F2 R2 R0 | U2 U0 B2 R2 R0 G2 U1 B1 R1 G1 U0 B0 R0 G0")
    assert names(gradients(tied(), **deep)) == (
        "U0 U1 U2 F0 R0 U0 F1 R1 F2 R2 R0 | U2 U0 U1 B2 R2 R0 G2 U0 B1 R1 G1 B0 R0 G0")
    assert names(gradients(tied(), keep_last_unit=True)) == (
        "U0 F0 R0 U1 F1 R1 U2 U0 F2 | B2 R2 R0 G2 U1 B1 R1 G1 U0 B0 R0 G0")


@pytest.mark.parametrize("options, expected", [
    ({}, "U0 F0 F1 R0 U1 F2 R1 | U1 B2 R1 G1 U0 B1 B0 R0 G0"),
    ({"keep_last_unit": True, "backward_prefetch": 2, "forward_prefetch": 2},
     "U0 U1 F0 F1 R0 F2 | U0 B2 R1 G1 B1 B0 R0 G0"),
    ({"limit_all_gathers": 1}, "U0 F0 F1 R0 U1 F2 R1 | U1 B2 R1 G1 U0 B1 B0 R0 G0"),
])
def test_a_unit_of_two_segments_is_gathered_once_for_both(options, expected):
    """In forward, and once more in backward."""
    first_two = [name for segment in chain().segments[:2] for name in segment.params]
    actions = gradients(chain(), policy=lambda name: "two" if name in first_two else "last", **options)
    assert names(actions) == expected


def test_one_unit_for_all_never_leaves_where_it_is_kept_at_the_turn():
    actions = gradients(chain((5, 7)), policy=lambda name: "all", keep_last_unit=True, backward_prefetch=2,
                        forward_prefetch=2)
    assert names(actions) == "U0 F0 F1 | B1 B0 R0 G0"


def test_gathers_stay_in_their_microbatch():
    """The first gather of a microbatch does not go into the backward of the one before."""
    actions = gradients(chain((5, 7)), accumulation=2, no_sync=True, backward_prefetch=3, forward_prefetch=3,
                        keep_last_unit=True)
    second = actions.index(Phase("forward", 1))
    assert Counter(actions[:second])[Unshard(0)] == Counter(actions[second:])[Unshard(0)] == 2
    assert actions[second + 1:second + 5] == [LoadBatch(1), Unshard(0), Unshard(1), Forward(0, 1)]


def test_evaluation_prefetches_and_frees_its_last_unit():
    actions = setup("3", chain((5, 7)), 4, forward_prefetch=1, keep_last_unit=True).lists.evaluate
    assert [show(action) for action in actions[1:]] == [
        "LoadBatch(mb=0)", "Unshard(0)", "Unshard(1)", "Forward(0, mb=0, save=nothing)", "Reshard(0)",
        "Forward(1, mb=0, save=nothing)", "Reshard(1)", "Loss(mb=0, save=False)"]


# -- in all cases ------------------------------------------------------------------------------------------------------

OPTIONS = [dict(backward_prefetch=b, forward_prefetch=f, keep_last_unit=keep, limit_all_gathers=limit)
           for b, f, keep, limit in product((0, 2), (0, 2), (False, True), (None, 1, 2))]


def without(kinds, actions):
    return [action for action in actions if not isinstance(action, kinds)]


def gathers(actions):
    return [action for action in actions if isinstance(action, Gather)]


def most_gathered(actions):
    gathered = [0]
    for action in actions:
        gathered.append(gathered[-1] + isinstance(action, Gather) - isinstance(action, Reshard))
    return max(gathered)


def compare(plain, made):
    """What passes must not change between two set-ups, and the bound on gathered units. `set_up` has validated both."""
    segments, settings = made.wrapping.segments, made.settings
    widest, limit = max(len(use.units) for use in segments), settings.limit_all_gathers
    ahead = max(settings.backward_prefetch, settings.forward_prefetch)
    for before, after in ((plain.lists.step(), made.lists.step()), (plain.lists.evaluate, made.lists.evaluate)):
        moved = Gather | Reshard | AwaitFree
        assert without(moved, before) == without(moved, after)
        after = without(AwaitFree, after)
        lost, new = Counter(before) - Counter(after), Counter(after) - Counter(before)
        turns = sum(isinstance(action, Phase) and action.name == "backward" for action in before)
        kept = turns * len(segments[-1].units) if settings.keep_last_unit and settings.stage in GATHERING else 0
        assert not new and lost.total() == 2 * kept
        assert kept or gathers(before) == gathers(after)
        assert most_gathered(after) <= (1 + ahead) * widest + len(segments[-1].units)
        assert limit is None or most_gathered(after) <= max(limit, widest)
    assert settings.keep_last_unit or settings.stage in GATHERING or made.lists == plain.lists


@pytest.mark.parametrize("stage", STRATEGIES)
def test_on_the_grid(stage):
    for spec, policy, shards in product((chain(), tied()), (None, lambda name: "all"), (1, 2, 4)):
        for accumulation, no_sync in ((1, False), (2, False), (2, True)):
            same = {"accumulation": accumulation, "no_sync": no_sync}
            plain = setup(stage, spec, 4, shards, policy, **same)
            for options in OPTIONS if stage in GATHERING else OPTIONS[-1:]:
                compare(plain, setup(stage, spec, 4, shards, policy, **same, **options))


PASSES = st.fixed_dictionaries({
    "backward_prefetch": st.integers(0, 7), "forward_prefetch": st.integers(0, 7), "keep_last_unit": st.booleans(),
    "limit_all_gathers": st.none() | st.integers(1, 4)})


@settings(max_examples=150, deadline=None)
@given(spec=models(), stage=st.just("3") | st.sampled_from(list(STRATEGIES)), shards=st.sampled_from([1, 2, 3, 6]),
       options=PASSES, accumulation=st.integers(1, 3), no_sync=st.booleans(), together=st.integers(1, 4))
def test_on_any_model(spec, stage, shards, options, accumulation, no_sync, together):
    """together: parameters that make a unit, so units cut across segments. A step's memory ends where it began."""
    unit_of = {param.name: f"unit{i // together}" for i, param in enumerate(spec.params)}
    same = {"accumulation": accumulation, "no_sync": no_sync}
    plain = setup(stage, spec, 6, shards, unit_of.get, **same)
    made = setup(stage, spec, 6, shards, unit_of.get, **same, **options)
    compare(plain, made)
    for actions in (made.lists.step(), made.lists.step(skipped=True), made.lists.evaluate):
        plan = plan_memory(actions, made.geometry)
        assert plan.points[-1].live == plan.at_rest | {WORKSPACE: 0}


@settings(max_examples=40, deadline=None)
@given(spec=models(), limit=st.integers(1, 3),
       order=st.permutations([lambda a: backward_prefetch(a, 2), lambda a: forward_prefetch(a, 1), keep_last_unit]))
def test_passes_in_any_order_and_twice(spec, limit, order):
    actions, geometry = step("3", spec, 4, accumulation=2)
    segments = geometry.wrapping.segments
    for number, change in enumerate([*order, *order]):
        actions = change(actions)
        check(actions, geometry)
        limited = limit_all_gathers(actions, limit, segments)
        check(limited, geometry, limit)
        assert limit_all_gathers(limited, limit, segments) == limited, number


def test_every_backward_but_the_first_finds_its_parameters_on_their_way():
    """What prefetch is for: on a chain, the next gather is issued before the computation and the reduction that it
    overlaps."""
    actions = gradients(chain((1,) * 6), accumulation=2, backward_prefetch=1)
    for mb in range(2):
        begin = actions.index(Phase("backward", mb))
        for unit in range(5):
            expected = (Unshard(unit), Backward(unit + 1, mb), ReduceScatterGrad(unit + 1))
            places = [actions.index(action, begin) for action in expected]
            assert places == sorted(places)


# -- the validator can refuse what a wrong pass would make -------------------------------------------------------------


def swapped(first, second, after):
    """A step in which, after `after`, `second` goes before `first`."""
    actions, geometry = step("3", chain(), 4)
    start = actions.index(after)
    del actions[actions.index(second, start)]
    actions.insert(actions.index(first, start), second)
    return actions, geometry


@pytest.mark.parametrize("first, second, after, words", [
    (Reshard(1), Unshard(1), Forward(1, 0), r"Unshard\(1\): it makes whole\[1\], which is there already"),
    (Backward(2, 0), Reshard(2), Phase("backward"), r"Backward\(2, mb=0\): it reads whole\[2\], which is not there"),
])
def test_wrong_order(first, second, after, words):
    with pytest.raises(IllegalSchedule, match=words):
        check(*swapped(first, second, after))


def test_more_gathered_than_the_limit():
    actions, geometry = step("3", chain(), 4)
    ahead = backward_prefetch(actions, 1)
    check(actions, geometry, limit=1)
    check(ahead, geometry, limit=2)
    with pytest.raises(IllegalSchedule, match=r"Backward\(2, mb=0\): 2 units were gathered at once: above the limit"):
        check(ahead, geometry, limit=1)
