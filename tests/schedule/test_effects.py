"""What actions do to values, by hand; what every reader makes of it; and that no reader skips what it does not know."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import pytest

from mpizero.layout import Axis, Geometry, wrap
from mpizero.layout.placement import REPLICATED, SHARDED
from mpizero.planner import links, plan_memory, plan_traffic
from mpizero.planner.costs import Costs
from mpizero.planner.seconds import loads
from mpizero.planner.tiers import OFFLOADS, plan_tiers
from mpizero.planner.timeline import simulate
from mpizero.schedule import STRATEGIES, UnknownAction, effect_of, flow, show, validate
from mpizero.schedule import values as v
from mpizero.schedule.actions import (
    Agree, AllGatherParam, AllReduceGrad, AllReduceShard, Backward, Forward, LoadBatch, Loss, OptimStep, Phase,
    ReduceScatterGrad, Unshard,
)
from mpizero.schedule.effect import Send, Sum, Work
from mpizero.schedule.flow import Became, Freed, Made
from mpizero.schedule.places import kept_params, resting
from tests.schedule.toys import chain, setup, step, tied

TOYS = [(stage, spec, shards, accumulation, no_sync)
        for stage in STRATEGIES for spec in (chain(), tied()) for shards in (1, 2, 4)
        for accumulation, no_sync in ((1, False), (3, False), (3, True))]


def toy(stage, spec, shards, accumulation, no_sync):
    return setup(stage, spec, 4, shards, accumulation=accumulation, no_sync=no_sync)


# -- values that come and go ------------------------------------------------------------------------------------------


def told(actions, geometry):
    """`+` for what comes, `-` for what goes, `>` for what changes its name; without marks, and values without their
    microbatch 0."""
    signs = {Made: "+{}", Freed: "-{}", Became: "{}>{}"}

    def word(change):
        return signs[type(change)].format(*(str(value).replace(", mb=0", "") for value in change))

    return [f"{show(action)}: {' '.join(map(word, changes))}"
            for action, _, changes in flow(actions, geometry) if not isinstance(action, Phase)]


COMPUTED = ["LoadBatch(mb=0): +x[0] +targets[mb=0]",
            "Forward(0, mb=0): +x[1] +saved[0] -x[0]", "Forward(1, mb=0): +x[2] +saved[1] -x[1]",
            "Loss(mb=0): +saved[2] -x[2] -targets[mb=0]", "LossBackward(mb=0): +dy[1] -saved[2]",
            "Backward(1, mb=0): +dy[0] +grad[1] -saved[1] -dy[1]", "Backward(0, mb=0): +grad[0] -saved[0] -dy[0]"]
FREED = ["FreeGrad(0): -reduced[0]", "FreeGrad(1): -reduced[1]"]
AGREED = "Agree(): "
UPDATED = [f"OptimStep({unit}): +grad_fp32[{unit}] -grad_fp32[{unit}]" for unit in (0, 1)]


def test_data_parallel_by_hand():
    assert told(*step("0", chain((5, 7)), 4)) == [
        *COMPUTED[:-1], "AllReduceGrad(1, replicate): grad[1]>reduced[1]", COMPUTED[-1],
        "AllReduceGrad(0, replicate): grad[0]>reduced[0]", AGREED, *UPDATED, *FREED]


def test_stage_1_by_hand():
    gathered = [line for unit in (0, 1) for line in (
        f"OptimStep({unit}): +grad_fp32[{unit}] whole[{unit}]>part[{unit}] -grad_fp32[{unit}]",
        f"AllGatherParam({unit}): part[{unit}]>whole[{unit}]")]
    assert told(*step("1", chain((5, 7)), 4)) == [
        *COMPUTED, "ReduceScatterGrad(1): +reduced[1] -grad[1]", "ReduceScatterGrad(0): +reduced[0] -grad[0]",
        AGREED, *gathered, *FREED]


def test_stage_3_by_hand():
    def around(unit, *inside):
        return [f"Unshard({unit}): +whole[{unit}]", *inside, f"Reshard({unit}): -whole[{unit}]"]

    assert told(*step("3", chain((5, 7)), 4)) == [
        COMPUTED[0], *around(0, COMPUTED[1]), *around(1, COMPUTED[2]), *COMPUTED[3:5],
        *around(1, COMPUTED[5]), "ReduceScatterGrad(1): +reduced[1] -grad[1]",
        *around(0, COMPUTED[6]), "ReduceScatterGrad(0): +reduced[0] -grad[0]", AGREED, *UPDATED, *FREED]


def test_a_second_microbatch_adds_to_what_is_there():
    def of(stage, name):
        lines = told(*step(stage, chain((5, 7)), 4, accumulation=2, no_sync=stage == "1"))
        return [line for line in lines if line.startswith(name)]

    assert of("2", "ReduceScatterGrad(0)") == ["ReduceScatterGrad(0): +reduced[0] -grad[0]",
                                               "ReduceScatterGrad(0): -grad[0]"]
    assert of("0", "AllReduceGrad(0") == ["AllReduceGrad(0, replicate): grad[0]>reduced[0]",
                                          "AllReduceGrad(0, replicate): -grad[0]"]
    assert [line.count("+grad") for line in of("1", "Backward(0")] == [1, 0]


def test_an_evaluation_saves_nothing():
    made = setup("2", chain((5, 7)), 4)
    assert told(made.lists.evaluate, made.geometry) == [
        COMPUTED[0], "Forward(0, mb=0, save=nothing): +x[1] -x[0]", "Forward(1, mb=0, save=nothing): +x[2] -x[1]",
        "Loss(mb=0, save=False): -x[2] -targets[mb=0]"]


@pytest.mark.parametrize("toy_", TOYS, ids=lambda toy_: "-".join(map(str, (toy_[0], *toy_[2:]))))
def test_after_a_step_there_is_what_rests(toy_):
    made = toy(*toy_)
    for actions in (made.lists.step(), made.lists.step(skipped=True), made.lists.evaluate):
        there = set(resting(made.geometry))
        for _, _, changes in flow(actions, made.geometry):
            for change in changes:
                if isinstance(change, Made):
                    assert change.value not in there
                    there.add(change.value)
                else:
                    there.remove(change.value)
                    there |= {change.new} if isinstance(change, Became) else set()
        assert there == resting(made.geometry)


# -- what is read, summed, sent and worked on -------------------------------------------------------------------------


def geometry_of(stage, spec=None):
    return setup(stage, spec or tied(), 4, 2).geometry


def test_what_is_read():
    sharded, whole = geometry_of("3"), geometry_of("2")
    assert effect_of(Unshard(1), sharded).reads == (v.shard(1),)
    for geometry in (sharded, whole):  # the head reads its own unit and the tied one
        assert effect_of(Forward(2, 1), geometry).reads == (v.whole(2), v.whole(0), v.x(2, 1))
        assert effect_of(Backward(2, 1), geometry).reads == (v.whole(2), v.whole(0), v.saved(2, 1), v.dy(2, 1))
    assert effect_of(Loss(1), whole).reads == (v.x(3, 1), v.targets(1))
    assert set(effect_of(OptimStep(1), whole).reads) == {v.reduced(1), v.states(1)}
    assert (kept_params(1, sharded), kept_params(1, whole)) == (v.shard(1), v.whole(1))


def test_what_is_summed_agreed_on_and_updated():
    geometry = geometry_of("2")
    grad, reduced = v.grad(1), v.reduced(1)
    assert effect_of(ReduceScatterGrad(1), geometry).sums == (Sum(grad, reduced, Axis.SHARD, SHARDED),)
    assert effect_of(AllReduceGrad(1, Axis.REPLICATE), geometry).sums == (
        Sum(grad, reduced, Axis.REPLICATE, REPLICATED),)
    assert effect_of(AllReduceShard(1), geometry).sums == (Sum(reduced, reduced, Axis.REPLICATE, SHARDED),)
    update, gather, whole = effect_of(OptimStep(1), geometry), effect_of(AllGatherParam(1), geometry), v.whole(1)
    assert (update.updates, update.becomes, gather.updates) == (1, ((whole, v.part(1)),), None)
    assert (gather.reads, gather.becomes) == ((v.part(1),), ((v.part(1), whole),))
    assert effect_of(OptimStep(1), geometry_of("3")).becomes == ()
    agree = effect_of(Agree(), geometry)
    assert agree.agrees and agree.reads == (v.reduced(0), v.reduced(1), v.reduced(2)) and agree.sends is agree.work


@pytest.mark.parametrize("action, send, work", [
    (Unshard(1), Send("all_gather", 1, REPLICATED, Axis.SHARD), Work("all_gather", 1)),
    (AllGatherParam(1), Send("all_gather", 1, REPLICATED, Axis.SHARD), Work("all_gather", 1)),
    (ReduceScatterGrad(1), Send("reduce_scatter", 1, REPLICATED, Axis.SHARD), Work("reduce_scatter", 1)),
    (AllReduceGrad(1, Axis.REPLICATE), Send("all_reduce", 1, REPLICATED, Axis.REPLICATE), Work("all_reduce", 1)),
    (AllReduceShard(1), Send("all_reduce", 1, SHARDED, Axis.REPLICATE), Work("all_reduce_shard", 1)),
    (Forward(1, 0), None, Work("forward", 1)),
    (Backward(1, 0), None, Work("backward", 1)),
    (OptimStep(1), None, Work("optim_step", 1)),
    (LoadBatch(0), None, None), (Phase("update"), None, None),
], ids=str)
def test_what_is_sent_and_worked_on(action, send, work):
    effect = effect_of(action, geometry_of("2"))
    assert (effect.sends, effect.work) == (send, work)


@pytest.mark.parametrize("stage", STRATEGIES)
def test_readers_see_each_action_once(stage):
    """Points of memory, places of moves, sends and events are those of the list."""
    made = setup(stage, tied(), 4, 2, accumulation=2)
    actions, geometry = made.lists.step(), made.geometry
    effects = [effect_of(action, geometry) for action in actions]
    assert [point.action for point in plan_memory(actions, geometry).points] == actions
    assert [sent.action for sent in plan_traffic(actions, geometry)] == [
        action for action, effect in zip(actions, effects, strict=True) if effect.sends]
    worked = [action for action, effect in zip(actions, effects, strict=True) if effect.work]
    assert Counter(event.action for event in simulate(actions, geometry, Costs()).events) == Counter(worked)
    for offload in OFFLOADS:
        if stage in offload.stages:
            made = setup(stage, tied(), 4, 2, accumulation=2, offload=offload.setting)
            actions, geometry = made.lists.step(), made.geometry
            tiers = plan_tiers(actions, geometry)
            assert len(tiers.device_points) == len(actions)
            assert all(actions[move.place] is move.action for move in tiers.moves)


# -- an action that nobody knows --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Novelty:
    """Looks like one of ours."""

    segment: int
    mb: int
    unit: int = 0


NEW = Novelty(1, 0)

READERS = {
    "show": lambda actions, geometry: [show(action) for action in actions],
    "effect_of": lambda actions, geometry: [effect_of(action, geometry) for action in actions],
    "flow": lambda actions, geometry: list(flow(actions, geometry)),
    "validate": validate,
    "memory": plan_memory,
    "traffic": plan_traffic,
    "links": lambda actions, geometry: links.split({0: plan_traffic(actions, geometry)}, geometry, 2),
    "tiers": plan_tiers,
    "timeline": lambda actions, geometry: simulate(actions, geometry, Costs()),
    "seconds": loads,
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("place", ["before", "after"])
def test_an_unknown_action_is_an_error(reader, place):
    actions, geometry = step("2", chain(), 4)
    READERS[reader](actions, geometry)
    position = actions.index(Backward(1, 0)) + (place == "after")
    with pytest.raises(UnknownAction, match=r"Novelty\(segment=1, mb=0, unit=0\) is no action of"):
        READERS[reader]([*actions[:position], NEW, *actions[position:]], geometry)


@pytest.mark.parametrize("not_one", [None, "Forward(0, 0)", Forward, 3])
def test_neither_is_anything_else(not_one):
    with pytest.raises(UnknownAction):
        effect_of(not_one, Geometry(wrap(chain(), 4), STRATEGIES["2"].placement))


def test_work_without_a_cost_is_an_error():
    with pytest.raises(AttributeError, match="dreaming"):
        Costs().of(Work("dreaming", 0))
