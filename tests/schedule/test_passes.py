"""The passes that move and drop gathers: lists written out by hand, legality on a grid and on random models, and what must not change."""

from __future__ import annotations

from collections import Counter
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpizero.layout import ModelSpec, ParamSpec, StageSpec, wrap
from mpizero.schedule import STRATEGIES, IllegalSchedule, show, training_lists, validate
from mpizero.schedule.actions import Backward, Forward, Phase, ReduceScatterGrad, Reshard, Unshard
from mpizero.schedule.passes import backward_prefetch, forward_prefetch, keep_last_unit, limit_all_gathers
from tests.schedule.toys import chain, step, tied


LETTERS = {Unshard: "U", Forward: "F", Reshard: "R", Backward: "B", ReduceScatterGrad: "G"}


def names(actions):
    """U2 F2 R2 B2 G2 for gather, forward, free, backward and reduction of unit or stage 2; `|` between forward and backward."""
    words = {Phase("forward"): "", Phase("backward"): "|", Phase("reduce"): ""}

    def word(action):
        return LETTERS[type(action)] + str(action.stage if isinstance(action, Forward | Backward) else action.unit)

    return " ".join(words[action] if action in words else word(action) for action in actions).strip()


def gradients(spec, **options):
    """The accumulating part of a step at stage 3 on 4 ranks."""
    wrapping = wrap(spec, 4)
    return training_lists(STRATEGIES["3"], wrapping, 1, 4, **options).accumulate, wrapping


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
    assert names(gradients(chain(), **options)[0]) == expected


def test_a_tied_unit_is_not_gathered_while_it_still_is():
    """The head reads unit 0 again, so its gather cannot pass the Reshard after the first stage."""
    deep = {"forward_prefetch": 9, "backward_prefetch": 9}
    assert names(gradients(tied())[0]) == "U0 F0 R0 U1 F1 R1 U2 U0 F2 R2 R0 | U2 U0 B2 R2 R0 G2 U1 B1 R1 G1 U0 B0 R0 G0"
    assert names(gradients(tied(), **deep)[0]) == "U0 U1 U2 F0 R0 U0 F1 R1 F2 R2 R0 | U2 U0 U1 B2 R2 R0 G2 U0 B1 R1 G1 B0 R0 G0"
    assert names(gradients(tied(), keep_last_unit=True)[0]) == "U0 F0 R0 U1 F1 R1 U2 U0 F2 | B2 R2 R0 G2 U1 B1 R1 G1 U0 B0 R0 G0"


def test_one_unit_for_all_is_kept_at_the_turn_only():
    wrapping = wrap(chain((5, 7)), 4, lambda name: "all")
    lists = training_lists(STRATEGIES["3"], wrapping, 1, 4, keep_last_unit=True, backward_prefetch=2, forward_prefetch=2)
    assert names(lists.accumulate) == "U0 F0 R0 U0 F1 | B1 R0 U0 B0 R0 G0"


def test_gathers_stay_in_their_microbatch():
    """The first gather of a microbatch does not go into the backward of the one before."""
    actions, _ = gradients(chain((5, 7)), accumulation=2, no_sync=True, backward_prefetch=3, forward_prefetch=3, keep_last_unit=True)
    second = actions.index(Phase("forward", 1))
    assert Counter(actions[:second])[Unshard(0)] == Counter(actions[second:])[Unshard(0)] == 2
    assert actions[second + 1:second + 4] == [Unshard(0), Unshard(1), Forward(0, 1)]


def test_evaluation_prefetches_and_frees_its_last_unit():
    wrapping = wrap(chain((5, 7)), 4)
    actions = training_lists(STRATEGIES["3"], wrapping, 1, 4, forward_prefetch=1, keep_last_unit=True).evaluate
    assert [show(action) for action in actions[1:]] == ["Unshard(0)", "Unshard(1)", "Forward(0, mb=0)", "Reshard(0)", "Forward(1, mb=0)",
                                                        "Reshard(1)"]


# -- in all cases -------------------------------------------------------------------------------------------------------

OPTIONS = [dict(backward_prefetch=b, forward_prefetch=f, keep_last_unit=keep, limit_all_gathers=limit)
           for b, f, keep, limit in product((0, 2), (0, 2), (False, True), (None, 1, 2))]


def without(kinds, actions):
    return [action for action in actions if not isinstance(action, kinds)]


def gathers(actions):
    return [action for action in actions if isinstance(action, Unshard)]


def most_gathered(actions):
    gathered = [0]
    for action in actions:
        gathered.append(gathered[-1] + isinstance(action, Unshard) - isinstance(action, Reshard))
    return max(gathered)


