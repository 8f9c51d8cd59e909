"""Where buffers lie: blocks, holes, the two ends of a device, and arrays that are slices of it."""

from __future__ import annotations

import random
import re

import numpy as np
import pytest

from mpizero.errors import OutOfDeviceMemory
from mpizero.memory.addresses import ALIGNMENT, ARENA, FIRST_FIT, Addresses, FirstFit
from mpizero.memory.device import Device, make_device
from mpizero.memory.kinds import ACTIVATION, GRAD, KEPT_INPUT, WORKSPACE
from mpizero.memory.ledger import Ledger


def test_first_fit():
    memory = FirstFit(100)
    a, b, c = (memory.allocate(size) for size in (30, 40, 20))
    assert (a, b, c) == (0, 30, 70) and memory.holes() == [(90, 10)]
    memory.free(a)
    assert memory.holes() == [(0, 30), (90, 10)] and memory.free_size == 40 and memory.largest_hole == 30
    assert memory.allocate(35) is None  # 40 are free
    assert memory.allocate(10) == 0  # the first hole that is large enough, not the smallest
    memory.free(b)
    assert memory.holes() == [(10, 60), (90, 10)]  # holes that touch are one
    assert memory.allocate(100) is None and memory.allocate(60) == 10


@pytest.mark.parametrize("ends", [1, 2])
def test_blocks_never_overlap(ends):
    draw, memory, live = random.Random(0), FirstFit(1000), {}
    for _ in range(2000):
        if live and draw.random() < 0.45:
            offset = draw.choice(list(live))
            memory.free(offset)
            del live[offset]
        else:
            size = draw.randint(1, 120)
            offset = memory.allocate(size, from_the_end=draw.randrange(ends) == 1)
            if offset is None:
                assert memory.largest_hole < size
            else:
                live[offset] = size
        cells = [cell for offset, size in live.items() for cell in range(offset, offset + size)]
        assert len(cells) == len(set(cells)) == 1000 - memory.free_size and (not cells or max(cells) < 1000)


def test_from_the_end():
    memory = FirstFit(100)
    assert [memory.allocate(size, True) for size in (30, 40)] == [70, 30]
    assert memory.allocate(20) == 0 and memory.holes() == [(20, 10)]
    memory.free(70)
    assert memory.allocate(10, True) == 90  # the last hole, at its end
    assert memory.allocate(5) == 20 and memory.allocate(20) == 70 and memory.allocate(6) is None
    assert (memory.below, memory.above) == (90, 70)


def on(capacity, allocator=FIRST_FIT):
    return Ledger(capacity, device=make_device(allocator, capacity))


def test_arrays_are_slices_of_the_device():
    ledger = on(1000)
    first, second = ledger.empty(10, np.float32, GRAD), ledger.zeros((3, 5), np.int16, GRAD)
    assert second.ctypes.data - first.ctypes.data == ALIGNMENT and first.ctypes.data % ALIGNMENT == 0
    first[:], where = 7, first.ctypes.data
    assert not second.any() and second.shape == (3, 5)
    view = second[1:]
    del first, second
    third = ledger.empty(4, np.float32, GRAD)
    assert third.ctypes.data == where and (third == 7).all()  # what was there before
    del view
    assert ledger.device.addresses.blocks.blocks == [(0, ALIGNMENT)] and ledger.live_bytes == 16


def test_what_was_made_elsewhere_has_a_place_too():
    ledger, batch = on(1000), np.arange(65, dtype=np.uint8)
    assert ledger.adopt(batch[3:], ACTIVATION).base is batch
    assert ledger.device.addresses.extent == 2 * ALIGNMENT
    assert ledger.empty(0, np.float32, ACTIVATION).size == 0  # and nothing takes none
    assert ledger.device.addresses.extent == 2 * ALIGNMENT
    del batch
    assert ledger.device.addresses.blocks.free_size == 960  # whole lines


def test_holes_that_are_too_small():
    """The sentence names bytes asked for, bytes free, holes, the largest of them, and the cure."""
    ledger = on(512)
    arrays = [ledger.empty(64, np.uint8, ACTIVATION) for _ in range(8)]
    del arrays[1:8:3]
    with pytest.raises(OutOfDeviceMemory, match=re.escape(
            "100 bytes of workspace asked for, and 192 of 512 bytes (37.5 %) are free, but in 3 holes, the largest of "
            "64: use `allocator` arena, or a larger `device_memory`")):
        ledger.empty(100, np.uint8, WORKSPACE)
    with pytest.raises(OutOfDeviceMemory, match="193 bytes .* 320 of 512 bytes in use"):  # bytes alone say so
        ledger.empty(193, np.uint8, WORKSPACE)
    assert ledger.empty(64, np.uint8, WORKSPACE).size == 64
    assert ledger.live_bytes == 5 * 64


def test_an_arena_keeps_what_lasts_apart():
    ledger = on(1024, ARENA)
    first, some = (ledger.empty(size, np.uint8, kind) for size, kind in ((1, WORKSPACE), (700, ACTIVATION)))
    begin, kept = first.ctypes.data, [ledger.empty(64, np.uint8, kind) for kind in (KEPT_INPUT, GRAD)]
    assert [array.ctypes.data - begin for array in (some, *kept)] == [64, 960, 896]
    assert ledger.device.addresses.extent == 14 * ALIGNMENT
    del first
    with pytest.raises(OutOfDeviceMemory) as error:
        ledger.empty(150, np.uint8, GRAD)
    assert "192 of 1,024 bytes (18.8 %) are free, but in 2 holes" in str(error.value)
    assert "allocator" not in str(error.value)


def test_a_device_that_the_host_has_not():
    with pytest.raises(OutOfDeviceMemory, match="the host has no room for a device of .*`device_memory`"):
        Device(2**62)
    assert make_device(None, None) is None and Addresses(1000).blocks.capacity == 960
