"""Tensor parallel ranks in the list: where they sum, what that sends, and that no list is legal without."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from mpizero.errors import ConfigError
from mpizero.layout import Axis, ModelSpec, freeze
from mpizero.layout.models import GPTConfig, MLPSizes, gpt_spec, mlp_spec
from mpizero.layout.tensor import TensorPlace
from mpizero.planner import plan_traffic, sent_between
from mpizero.planner.links import leaving_bytes
from mpizero.schedule import STRATEGIES, IllegalSchedule, StepSettings, set_up, validate
from mpizero.schedule.actions import (
    AllGatherLoss, AllReduceActivation, AllReduceInputGrad, AllReduceShard, GatherKept, PartitionKept, Recompute,
)

CONFIG = GPTConfig(layers=3, d_model=8, heads=4, context=4, vocab=12)
SHARES = AllReduceActivation | AllReduceInputGrad | GatherKept | AllGatherLoss


def made(size=2, ranks=4, spec=gpt_spec, config=CONFIG, **settings):
    model: ModelSpec = spec(config, place=TensorPlace(0, size))
    return model, set_up(model, ranks, StepSettings(tensor_size=size, **settings), dtype="float32")


def shares(setup):
    return Counter(type(action) for action in setup.lists.step() if isinstance(action, SHARES))


def test_two_sums_a_block_each_way():
    """Megatron-LM (arXiv:1909.08053), fig. 4; and one of the embedding, one of the head's input."""
    _, setup = made()
    assert shares(setup) == {AllReduceActivation: 2 * 3 + 1, AllReduceInputGrad: 2 * 3 + 1, AllGatherLoss: 1}


def test_no_sum_of_a_gradient_that_nobody_reads():
    """That of the data, and of what frozen segments get."""
    def sums(spec, config, **settings):
        _, setup = made(spec=spec, config=config, **settings)
        return [action.segment for action in setup.lists.step() if isinstance(action, AllReduceInputGrad)]

    assert sums(mlp_spec, MLPSizes()) == [4, 2]
    assert sums(lambda config, place: freeze(mlp_spec(config, place=place), ["layers.[01].*"]), MLPSizes()) == [4]


def test_what_is_computed_again_is_summed_again_unless_nobody_reads_it():
    """One more a block: Megatron's would be two, so 12 seq hd bsz elements of a block (ZeRO, sec. 8), and ours 10."""
    _, setup = made(recompute=True)
    assert shares(setup)[AllReduceActivation] == 3 * 3 + 1
    summed = [action.segment for action in setup.lists.step()
              if isinstance(action, AllReduceActivation) and action.again]
    assert [setup.wrapping.segments[segment].name for segment in summed] == ["h.2.attn", "h.1.attn", "h.0.attn"]


def elements_of_blocks(model, setup):
    """What a rank sends of activations of blocks, T / (T - 1) times, in units of seq hd bsz."""
    table, whole = model.activations((2, 4), "float32"), 2 * 4 * 8 * 4
    blocks = [use.index for use in setup.wrapping.segments if use.name.startswith("h.")]
    sent = Counter()
    for send in plan_traffic(setup.lists.step(), setup.geometry, table):
        if isinstance(send.action, SHARES) and getattr(send.action, "segment", None) in blocks:
            sent[type(send.action)] += send.nbytes
    size = setup.geometry.tensors
    return {kind: nbytes * size / (size - 1) / whole / 3 for kind, nbytes in sent.items()}


@pytest.mark.parametrize("size", [2, 4])
def test_partitioned_activations_add_a_tenth(size):
    """ZeRO, sec. 8.1: an all-gather of a block's input, against Megatron's 12 elements: 8 %; of our 10 a tenth."""
    model, plain = made(size=size, recompute=True)
    _, parts = made(size=size, recompute=True, partition_activations=True)
    found = elements_of_blocks(model, plain)
    assert found == {AllReduceActivation: 6, AllReduceInputGrad: 4}
    assert elements_of_blocks(model, parts) == {**found, GatherKept: 1}
    assert shares(parts)[GatherKept] == 3 == sum(isinstance(a, PartitionKept) for a in parts.lists.step())


def test_copies_that_an_arena_keeps_are_cut_up_too():
    _, setup = made(recompute=True, partition_activations=True, allocator="arena")
    assert shares(setup)[GatherKept] == 3 == sum(isinstance(a, PartitionKept) for a in setup.lists.step())


@pytest.mark.parametrize("options", [{}, {"offload": "checkpoints=cpu"}, {"recompute_interval": 2, "accumulation": 2}],
                         ids=["plain", "offload", "interval"])