def check(stage, spec, ranks, shards, accumulation, no_sync, policy, options):
    """`training_lists` validates; besides, what passes must not change, and the bound on gathered units."""
    strategy, wrapping, replicas = STRATEGIES[stage], wrap(spec, ranks, policy), ranks // shards
    sizes = {"accumulation": accumulation, "no_sync": no_sync}
    plain = training_lists(strategy, wrapping, replicas, shards, **sizes)
    lists = training_lists(strategy, wrapping, replicas, shards, **sizes, **options)
    for before, after in ((plain.step(), lists.step()), (plain.evaluate, lists.evaluate)):
        assert without(Unshard | Reshard, before) == without(Unshard | Reshard, after)
        lost, new = Counter(before) - Counter(after), Counter(after) - Counter(before)
        turns = sum(isinstance(action, Phase) and action.name == "backward" for action in before)
        kept = turns * len(wrapping.stages[-1].units) if options["keep_last_unit"] and stage == "3" else 0
        assert not new and lost.total() == 2 * kept
        assert kept or gathers(before) == gathers(after)
        widest = max(len(use.units) for use in wrapping.stages)
        ahead = max(options["backward_prefetch"], options["forward_prefetch"])
        assert most_gathered(after) <= (1 + ahead) * widest + len(wrapping.stages[-1].units)
        assert options["limit_all_gathers"] is None or most_gathered(after) <= max(options["limit_all_gathers"], widest)
    assert options["keep_last_unit"] or stage == "3" or lists == plain


@pytest.mark.parametrize("stage", STRATEGIES)
def test_on_the_grid(stage):
    for spec, accumulation, no_sync, policy in product((chain(), tied()), (1, 2), (False, True), (None, lambda name: "all")):
        for shards in [1] if stage == "0" else [1, 2, 4]:
            for options in OPTIONS if stage == "3" else OPTIONS[-1:]:
                check(stage, spec, 4, shards, accumulation, no_sync, policy, options)


@st.composite
def models(draw):
    """Parameters read by any stages, in any order, again and again; stages without any."""
    count = draw(st.integers(1, 5))
    reads = draw(st.lists(st.lists(st.integers(0, count - 1), max_size=3, unique=True), min_size=1, max_size=6))
    used = sorted({param for params in reads for param in params})
    return ModelSpec(tuple(ParamSpec(f"p{i}", (i + 1,)) for i in used),
                     tuple(StageSpec(f"s{i}", tuple(f"p{param}" for param in params)) for i, params in enumerate(reads)))


@settings(max_examples=100, deadline=None)
@given(spec=models(), accumulation=st.integers(1, 3), no_sync=st.booleans(), together=st.integers(1, 4), options=st.fixed_dictionaries({
    "backward_prefetch": st.integers(0, 7), "forward_prefetch": st.integers(0, 7), "keep_last_unit": st.booleans(),
    "limit_all_gathers": st.none() | st.integers(1, 4)}))
def test_on_any_model(spec, accumulation, no_sync, together, options):
    """together: parameters that make a unit, so units cut across stages."""
    unit_of = {param.name: f"unit{i // together}" for i, param in enumerate(spec.params)}
    check("3", spec, 6, 3, accumulation, no_sync, unit_of.get, options)


@settings(max_examples=40, deadline=None)
@given(spec=models(), order=st.permutations([lambda a: backward_prefetch(a, 2), lambda a: forward_prefetch(a, 1), keep_last_unit]),
       limit=st.integers(1, 3))
def test_passes_in_any_order_and_twice(spec, order, limit):
    actions, wrapping, replicas, shards = step("3", spec, 4, microbatches=2)
    for number, change in enumerate([*order, *order]):
        actions = change(actions)
        validate(actions, wrapping, STRATEGIES["3"].placement, replicas, shards)
        limited = limit_all_gathers(actions, limit, wrapping.stages)
        validate(limited, wrapping, STRATEGIES["3"].placement, replicas, shards, limit)
        assert limit_all_gathers(limited, limit, wrapping.stages) == limited, number


def test_every_backward_but_the_first_finds_its_parameters_on_their_way():
    """What prefetch is for: on a chain, the next gather is issued before the computation and the reduction that it overlaps."""
    actions, _ = gradients(chain((1,) * 6), accumulation=2, backward_prefetch=1)
    for mb in range(2):
        begin = actions.index(Phase("backward", mb))
        for stage in range(5):
            places = [actions.index(action, begin) for action in (Unshard(stage), Backward(stage + 1, mb), ReduceScatterGrad(stage + 1))]
            assert places == sorted(places)


# -- the validator can refuse what a wrong pass would make --------------------------------------------------------------


def swapped(first, second, after):
    """A step in which, after `after`, `second` goes before `first`."""
    actions, *rest = step("3", chain(), 4)
    start = actions.index(after)
    del actions[actions.index(second, start)]
    actions.insert(actions.index(first, start), second)
    return actions, *rest


@pytest.mark.parametrize("first, second, after, words", [
    (Reshard(1), Unshard(1), Forward(1, 0), "it is gathered already"),
    (Backward(2, 0), Reshard(2), Phase("backward"), "unit 2 is not gathered"),
])
def test_wrong_order(first, second, after, words):
    actions, wrapping, *mesh = swapped(first, second, after)
    with pytest.raises(IllegalSchedule, match=words):
        validate(actions, wrapping, STRATEGIES["3"].placement, *mesh)


def test_more_gathered_than_the_limit():
    actions, wrapping, *mesh = step("3", chain(), 4)
    ahead = backward_prefetch(actions, 1)
    validate(actions, wrapping, STRATEGIES["3"].placement, *mesh, limit=1)
    validate(ahead, wrapping, STRATEGIES["3"].placement, *mesh, limit=2)
    with pytest.raises(IllegalSchedule, match=r"Backward\(2, mb=0\): 2 units were gathered at once: above the limit"):
        validate(ahead, wrapping, STRATEGIES["3"].placement, *mesh, limit=1)
