"""Links between tiers: what is copied, in which order, how fast at most, and what the log says."""

from __future__ import annotations

import time

import numpy as np
import pytest

from mpizero.errors import ConfigError
from mpizero.layout import DEVICE, HOST, NVME
from mpizero.layout.links import CHUNK, chunk_numel, parse_limits
from mpizero.memory.links import Link, Transfer, make_links

DOWN = (DEVICE, HOST)
SIZES = [0, 1, CHUNK // 4 - 1, CHUNK // 4, CHUNK // 4 + 1, 5 * CHUNK // 8]


@pytest.mark.parametrize("numel", SIZES)
@pytest.mark.parametrize("begun", [False, True])
def test_everything_arrives(numel, begun):
    link, source, target = Link("device-host", DOWN), np.arange(numel, dtype=np.float32), np.full(numel, -1, np.float32)
    transfer = link.move(source, target, "grad", "h.0")
    if begun:
        transfer.begin()
    transfer.finish()
    np.testing.assert_array_equal(target, source)
    (moved,) = link.records
    assert (moved.link, moved.source, moved.target) == ("device-host", DEVICE, HOST)
    assert (moved.what, moved.unit, moved.nbytes) == ("grad", "h.0", 4 * numel)
    assert moved.seconds >= 0 and moved.exposed >= 0


def test_another_way_to_put_it_there():
    link, total = Link("device-host", DOWN), np.ones(CHUNK, np.float32)
    link.move(np.full(CHUNK, 2, np.float32), total, "grad", put=lambda a, b: np.add(a, b, out=a)).finish()
    assert (total == 3).all()


def test_moves_that_were_begun_keep_their_order():
    """The second reads what the first writes."""
    link = Link("device-host", DOWN, rate=400e6)
    first, second, third = (np.full(CHUNK // 4, value, np.float32) for value in (1, 2, 3))
    moves = [link.move(first, second, "a"), link.move(second, third, "b")]
    for move in moves:
        move.begin()
    for move in reversed(moves):
        move.finish()
    assert (third == 1).all()
    assert [moved.what for moved in link.records] == ["b", "a"]


@pytest.mark.parametrize("begun", [False, True])
def test_a_slow_link_is_slow(begun):
    """The sleeps alone take so long; a fast one takes next to nothing."""
    link, source = Link("device-host", DOWN, rate=100e6), np.zeros(8 * CHUNK, np.uint8)
    transfer = link.move(source, np.empty_like(source), "grad")
    begin = time.perf_counter()
    if begun:
        transfer.begin()
    transfer.finish()
    least = 8 * CHUNK / 100e6
    assert time.perf_counter() - begin >= least
    assert link.records[0].seconds >= least


def test_an_idle_link_has_no_credit():
    """Each move takes its time though the link could have carried it ten times over meanwhile."""
    link, source = Link("device-host", DOWN, rate=10e6), np.zeros(CHUNK // 8, np.uint8)
    for _ in range(3):
        time.sleep(0.15)
        link.move(source, np.empty_like(source), "grad").finish()
    assert all(moved.seconds >= source.nbytes / 10e6 for moved in link.records)


def test_credit_inside_a_move_is_one_chunk():
    """Of a move whose second chunk comes late, the rest makes good no more than a chunk."""
    link, source = Link("device-host", DOWN, rate=20e6), np.zeros(CHUNK, np.uint8)

    def chunks():
        for number in range(4):
            time.sleep(0.3 if number == 1 else 0)
            yield np.empty_like(source), source

    Transfer(link, chunks(), 4 * CHUNK, "grad", "").finish()
    assert link.records[0].seconds >= 0.3 + 3 * CHUNK / 20e6


def test_a_rank_that_waits_looks_after_something_else():
    looks = []
    link = Link("device-host", DOWN, rate=100e6, poll=lambda: looks.append(1))
    transfer = link.move(np.zeros(4 * CHUNK, np.uint8), np.empty(4 * CHUNK, np.uint8), "grad")
    transfer.begin()
    transfer.finish()
    assert looks


def test_what_goes_wrong_in_the_thread_is_raised_where_it_is_waited_for():
    def put(target, source):
        raise OSError("the disk is gone")

    transfer = Link("device-host", DOWN).move(np.zeros(3), np.zeros(3), "grad", put=put)
    transfer.begin()
    with pytest.raises(OSError, match="the disk is gone"):
        transfer.finish()


def test_a_sum_overflows_as_quietly_in_the_thread_as_the_rank_lets_it(recwarn):
    """As one does whose step is going to be skipped."""
    total, values = np.full(3, np.inf, np.float32), np.full(3, -np.inf, np.float32)
    transfer = Transfer(Link("device-host", DOWN), [(total, values)], values.nbytes, "grad", "h.0",
                        lambda target, source: np.add(target, source, target))
    with np.errstate(invalid="ignore"):
        transfer.begin()
        transfer.finish()
    assert np.isnan(total).all() and not recwarn.list


def test_both_ways_of_a_link_have_one_name_and_one_limit():
    links = make_links(parse_limits("host=3GB/s"), lambda: None)
    assert {way: (link.name, link.rate) for way, link in links.items()} == {
        (DEVICE, HOST): ("device-host", 3e9), (HOST, DEVICE): ("device-host", 3e9),
        (HOST, NVME): ("host-nvme", None), (NVME, HOST): ("host-nvme", None)}


@pytest.mark.parametrize("text, words", [
    ("3GB/s", "cannot be read at '3GB/s'"), ("pcie=3GB/s", "links are host, nvme"),
    ("host=3GB/s,host=1GB/s", "each once"),
    ("host=fast", "no.* bandwidth"), ("host=3", "bits or bytes"),
])
def test_limits_that_mean_nothing(text, words):
    with pytest.raises(ConfigError, match=words):
        parse_limits(text)


def test_chunks():
    assert chunk_numel(0, 4) == 0 and chunk_numel(7, 4) == 7
    assert chunk_numel(10**9, 4) == CHUNK // 4 and chunk_numel(10**9, 2) == CHUNK // 2
