"""Buckets: every element is reduced once, in order, whatever the size; the validator refuses what is not so."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpizero.errors import ConfigError
from mpizero.layout import Axis
from mpizero.machine import Machine
from mpizero.planner import plan_traffic
from mpizero.planner.costs import Costs, machine_costs
from mpizero.planner.links import route
from mpizero.planner.model import mlp
from mpizero.schedule import IllegalSchedule, StepSettings, set_up, show
from mpizero.schedule.actions import (
    AllReduceBucket, AllReduceShard, Backward, DownloadGrad, Phase, Piece, ReduceScatterBucket, ReduceScatterGrad,
)
from mpizero.schedule.effects import effect_of
from tests.schedule.models import models
from tests.schedule.toys import chain, check, mlp5, setup, step

FOUR = chain((5, 7, 3, 4))  # on two ranks chunks of 3, 4, 2 and 2 elements


def buckets(actions):
    return [action for action in actions if isinstance(action, ReduceScatterBucket | AllReduceBucket)]


def shown(actions):
    return [show(action) for action in buckets(actions)]


@pytest.mark.parametrize("size, expected", [
    ("4B", ["3[0:1]", "3[1:2]", "2[0:1]", "2[1:2]", *[f"1[{i}:{i + 1}]" for i in range(4)],
            *[f"0[{i}:{i + 1}]" for i in range(3)]]),
    ("12B", ["3 2[0:1]", "2[1:2] 1[0:2]", "1[2:4]", "0"]),  # what is left of a unit larger than a bucket does not wait
    ("16B", ["3 2", "1", "0"]),
    ("20B", ["3 2 1[0:1]", "1[1:4] 0[0:2]", "0[2:3]"]),
    ("all", ["3 2 1 0"])])
def test_small_units_share_a_bucket_and_large_ones_are_cut(size, expected):
    actions, _ = step("2", FOUR, 2, bucket_size=size)
    assert shown(actions) == [f"ReduceScatterBucket({pieces})" for pieces in expected]


def test_buckets_end_with_backward_or_with_what_follows_it():
    for stage, mark in (("2", "backward"), ("3", "backward"), ("1", "reduce")):
        actions, _ = step(stage, FOUR, 2, accumulation=2, bucket_size="all")
        phases, phase = [], ""
        for action in actions:
            phase = action.name if isinstance(action, Phase) else phase
            phases += [phase] if buckets([action]) else []
        assert phases == [mark, mark], stage


@given(models(), st.sampled_from(["0", "1", "1-allreduce", "2", "3"]), st.integers(1, 4), st.integers(1, 2),
       st.integers(1, 40), st.booleans())
def test_every_element_of_every_unit_once(spec, stage, ranks, accumulation, elements, overlap):
    made = setup(stage, spec, ranks, accumulation=accumulation, bucket_size=f"{2 * ranks * elements}B", overlap=overlap)
    found = {unit: 0 for unit in made.wrapping.trained}
    for bucket in buckets(getattr(action, "action", action) for action in made.lists.accumulate
                          if not type(action).__name__ == "End"):
        assert 0 < sum(piece.size for piece in bucket.pieces) <= elements
        for piece in bucket.pieces:
            found[piece.unit] += piece.size * ranks
    assert found == {unit: accumulation * made.wrapping.units[unit].padded_numel for unit in made.wrapping.trained}


def test_across_replicas_a_unit_is_summed_once_its_last_piece_is():
    made = setup("2", FOUR, 4, 2, bucket_size="all", offload="optimizer=cpu")
    last = made.lists.accumulate.index(buckets(made.lists.accumulate)[0])
    assert made.lists.accumulate[last + 1:][:8] == [each for unit in (3, 2, 1, 0)
                                                    for each in (AllReduceShard(unit), DownloadGrad(unit))]


@pytest.mark.parametrize("change, words", [
    (lambda bucket: [], "of grad[2] the piece at 0 comes next, not that at 1"),
    (lambda bucket: [replace(bucket, pieces=bucket.pieces[1:])], "Agree(): it reads reduced[3], which is not there"),
    (lambda bucket: [bucket, bucket], "it reads grad[3], which is not there"),
    (lambda bucket: [replace(bucket, pieces=bucket.pieces[:1])],
     "of grad[2] the piece at 0 comes next, not that at 1"),
    (lambda bucket: [replace(bucket, pieces=bucket.pieces[::-1] + bucket.pieces[1:])],
     "of grad[2] the piece at 1 comes next, not that at 0"),
    (lambda bucket: [replace(bucket, pieces=(bucket.pieces[0], Piece(2, 0, 1, 9)))],
     "grad[2] has chunks of 2 elements, and no piece 2[0:1]"),
    (lambda bucket: [bucket, ReduceScatterGrad(2)], "a piece of grad[2] is summed already, in another way"),
    (lambda bucket: [bucket, AllReduceShard(2)], "reduced[2] lacks pieces that are not summed yet"),
    (lambda bucket: [replace(bucket, axis=Axis.REPLICATE)], "units are divided along shard, not along replicate"),
])
def test_the_validator_refuses(change, words):
    actions, geometry = step("2", FOUR, 2, bucket_size="12B")
    place = actions.index(buckets(actions)[0])
    check(actions, geometry)
    with pytest.raises(IllegalSchedule) as error:
        check([*actions[:place], *change(actions[place]), *actions[place + 1:]], geometry)
    assert words in str(error.value)


def test_nothing_is_added_to_a_gradient_of_which_a_piece_is_summed():
    actions, geometry = step("1", FOUR, 2, accumulation=2, bucket_size="12B", no_sync=True)
    first, again = actions.index(buckets(actions)[0]), actions.index(Backward(2, 1))
    del actions[first]
    actions.insert(again, ReduceScatterBucket((Piece(3, 0, 2, 2), Piece(2, 0, 1, 2))))
    with pytest.raises(IllegalSchedule, match=r"adds to grad\[2\], of which a piece is summed already"):
        check(actions, geometry)


@pytest.mark.parametrize("options, words", [
    ({"bucket_size": "6B"}, "has no room for an element of each of 4 ranks: use at least 8 B"),
    ({"bucket_size": "every"}, "'every' is not a size"),
    ({"bucket_size": "1MiB", "stage": "3-broadcast"}, "has no meaning at `stage` 3-broadcast"),
    ({"bucket_size": "8B"}, "into more than 4,096 buckets")])
def test_what_cannot_be(options, words):
    with pytest.raises(ConfigError) as error:
        set_up(chain((20000, 7)), 4, StepSettings(**options))
    assert words in str(error.value)


def test_messages_and_bytes_are_those_of_the_buckets():
    """Five units: five rings of n - 1 messages, or one; the same bytes."""
    alone, together = (plan_traffic(buckets_or_units, geometry) for buckets_or_units, geometry in
                       (step("2", mlp5(), 4), step("2", mlp5(), 4, bucket_size="all")))
    scattered = [[sent for sent in sends if sent.op == "reduce_scatter"] for sends in (alone, together)]
    assert [sum(sent.rounds for sent in sends) for sends in scattered] == [15, 3]
    assert len({sum(sent.nbytes for sent in sends) for sends in scattered}) == 1


def test_a_bucket_costs_its_share_of_each_unit_and_begins_once():
    made = setup("2", FOUR, 2, bucket_size="12B")
    costs = Costs(reduce_scatter=[1.0, 2.0, 3.0, 4.0], reduce_scatter_start=0.5)
    work = [effect_of(action, made.geometry).work for action in buckets(made.lists.accumulate)]
    assert [costs.of(each) for each in work] == [0.5 + 3.5 + 1.25, 0.5 + 1.25 + 0.75, 0.5 + 0.75, 1.0]
    model, measured = mlp(), Costs(reduce_scatter=1.0, buckets={"bucket 0": 7.0})
    assert measured.of(work[-1]) == 7.0
    made = set_up(model.spec, 4, StepSettings("2", bucket_size="all"))
    costs, machine = machine_costs(model, made.geometry, Machine(), 16, 2), Machine()
    (bucket,) = buckets(made.lists.accumulate)
    (sent,) = plan_traffic([bucket], made.geometry)
    assert costs.of(effect_of(bucket, made.geometry).work) == pytest.approx(
        machine.wire_seconds(*sent.busiest, route(made.geometry.mesh, sent.axis, 2)), rel=1e-12)
