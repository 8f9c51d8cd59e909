"""Streams of blocks: what arrives is what was written, whatever the range, while the next and the last are under
way."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from mpizero.errors import StorageError
from mpizero.layout import HOST, NVME
from mpizero.layout.files import BUFFERS, PAGE
from mpizero.memory import regions
from tests.memory.storages import BLOCK, poke, storage


def read(region, part=None, **options):
    part = part or slice(0, region.size)
    found = np.full(region.size, np.nan, region.dtype)
    for span, values in region.blocks(part, **options):
        found[span] = values
    return found[part]


def write(region, part, values, **options):
    for span, block in region.blocks(part, writes=True, **options):
        block[...] = values[span.start - part.start : span.stop - part.start]


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("numel", [1, 5, BLOCK, 7 * BLOCK, 9 * BLOCK + 1])
def test_any_range_is_read_and_written(tmp_path, monkeypatch, numel, dtype):
    """Against an array, and a neighbour in the file that must stay as it is."""
    _, (region, other), _ = storage(tmp_path, monkeypatch, numel, ("master", "exp_avg"), dtype)
    rng, expected = np.random.default_rng(numel), np.zeros(numel, dtype)
    assert not read(region).any()
    for turn in range(12):
        low, high = sorted(rng.integers(0, numel + 1, 2)) if turn else (0, numel)
        part = slice(int(low), int(high))
        expected[part] = rng.standard_normal(part.stop - part.start)
        write(region, part, expected[part], reads=bool(turn % 2))
        low, high = sorted(rng.integers(0, numel + 1, 2))
        assert np.array_equal(read(region, slice(int(low), int(high))), expected[low:high])
    assert np.array_equal(read(region), expected) and not read(other).any()


def test_blocks_are_cut_at_the_same_elements_whatever_the_dtype(tmp_path, monkeypatch):
    _, (region,), _ = storage(tmp_path, monkeypatch, 3 * BLOCK + 5, dtype="float16")
    assert [(span.start, span.stop) for span, _ in region.blocks(slice(10, 3 * BLOCK + 2))] == [
        (10, BLOCK), (BLOCK, 2 * BLOCK), (2 * BLOCK, 3 * BLOCK), (3 * BLOCK, 3 * BLOCK + 2)]
    assert list(region.blocks(slice(4, 4))) == []


@pytest.mark.parametrize("offset", [0, PAGE + 17, 2 * PAGE - 1, 8 * PAGE + 3])
def test_a_bit_that_flips_is_told_with_its_place(tmp_path, monkeypatch, offset):
    made, (region,), _ = storage(tmp_path, monkeypatch, 4 * BLOCK + 1)
    write(region, slice(0, region.size), np.arange(region.size, dtype=np.float32))
    poke(made.file, offset, lambda byte: byte ^ 8)
    begin = offset // (4 * BLOCK) * 4 * BLOCK
    end = min(begin + 4 * BLOCK, 4 * region.size) - 1
    with pytest.raises(StorageError, match=rf"the file of rank 3 in {tmp_path} is damaged: the checksum of bytes "
                                           rf"{begin:,} to {end:,} \(master of unit layers.2\) is not"):
        read(region)


def test_a_bit_that_flips_where_nothing_was_written_yet(tmp_path, monkeypatch):
    made, (region,), _ = storage(tmp_path, monkeypatch, BLOCK)
    poke(made.file, 5, lambda byte: 1)
    with pytest.raises(StorageError, match="is damaged"):
        read(region)


def test_the_checksum_sees_every_bit_and_the_order_of_pages():
    pages = np.random.default_rng(0).integers(0, 256, 4 * PAGE, np.uint8)
    before = regions.checksum(pages)
    for place in (0, 7, 8, PAGE - 1, PAGE, 4 * PAGE - 1):
        for bit in range(8):
            other = pages.copy()
            other[place] ^= 1 << bit
            assert regions.checksum(other) != before
    assert regions.checksum(np.roll(pages, PAGE)) != before


def test_the_next_block_is_read_and_the_last_one_written_meanwhile(tmp_path, monkeypatch):
    """Writing block 0 does not end before block 1 is worked on, nor reading block 2."""
    made, (region,), _ = storage(tmp_path, monkeypatch, 4 * BLOCK)
    go_on, reading, real_read, real_write = threading.Event(), [], region.read, region.write

    def slow(number, buffer):
        assert go_on.wait(60)
        return real_write(number, buffer)

    def noted(number, buffer):
        reading.append(number)
        return real_read(number, buffer)

    monkeypatch.setattr(region, "write", slow)
    monkeypatch.setattr(region, "read", noted)
    stream = region.blocks(slice(0, region.size), writes=True)
    for number in range(2):
        span, values = next(stream)
        values[...] = number + 1
    assert span.start == BLOCK and set(reading) >= {0, 1}
    go_on.set()
    for span, values in stream:
        values[...] = span.start // BLOCK + 1
    assert read(region)[::BLOCK].tolist() == [1, 2, 3, 4]


def test_a_reader_is_two_blocks_ahead(tmp_path, monkeypatch):
    _, (region,), _ = storage(tmp_path, monkeypatch, 5 * BLOCK)
    asked, submit = [], region.storage.up.submit

    def noted(act, number, buffer):
        asked.append(number)
        return submit(act, number, buffer)

    monkeypatch.setattr(region.storage.up, "submit", noted)
    stream = region.blocks(slice(0, region.size))
    next(stream)
    assert asked == [0, 1, 2]
    next(stream)
    assert asked == [0, 1, 2, 3]


def test_what_moved_is_in_the_records(tmp_path, monkeypatch):
    made, (region,), _ = storage(tmp_path, monkeypatch, 2 * BLOCK + 3)
    write(region, slice(0, region.size), np.ones(region.size, np.float32), reads=False)
    record, = made.down.records
    assert (record.link, record.what, record.unit) == ("host-nvme", "master", "layers.2")
    assert record.nbytes == region.nbytes and made.up.records == []
    read(region, ranks=True)
    record, = made.up.records
    assert record.nbytes == region.nbytes == 4 * region.size and 0 <= record.exposed and record.seconds > 0
    read(region)
    assert made.up.records[1].exposed == 0


def test_an_error_leaves_no_request_under_way(tmp_path, monkeypatch):
    """Whoever stops in the middle has waited for what uses the buffers, and the lane is free again."""
    made, (region,), _ = storage(tmp_path, monkeypatch, 6 * BLOCK)
    with pytest.raises(KeyError):
        for _ in region.blocks(slice(0, region.size), writes=True):
            raise KeyError
    assert not read(region).any()
    poke(made.file, 2 * PAGE, lambda byte: 1)
    for _ in range(2):
        with pytest.raises(StorageError):
            read(region)
    assert not made.lanes["master"].taken


def test_two_streams_of_one_lane_are_an_error_of_ours(tmp_path, monkeypatch):
    _, (region,), _ = storage(tmp_path, monkeypatch, 2 * BLOCK)
    first = region.blocks(slice(0, region.size))
    next(first)
    with pytest.raises(AssertionError, match="two streams of master"):
        next(region.blocks(slice(0, region.size)))
    first.close()
    read(region)


def test_buffers_are_pages_and_counted(tmp_path, monkeypatch):
    made, found, host = storage(tmp_path, monkeypatch, 2 * BLOCK, ("master", "exp_avg"))
    assert host.live_bytes == host.live["workspace"] == 2 * BUFFERS * 2 * PAGE
    buffers = [buffer for lane in made.lanes.values() for buffer in lane.buffers]
    assert len(buffers) == 2 * BUFFERS and all(buffer.ctypes.data % PAGE == 0 for buffer in buffers)
    assert len({buffer.ctypes.data for buffer in buffers}) == len(buffers)
    assert made.ledger.live["optim"] == 2 * 4 * 2 * BLOCK
    del found
    assert made.ledger.live_bytes == 0
    del made, buffers
    assert host.live_bytes == 0


def test_a_link_of_a_rate_takes_its_time(tmp_path, monkeypatch):
    import time

    _, (region,), _ = storage(tmp_path, monkeypatch, 64 * BLOCK, limits={(NVME, HOST): 4e6, (HOST, NVME): 4e6})
    begin = time.perf_counter()
    read(region)
    assert time.perf_counter() - begin >= region.nbytes / 4e6
