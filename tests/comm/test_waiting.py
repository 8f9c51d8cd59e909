"""Waiting: patient, quiet, and not for ever."""

from __future__ import annotations

import time

import numpy as np
import pytest

from mpizero.comm import all_gather_values, all_reduce, barrier, wait
from mpizero.errors import ConfigError

LATE = 2.0  # seconds


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("numel", [None, 100, 2_000_000], ids=["barrier", "small", "large"])
def test_waiting_leaves_the_core_to_others(world, numel):
    """Rank 0 comes 2 s late: the others use less than a tenth of a core meanwhile.

    2 to 4 % measured; spinning would use all of it.
    """
    flat = np.ones(numel or 0, np.float32)
    barrier(world)
    cpu = time.process_time()
    if world.rank == 0:
        time.sleep(LATE)
        cpu = time.process_time()
    else:
        absent_until = time.monotonic() + LATE
    if numel is None:
        barrier(world)
    else:
        all_reduce(world, flat)
    used = time.process_time() - cpu
    if world.rank > 0:
        assert time.monotonic() > absent_until - 0.5
    table = all_gather_values(world, [used])
    assert (table[1:] - table[0] < 0.1 * LATE).all(), f"seconds of CPU time of each rank: {table.ravel()}"


def test_a_spinning_wait_would_be_noticed(monkeypatch):
    """The measure of the test above, in one process."""
    for spins, low, high in ((True, 0.5, 2.0), (False, 0.0, 0.15)):
        if spins:
            monkeypatch.setattr(time, "sleep", lambda seconds: None)
        else:
            monkeypatch.undo()
        cpu, end = time.process_time(), time.monotonic() + 0.5
        assert wait.wait(lambda end=end: time.monotonic() > end)
        assert low * 0.5 * (0.2 if spins else 1) <= time.process_time() - cpu <= high * 0.5 + 0.05


def test_sleeps_grow_with_the_time_waited(monkeypatch):
    slept = []
    monkeypatch.setattr(time, "sleep", slept.append)
    now = iter(np.arange(0, 100, 0.001))
    monkeypatch.setattr(time, "monotonic", lambda: next(now))
    assert not wait.wait(lambda: False, limit=0.2)
    assert slept[0] == wait.SHORTEST_SLEEP and slept == sorted(slept) and slept[-1] == wait.LONGEST_SLEEP


def test_more_than_one_test_per_wake_up(monkeypatch):
    """MPI makes progress only when tested, and some transports a little at a time."""
    monkeypatch.setattr(time, "sleep", lambda seconds: calls.append("sleep"))
    calls = []
    wait.wait(lambda: bool(calls.append("test")), limit=0.01)
    asleep = calls[calls.index("sleep"):]
    assert asleep[1:1 + wait.TESTS_PER_WAKE] == ["test"] * wait.TESTS_PER_WAKE and wait.TESTS_PER_WAKE > 1


def test_gives_up():
    begin = time.monotonic()
    assert wait.wait(lambda: False, limit=0.2) is False
    assert 0.2 <= time.monotonic() - begin < 2


def test_timeout_from_the_environment(monkeypatch):
    monkeypatch.delenv("MPIZERO_TIMEOUT", raising=False)
    assert wait.timeout() == 1800
    monkeypatch.setenv("MPIZERO_TIMEOUT", "2.5")
    assert wait.timeout() == 2.5
    for text in ("0", "-1", "soon", "nan"):
        monkeypatch.setenv("MPIZERO_TIMEOUT", text)
        with pytest.raises(ConfigError, match="MPIZERO_TIMEOUT=.*is not a positive number of seconds: use"):
            wait.timeout()
