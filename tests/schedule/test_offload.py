"""States that rest off the device: where the pass puts moves, and what the validator refuses."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpizero.errors import ConfigError
from mpizero.layout import DEVICE, HOST, NVME, Tiers, offload_text, parse_offload
from mpizero.schedule import STRATEGIES, StepSettings, show
from mpizero.schedule.actions import (
    AllGatherParam, AllReduceShard, Backward, Begin, BroadcastParam, DownloadGrad, DownloadKept, End, FetchParam,
    Forward, FreeGrad, Move, OptimStep, Recompute, UploadGrad, UploadKept, UploadParam,
)
from tests.schedule.changes import before, exchanged, refused, twice, without
from tests.schedule.models import models
from tests.schedule.toys import chain, setup, step

CPU, ALL = "optimizer=cpu", "params=cpu,optimizer=cpu"
FILES = "params=nvme,optimizer=nvme"


def moves(actions):
    """`DownloadGrad(1)`; the other actions that touch gradients and parameters by their names alone."""
    return [show(action) for action in actions
            if isinstance(action, Move | OptimStep | AllGatherParam | BroadcastParam | AllReduceShard | FreeGrad)]


@pytest.mark.parametrize("stage, options, expected", [
    ("2", {"offload": CPU}, "DownloadGrad(1) DownloadGrad(0) OptimStep(0) UploadParam(0) AllGatherParam(0) "
                            "OptimStep(1) UploadParam(1) AllGatherParam(1) FreeGrad(0) FreeGrad(1)"),
    ("0", {"offload": CPU}, "DownloadGrad(1) DownloadGrad(0) OptimStep(0) UploadParam(0) OptimStep(1) UploadParam(1) "
                            "FreeGrad(0) FreeGrad(1)"),
    # across replicas the sum over microbatches is summed, so it comes back for that
    ("2", {"offload": CPU, "shards": 2, "accumulation": 2},
     "DownloadGrad(1) DownloadGrad(0) "
     "DownloadGrad(1) UploadGrad(1) AllReduceShard(1) DownloadGrad(1) "
     "DownloadGrad(0) UploadGrad(0) AllReduceShard(0) DownloadGrad(0) "
     "OptimStep(0) UploadParam(0) AllGatherParam(0) OptimStep(1) UploadParam(1) AllGatherParam(1) "
     "FreeGrad(0) FreeGrad(1)"),
    ("2", {"offload": CPU, "shards": 2},
     "AllReduceShard(1) DownloadGrad(1) AllReduceShard(0) DownloadGrad(0) OptimStep(0) UploadParam(0) "
     "AllGatherParam(0) OptimStep(1) UploadParam(1) AllGatherParam(1) FreeGrad(0) FreeGrad(1)"),
    # parameters that rest there come up for each use, and an update writes them where they are
    ("3-broadcast", {"offload": FILES}, "FetchParam(0) BroadcastParam(0) FetchParam(1) BroadcastParam(1) FetchParam(1) "
                                        "BroadcastParam(1) DownloadGrad(1) FetchParam(0) BroadcastParam(0) "
                                        "DownloadGrad(0) OptimStep(0) OptimStep(1) FreeGrad(0) FreeGrad(1)"),
    ("3", {"offload": ALL}, "FetchParam(0) AllGatherParam(0) FetchParam(1) AllGatherParam(1) FetchParam(1) "
                            "AllGatherParam(1) DownloadGrad(1) FetchParam(0) AllGatherParam(0) DownloadGrad(0) "
                            "OptimStep(0) OptimStep(1) FreeGrad(0) FreeGrad(1)"),
])
def test_by_hand(stage, options, expected):
    assert moves(step(stage, chain((5, 7)), 4, **options)[0]) == expected.replace(") ", ")\n").split("\n")


def test_nothing_moves_where_all_rests_on_the_device():
    assert not any(isinstance(action, Move) for action in step("2", chain((5, 7)), 4)[0])


@pytest.mark.parametrize("action, stage, options, words", [
    (DownloadGrad(1), "2", {}, "Agree(): it reads offloaded[1], which is not there"),
    (UploadParam(1), "2", {}, "AllGatherParam(1): it reads part[1], which is not there"),
    (UploadParam(1), "3", {}, "at the end of the step: new[1] is still there"),
    (UploadParam(1), "0", {}, "at the end of the step: new[1] is still there"),
    (OptimStep(1), "2", {}, "UploadParam(1): it reads new[1], which is not there"),
    (FetchParam(1), "3", {"offload": ALL}, "AllGatherParam(1): it reads part[1], which is not there"),
    (AllGatherParam(1), "3", {"offload": ALL}, "Forward(1, mb=0): whole[1] is stale"),
    (BroadcastParam(1), "3-broadcast", {"offload": FILES}, "Forward(1, mb=0): whole[1] is stale"),
    (FreeGrad(1), "2", {}, "offloaded[1] is still there"),
    (UploadGrad(0), "2", {"shards": 2, "accumulation": 2}, "AllReduceShard(0): it reads reduced[0], which is not"),
])
def test_a_move_left_out(action, stage, options, words):
    refused(words, without(action), stage, **{"offload": CPU, **options})


@pytest.mark.parametrize("change, stage, words", [
    (twice(DownloadGrad(1)), "2", "it reads reduced[1], which is not there"),
    (twice(UploadParam(1)), "2", "it reads new[1], which is not there"),
    (exchanged(OptimStep(0), UploadParam(0)), "3", "it reads new[0], which is not there"),
    (before(FreeGrad(0), UploadParam(0)), "3", "it reads new[0], which is not there"),
])
def test_a_move_at_the_wrong_time(change, stage, words):
    refused(words, change, stage, offload=CPU)


def test_a_kept_input_leaves_at_once_and_comes_back_one_backward_ahead():
    actions = step("2", chain((5, 7, 3, 4)), 1, recompute=True, offload="checkpoints=cpu")[0]
    wanted = [show(action) for action in actions if isinstance(action, Forward | Backward | Recompute | Move)]
    assert wanted == [
        "Forward(0, mb=0)", "Forward(1, mb=0, save=input)", "DownloadKept(1, mb=0)",
        "Forward(2, mb=0, save=input)", "DownloadKept(2, mb=0)", "Forward(3, mb=0)",
        "UploadKept(2, mb=0)", "Backward(3, mb=0)", "Recompute(2, mb=0)",
        "UploadKept(1, mb=0)", "Backward(2, mb=0)", "Recompute(1, mb=0)", "Backward(1, mb=0)", "Backward(0, mb=0)"]


@pytest.mark.parametrize("action, words", [
    (DownloadKept(1, 0), "UploadKept(1, mb=0): it reads shelved[1, mb=0], which is not there"),
    (UploadKept(1, 0), "Recompute(1, mb=0): it reads kept[1, mb=0], which is not there"),
])
def test_a_kept_input_left_behind(action, words):
    refused(words, without(action), "2", chain((5, 7, 3, 4)), recompute=True, offload="checkpoints=cpu")


def test_kept_inputs_move_only_where_some_are_kept():
    with pytest.raises(ConfigError, match="add `recompute`, or leave checkpoints out"):
        StepSettings("2", offload="checkpoints=cpu")


@pytest.mark.parametrize("overlap", [False, True])
def test_moves_of_one_way_come_one_after_the_other(overlap):
    under_way = None
    for action in setup("2", chain((5, 7, 3)), 4, overlap=overlap, offload=CPU, accumulation=2).lists.step():
        if isinstance(action, Begin) and isinstance(action.action, DownloadGrad):
            assert under_way is None
            under_way = action.action
        if isinstance(action, End) and isinstance(action.action, DownloadGrad):
            assert under_way == action.action
            under_way = None
    assert under_way is None


def test_an_upload_goes_on_beside_the_next_update():
    update = setup("2", chain((5, 7)), 4, overlap=True, offload=CPU).lists.update
    assert [show(action) for action in update if not show(action).startswith("--")][:5] == [
        "OptimStep(0)", "Begin(UploadParam(0))", "OptimStep(1)", "End(UploadParam(0))", "Begin(AllGatherParam(0))"]


@pytest.mark.parametrize("depth, expected", [
    # unit 1 comes from its file beside forward 0, and is gathered when it has come
    (0, "Begin(FetchParam(1)) End(AllGatherParam(0)) Forward(0, mb=0) Reshard(0) End(FetchParam(1)) "
        "Begin(AllGatherParam(1)) Begin(FetchParam(2)) End(AllGatherParam(1)) Forward(1, mb=0)"),
    # unit 2 comes beside forward 0, and is gathered beside forward 1
    (1, "Begin(FetchParam(2)) End(AllGatherParam(0)) Forward(0, mb=0) Reshard(0) End(FetchParam(2)) "
        "Begin(AllGatherParam(2)) End(AllGatherParam(1)) Forward(1, mb=0)"),
])
def test_a_file_is_read_one_computation_before_its_gather(depth, expected):
    """From the host it comes right before; and under a limit nothing is in memory earlier than that says."""
    for found, options in ((True, {"offload": FILES}), (False, {"offload": ALL}),
                           (False, {"offload": FILES, "limit_all_gathers": 2})):
        actions = setup("3", chain((5, 7, 3)), 4, overlap=True, forward_prefetch=depth, **options).lists.accumulate
        assert (f" {expected} " in " ".join(map(show, actions))) is found


@settings(max_examples=60, deadline=None)
@given(spec=models(), stage=st.sampled_from(list(STRATEGIES)), shards=st.sampled_from([None, 2]), params=st.booleans(),
       depth=st.integers(0, 2), limit=st.none() | st.integers(1, 3), accumulation=st.integers(1, 3),
       no_sync=st.booleans(), overlap=st.booleans(), ranks=st.sampled_from([2, 4]), files=st.booleans())
def test_every_list_is_legal(spec, stage, shards, params, depth, limit, accumulation, no_sync, overlap, ranks, files):
    setup(stage, spec, ranks, None if stage == "0" else shards, accumulation=accumulation, no_sync=no_sync,
          overlap=overlap, backward_prefetch=depth, forward_prefetch=depth, limit_all_gathers=limit,
          offload=(ALL if params and stage.startswith("3") else CPU).replace("cpu", "nvme" if files else "cpu"))


@pytest.mark.parametrize("text, tiers", [
    (None, Tiers()), ("optimizer=cpu", Tiers(optimizer=HOST)), ("params=cpu,optimizer=cpu", Tiers(HOST, HOST)),
    ("optimizer=none", Tiers(DEVICE, DEVICE)), (FILES, Tiers(NVME, NVME)),
    ("optimizer=cpu,checkpoints=nvme", Tiers(DEVICE, HOST, NVME)),
])
def test_offload_is_read(text, tiers):
    assert parse_offload(text) == tiers
    assert parse_offload(offload_text(tiers)) == tiers


@pytest.mark.parametrize("text, words", [
    ("cpu", "cannot be read at 'cpu'"), ("optimizer=gpu", "cannot be read at 'optimizer=gpu'"),
    ("optimizer=cpu,optimizer=cpu", "each once"), ("params=cpu", "give optimizer= the same place"),
    ("weights=cpu", "params, optimizer, checkpoints"),
])
def test_offload_that_means_nothing(text, words):
    with pytest.raises(ConfigError, match=words):
        parse_offload(text)


def test_parameters_that_are_kept_whole_cannot_rest_elsewhere():
    with pytest.raises(ConfigError, match="take `stage` 3, or offload the optimizer's states alone"):
        StepSettings("2", offload=ALL)
