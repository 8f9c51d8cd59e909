"""With addresses on the device: the same bits and the planned bytes; and a real step that dies of fragments, which an
arena cures."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mpizero.checkpoint.models import model_of
from mpizero.engine.config import TrainConfig
from mpizero.engine.job import prepare
from mpizero.engine.resolve import resolve
from mpizero.engine.trainer import run_steps
from mpizero.errors import ConfigError, Fragmented, MpizeroError, OutOfDeviceMemory
from mpizero.layout.models import MLPSizes, mlp_spec
from mpizero.memory.addresses import ALIGNMENT, ALLOCATORS, ARENA, FIRST_FIT
from mpizero.nn.mlp import mlp
from mpizero.schedule.actions import Forward, Save
from tests.engine.runs import GPT, MLP
from tests.engine.plans import follows_its_plan
from tests.engine.test_bucket import trained
from tests.engine.test_frozen import states

pytestmark = pytest.mark.usefixtures("few_held_out")
SMALL = replace(MLP, steps=2, batch_size=2, recompute=True, device_memory="1MB")
TEXTS = replace(GPT, steps=2, batch_size=1, recompute=True, dtype="float16", device_memory="4MB")
# each hidden layer a little wider than the one before: its weights find no room in what those of that one leave behind
GROWING = TrainConfig(model="mlp", hidden=",".join(map(str, range(48, 64))), stage="3", recompute=True,
                      offload="params=cpu,optimizer=cpu", dtype="float32", batch_size=72, steps=1, overlap="off",
                      device_memory="4MB")


@pytest.mark.parametrize("options, allocator, stage", [
    ({"overlap": "on"}, FIRST_FIT, "2"), ({"bucket_size": "397B", "accumulation": 2}, ARENA, "0"),
    ({"tiles": 2}, ARENA, "3"), ({"model": "gpt"}, ARENA, "2"),
    ({"offload": "optimizer=cpu,checkpoints=cpu"}, ARENA, "3"),
    ({"hidden": "8,64,1", "dtype": "float32"}, ARENA, "2")],  # of which a copy is more than all else in its forward
    ids=["overlap", "bucket", "tiles", "gpt", "offload", "narrowing"])
def test_same_bits_and_planned_bytes(group, options, allocator, stage):
    config = TEXTS if "model" in options else replace(SMALL, **options)
    _, *expected = trained(replace(config, stage=stage), group)
    job, *found = trained(replace(config, stage=stage, allocator=allocator), group, follows_its_plan)
    assert found == expected
    copies = [action for action in job.lists.accumulate if isinstance(action, Forward) and action.save is Save.COPY]
    assert bool(copies) == (allocator == ARENA and "offload" not in options)
    assert job.ledger.peak_bytes <= job.ledger.device.addresses.extent


def run(config, group):
    """What a step computed, and bytes of the smallest device for it."""
    job = prepare(config, group)
    records = run_steps(job).records
    device = job.ledger.device
    return (states(job), records[0].loss, records[0].grad_norm), device and device.addresses.extent


def test_fragments_end_a_step_and_an_arena_cures_it(group):
    expected, none = run(GROWING, group)
    found, needed = run(replace(GROWING, allocator=FIRST_FIT), group)
    cured, least = run(replace(GROWING, allocator=ARENA), group)
    assert found == cured == expected and none is None
    counted = prepare(GROWING, group).need.nbytes
    assert least < 1.1 * counted and 1.4 * counted < needed
    for size in (least, needed - ALIGNMENT):
        with pytest.raises(Fragmented) as error:
            run(replace(GROWING, allocator=FIRST_FIT, device_memory=f"{size}B"), group)
        found = error.value
        assert size - ALIGNMENT < found.capacity <= size and found.free > 0.3 * size and found.holes > 10
        assert found.largest < found.asked < 0.2 * found.free
    assert run(replace(GROWING, allocator=ARENA, device_memory=f"{least}B"), group) == (expected, least)


def test_a_device_is_one_range(group):
    """What units keep, and what is gathered."""
    job = prepare(replace(GROWING, offload=None, allocator=FIRST_FIT), group)
    begin = min(unit.param.ctypes.data for unit in job.state.units)
    for unit in job.state.units:
        gathered = unit.open_param()
        for array in (unit.param, gathered, *unit.states.values()):
            assert 0 <= array.ctypes.data - begin <= 4_000_000 - array.nbytes
        del array, gathered
        unit.reshard()
    run_steps(job, steps=1)
    assert job.ledger.live_bytes == sum(entry.nbytes for entry in job.ledger._entries.values())
    assert len(job.ledger.device.addresses.blocks.blocks) == sum(
        entry.nbytes > 0 for entry in job.ledger._entries.values())


def test_too_few_bytes_are_refused_before_the_first_step(group):
    need = prepare(GROWING, group).need.nbytes
    for allocator in ALLOCATORS:
        with pytest.raises(OutOfDeviceMemory, match=f"the run needs {need:,} bytes"):
            prepare(replace(GROWING, allocator=allocator, device_memory=f"{need - 1}B"), group)


def test_addresses_need_a_device():
    with pytest.raises(ConfigError, match="`allocator` arena gives buffers their addresses on a device, whose size"):
        resolve(TrainConfig(allocator=ARENA))
    with pytest.raises(ConfigError, match="`allocator` 'best' is none of first-fit, arena"):
        resolve(TrainConfig(allocator="best", device_memory="1MB"))


# -- widths of the hidden layers ---------------------------------------------------------------------------------------


def test_a_width_for_each_hidden_layer():
    sizes = resolve(TrainConfig(hidden=" 8, 016,4")).sizes
    assert (sizes.hidden, sizes.layers, sizes.widths) == ("8,16,4", 4, [32, 8, 16, 4, 16])
    assert resolve(TrainConfig(hidden="8")).sizes == resolve(TrainConfig(hidden=8)).sizes
    shapes = [param.shape for param in mlp(sizes.hidden).spec.params]
    assert shapes == [(32, 8), (8,), (8, 16), (16,), (16, 4), (4,), (4, 16), (16,)]
    assert len(mlp(sizes.hidden, tiles=2).segments) == 8


@pytest.mark.parametrize("text", ["", "8,", "8,x", "0", "8,0,4", "-3", "8.5", "1099511627776", "9" * 5000])
def test_no_widths(text):
    with pytest.raises(ConfigError, match="`hidden` .* is no width, nor one for each hidden layer"):
        resolve(TrainConfig(hidden=text))


def test_a_file_of_weights_tells_the_widths():
    for sizes in (MLPSizes("8,16,4"), MLPSizes(8, 3)):
        shapes = {param.name: param.shape for param in mlp_spec(sizes).params}
        assert model_of(shapes, None, "a file") == sizes
    for wrong in ((), (4,), (4, 0)):  # no matrix, or of no width
        with pytest.raises(MpizeroError):
            model_of({f"layers.{i}.weight": shape for i, shape in enumerate([(32, 8), wrong, (4, 16)])}, None, "a file")


def test_unequal_widths_train_like_others(group):
    config = replace(SMALL, hidden="7,12,3", device_memory=None)
    _, *expected = trained(replace(config, stage="0"), group)
    job, *found = trained(replace(config, stage="3"), group, follows_its_plan)
    assert found == expected and np.isfinite([loss for loss, _ in found[1]]).all()
    assert [unit.layout.numel for unit in job.state.units] == [32 * 7 + 7, 7 * 12 + 12, 12 * 3 + 3, 3 * 16 + 16]
