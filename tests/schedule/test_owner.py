"""Stage 3 by owners: its list, its effects, and what the validator refuses."""

from __future__ import annotations

import pytest

from mpizero.errors import ConfigError
from mpizero.layout import OWNED, REPLICATED, SHARDED, Axis, Placement
from mpizero.schedule import effect_of
from mpizero.schedule import values as v
from mpizero.schedule.actions import (
    AllReduceShard, Begin, Broadcast, End, OptimStep, ReduceGrad, ReduceScatterGrad, Reshard, Unshard,
)
from mpizero.schedule.effect import Send, Sum, Work
from mpizero.schedule.places import kept_params
from tests.schedule.changes import exchanged, refused, without
from tests.schedule.toys import chain, step, tied

SAME = {Unshard: Broadcast, ReduceScatterGrad: ReduceGrad}
PASSES = [{}, {"backward_prefetch": 1, "forward_prefetch": 2}, {"keep_last_unit": True, "backward_prefetch": 9},
          {"forward_prefetch": 9, "backward_prefetch": 9, "limit_all_gathers": 2}]


def owned(action):
    """The same where units have owners."""
    if isinstance(action, Begin | End):
        return type(action)(owned(action.action))
    return SAME[type(action)](action.unit) if type(action) in SAME else action


@pytest.mark.parametrize("options", PASSES)
@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("spec, ranks, shards", [(chain(), 4, 4), (tied(), 4, 2), (chain(), 1, 1)])
def test_its_list_is_that_of_stage_3_with_other_collectives(options, overlap, spec, ranks, shards):
    """Under all passes, which so know no action by its name."""
    same = {"accumulation": 2, "overlap": overlap, **options}
    actions, _ = step("3", spec, ranks, shards, **same)
    assert step("3-broadcast", spec, ranks, shards, **same)[0] == list(map(owned, actions))


def test_effects():
    geometry = step("3-broadcast", chain(), 4, 2)[1]
    gather, reduce, across = (effect_of(action(1), geometry) for action in (Broadcast, ReduceGrad, AllReduceShard))
    assert (gather.reads, gather.makes) == ((v.own(1),), (v.whole(1),))
    assert (gather.sends, gather.work) == (Send("broadcast", 1, REPLICATED, Axis.SHARD), Work("broadcast", 1))
    assert (reduce.reads, reduce.adds, reduce.frees) == ((v.grad(1),), (v.reduced(1),), (v.grad(1),))
    assert reduce.sums == (Sum(v.grad(1), v.reduced(1), Axis.SHARD, OWNED),)
    assert (reduce.sends, reduce.work) == (Send("reduce", 1, REPLICATED, Axis.SHARD), Work("reduce", 1))
    assert across.sends == Send("all_reduce", 1, OWNED, Axis.REPLICATE)
    assert kept_params(1, geometry) == v.own(1)


def test_an_update_changes_what_the_owner_keeps():
    """So a broadcast that is under way while it changes is refused."""
    geometry = step("3-broadcast", chain(), 4)[1]
    assert v.own(1) in effect_of(OptimStep(1), geometry).touched
    assert effect_of(Broadcast(1), geometry).meets(effect_of(OptimStep(1), geometry))
    assert not effect_of(Broadcast(1), geometry).meets(effect_of(OptimStep(2), geometry))


@pytest.mark.parametrize("change, stage, words", [
    (exchanged(Broadcast(1), Unshard(1)), "3-broadcast", "Unshard(1): it reads shard[1], which is not there"),
    (exchanged(Unshard(1), Broadcast(1)), "3", "Broadcast(1): it reads own[1], which is not there"),
    (exchanged(ReduceGrad(1), ReduceScatterGrad(1)), "3-broadcast",
     "reduced[1] holds this rank's shard alone, and its optimizer updates the units that it owns"),
    (exchanged(ReduceScatterGrad(1), ReduceGrad(1)), "3",
     "reduced[1] holds the units that it owns alone, and its optimizer updates this rank's shard"),
    (exchanged(ReduceGrad(1), ReduceGrad(1, Axis.REPLICATE)), "3-broadcast", "units are divided along shard"),
    (exchanged(Broadcast(1), Broadcast(1, Axis.REPLICATE)), "3-broadcast", "units are divided along shard"),
    (without(ReduceGrad(1)), "3-broadcast", "Agree(): it reads reduced[1], which is not there"),
    (without(Reshard(1)), "3-broadcast", "it makes whole[1], which is there already"),
    (exchanged(Broadcast(1), Broadcast(2)), "3-broadcast", "it reads whole[1], which is not there"),
], ids=lambda value: value if isinstance(value, str) else "")
def test_what_the_validator_refuses(change, stage, words):
    refused(words, change, stage)


def test_sums_across_replicas_are_not_made_twice():
    def twice(actions):
        place = actions.index(AllReduceShard(1))
        return [*actions[:place], AllReduceShard(1), *actions[place:]]

    actions, _ = step("3-broadcast", chain(), 4, 2)
    assert actions.count(AllReduceShard(1)) == 1
    refused("reduced[1] is summed along replicate already", twice, "3-broadcast", shards=2)
    refused("along shard ranks hold different parts", exchanged(AllReduceShard(1), AllReduceShard(1, Axis.SHARD)),
            "3-broadcast", shards=2)


@pytest.mark.parametrize("kept", [(OWNED, SHARDED, SHARDED), (REPLICATED, OWNED, OWNED), (OWNED, OWNED, REPLICATED)])
def test_an_owner_owns_all(kept):
    with pytest.raises(ConfigError):
        Placement(*kept)
    assert Placement(OWNED, OWNED, OWNED).params is OWNED