def test_an_input_is_whole_right_before_it_is_used(options):
    _, setup = made(recompute=True, partition_activations=True, **options)
    step = setup.lists.step()
    for place, action in enumerate(step):
        if isinstance(action, GatherKept):
            again = step[place + 1]
            assert isinstance(again, Recompute) and again.segment == action.segment


def test_inputs_that_ranks_have_parts_of_anyway_stay():
    _, setup = made(spec=lambda _, place: mlp_spec(place=place), recompute=True, partition_activations=True)
    parts = [action.segment for action in setup.lists.step() if isinstance(action, PartitionKept)]
    assert parts == [2]  # after an odd Linear, whose output is a sum; the first and the last one compute nothing again


# -- gradients --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("accumulation", [1, 2])
@pytest.mark.parametrize("stage", STRATEGIES)
def test_what_all_hold_is_summed_once(stage, accumulation):
    _, setup = made(stage=stage, accumulation=accumulation)
    sums = Counter(action.unit for action in setup.lists.step()
                   if isinstance(action, AllReduceShard) and action.axis is Axis.TENSOR)
    assert sums == {index: 1 for index, unit in enumerate(setup.wrapping.units) if unit.copied}


@pytest.mark.parametrize("kind, words", [
    (AllReduceShard, "is not summed along tensor"), (AllReduceActivation, "which is not there"),
    (AllReduceInputGrad, "which is not there"), (AllGatherLoss, "which is not there")])
def test_a_list_that_lacks_a_sum_is_illegal(kind, words):
    _, setup = made()
    step = setup.lists.step()
    place = next(i for i, action in enumerate(step) if isinstance(action, kind))
    with pytest.raises(IllegalSchedule, match=words):
        validate(step[:place] + step[place + 1:], setup.geometry)
    with pytest.raises(IllegalSchedule):
        validate(step[:place + 1] + step[place:], setup.geometry)


def test_parts_of_a_matrix_have_no_sum():
    _, setup = made()
    step = setup.lists.step()
    (index, _), *_ = ((i, unit) for i, unit in enumerate(setup.wrapping.units) if not unit.copied)
    end = next(i for i, action in enumerate(step) if type(action).__name__ == "Agree")
    with pytest.raises(IllegalSchedule, match="is summed along tensor already"):
        validate([*step[:end], AllReduceShard(index, Axis.TENSOR), *step[end:]], setup.geometry)


def test_offload_brings_it_back_once_for_both_axes():
    _, setup = made(ranks=8, stage="2", shard_size=2, accumulation=2, offload="optimizer=cpu")
    unit = next(i for i, unit in enumerate(setup.wrapping.units) if unit.copied)
    moves = [type(action).__name__ for action in setup.lists.step()
             if getattr(action, "unit", None) == unit and type(action).__name__ in (
                 "ReduceScatterGrad", "DownloadGrad", "UploadGrad", "AllReduceShard")]
    assert moves == ["ReduceScatterGrad", "DownloadGrad", "ReduceScatterGrad", "DownloadGrad", "UploadGrad",
                     "AllReduceShard", "AllReduceShard", "DownloadGrad"]


# -- what leaves a host -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size, per_host", [(2, 2), (2, 4), (4, 2), (2, 3)])
def test_bytes_that_leave_a_host(size, per_host):
    """Of the busiest host by its borders, or rank by rank; inside it nothing of `tensor` leaves."""
    model, setup = made(size=size, ranks=8, stage="3", shard_size=2)
    sends = plan_traffic(setup.lists.step(), setup.geometry, model.activations((2, 4), "float32"))
    mesh, hosts = setup.geometry.mesh, [str(rank // per_host) for rank in range(8)]
    by_rank = [sent_between(sends, mesh, hosts, rank) for rank in range(8)]
    by_host = [sum(each for each, where in zip(by_rank, hosts, strict=True) if where == host) for host in set(hosts)]
    assert leaving_bytes(sends, mesh, per_host) == max(by_host)
    inside = [send for send in sends if send.axis is Axis.TENSOR]
    assert {send.axis for send in sends if isinstance(send.action, SHARES)} == {Axis.TENSOR}
    if per_host % size == 0:
        assert all(sent_between(inside, mesh, hosts, rank) == 0 for rank in range(8))


# -- sentences --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [{"tensor_size": 2}, {"recompute": True}, {}])
def test_partitioned_activations_need_both(settings):
    with pytest.raises(ConfigError, match="add `recompute` and `tensor_size` 2 or more"):
        StepSettings(partition_activations=True, **settings)


def test_a_model_that_is_not_divided():
    with pytest.raises(ConfigError, match="`tensor_size` 2 needs a model of which every rank has a part"):
        set_up(gpt_spec(CONFIG), 4, StepSettings(tensor_size=2))
    with pytest.raises(ConfigError, match="must be at least 1"):
        replace(StepSettings(), tensor_size=0)
