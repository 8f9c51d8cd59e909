"""Streams: collectives that were begun come out right, in any order, whoever drives them; and what is counted of
them."""

from __future__ import annotations

import time
from types import SimpleNamespace

import numpy as np
import pytest

from mpizero.comm import (
    Collective, Polled, Threaded, TrafficLog, barrier, begin_all_gather, begin_all_reduce, begin_reduce_scatter,
    stream_for,
)
from mpizero.comm.channel import Channel
from mpizero.comm.stream import LOOKS
from mpizero.errors import CommunicationError, ConfigError
from mpizero.memory.ledger import Ledger

pytestmark = pytest.mark.mpi(min_size=2)


@pytest.fixture(params=[Polled, Threaded])
def stream(request):
    return request.param()


def begun(world, stream, count=4):
    """Collectives under way, each with what it must come to and where it comes to that."""
    rank, size = world.rank, world.size
    for number in range(count):
        flat = np.full(size * 5000, float(rank + number))
        total = float(sum(range(size)) + size * number)
        match number % 3:
            case 0:
                out = np.empty(5000)
                made, expected = begin_reduce_scatter(world, flat, out, unit=str(number)), np.full(5000, total)
            case 1:
                out, made = flat, begin_all_gather(world, flat, unit=str(number))
                expected = np.repeat(np.arange(size) + float(number), 5000)
            case _:
                out, made, expected = flat, begin_all_reduce(world, flat, unit=str(number)), np.full(flat.size, total)
        stream.begin(made)
        yield made, out, expected


@pytest.mark.parametrize("backwards", [False, True])
def test_any_order(world, stream, backwards):
    """Ends come in any order; results are those of blocking calls."""
    found = list(begun(world, stream, 7))
    for collective, out, expected in reversed(found) if backwards else found:
        stream.poll()
        stream.finish(collective)
        assert np.array_equal(out, expected)
    assert not stream.queues


def test_a_record_for_each(world, stream):
    log = TrafficLog()
    for collective, _, _ in list(begun(world.using(log=log), stream)):
        stream.finish(collective)
    assert [(record.op, record.unit) for record in log.records] == [
        ("reduce_scatter", "0"), ("all_gather", "1"), ("all_reduce", "2"), ("reduce_scatter", "3")]
    chunk = 8 * 5000 * (world.size - 1)
    assert [record.bytes_sent for record in log.records] == [chunk, chunk, 2 * chunk, chunk]


def test_an_error_while_it_is_driven_is_raised_where_it_is_waited_for(world, stream, monkeypatch):
    monkeypatch.setenv("MPIZERO_TIMEOUT", "5")
    channel = Channel(world.using(log=TrafficLog()), "broken")

    def steps():
        yield channel.requests()  # nothing to wait for
        raise CommunicationError("lost")

    collective = Collective(channel, steps())
    stream.begin(collective)
    time.sleep(0.1)  # a thread has come to it
    with pytest.raises(CommunicationError, match="lost"):
        stream.finish(collective)
    stream.abandon()
    assert not stream.queues


def test_who_waits_in_a_queue_says_for_whom(world, stream):
    """The first of the queue has messages under way; the one that is waited for has not begun."""
    first, second = (begin_all_gather(world, np.zeros(world.size), unit=unit) for unit in ("one", "two"))
    if world.rank == 0:  # so that rank 1 hears nothing meanwhile
        barrier(world)
    stream.begin(first)
    stream.begin(second)
    if world.rank == 1:
        said = stream.queues.lack(second)
        assert said.startswith("all_gather of unit 'two' in group 'world' waits for all_gather of unit 'one' in group")
        assert "no answer from rank 0 on" in said and stream.queues.lack(first) in said
    if world.rank > 0:
        barrier(world)
    for collective in (first, second):
        stream.finish(collective)


def test_a_poll_looks_more_than_once():
    """Where MPI moves bytes at every eighth look only, as Open MPI does over TCP, or a few at each, as MPICH."""
    answers, looks = iter([*[False] * 7, True, *[False] * 9, True]), []
    stream = Polled()
    stream.queues = SimpleNamespace(advance=lambda: looks.append(1) or next(answers, False))
    stream.poll()
    assert len(looks) == 18 + LOOKS
    stream.poll()  # too early
    assert len(looks) == 18 + LOOKS


def test_hidden_seconds_are_not_exposed(world):
    """A thread sends while this rank sleeps: nobody waits for it then."""
    log, stream = TrafficLog(), Threaded()
    (collective, _, _), = begun(world.using(log=log), stream, 1)
    deadline = time.monotonic() + 60
    while not collective.over and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.05)
    stream.finish(collective)
    (record,) = log.records
    assert record.exposed == record.waited == 0 < record.seconds


def test_workspace_lives_until_nobody_holds_the_collective(world, stream):
    ledger = Ledger()
    flat, out = np.ones(world.size * 5000), np.ones(5000)
    collective = begin_reduce_scatter(world.using(mem=ledger), flat, out, accumulate=True)
    taken = ledger.live["workspace"]
    assert taken > 0
    stream.begin(collective)
    stream.finish(collective)
    assert ledger.live["workspace"] == taken
    del collective
    assert ledger.live["workspace"] == 0


def test_who_drives_is_chosen_by_the_environment(world, monkeypatch):
    monkeypatch.delenv("MPIZERO_DRIVE", raising=False)
    assert isinstance(stream_for(world), Polled)
    monkeypatch.setenv("MPIZERO_DRIVE", "thread")
    if world.thread_level == "MULTIPLE":
        assert isinstance(stream_for(world), Threaded)
    monkeypatch.setattr(type(world), "thread_level", "FUNNELED")
    with pytest.raises(ConfigError, match="MPIZERO_DRIVE=thread needs an MPI that several threads may call"):
        stream_for(world)
    monkeypatch.setenv("MPIZERO_DRIVE", "magic")
    with pytest.raises(ConfigError, match="MPIZERO_DRIVE='magic' is no way to drive collectives: use polls or thread"):
        stream_for(world)
