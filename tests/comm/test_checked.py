"""Debug mode: ranks that call different collectives are told at once what each of them called."""

from __future__ import annotations

import time

import numpy as np
import pytest

from mpizero.comm import all_gather, all_reduce, barrier, wait
from mpizero.comm.channel import Channel
from mpizero.comm.checked import check_call
from mpizero.errors import CommunicationError

pytestmark = pytest.mark.mpi(min_size=2)


NUMBERS = iter(range(1000))


@pytest.fixture
def odd_one(world):
    """A checked group for each test, since its calls end in disagreement."""
    return world.subgroup(range(world.size), f"checked {next(NUMBERS)}").using(checked=True)


def told(group, act):
    """What this rank is told; None where only its neighbours differ from one another."""
    try:
        act()
    except CommunicationError as error:
        return str(error)
    return None


@pytest.mark.parametrize("differs, words", [
    (lambda group: all_gather(group, np.zeros(8), unit="u"), ("all_gather of unit 'u'", "8 x float64")),
    (lambda group: all_reduce(group, np.zeros(9), unit="u"), ("all_reduce of unit 'u'", "9 x float64")),
    (lambda group: all_reduce(group, np.zeros(8), unit="v"), ("all_reduce of unit 'v'", "8 x float64")),
    (lambda group: all_reduce(group, np.zeros(8, np.float32), unit="u"), ("all_reduce", "8 x float32")),
], ids=["op", "numel", "unit", "dtype"])
def test_two_neighbours_are_told_of_both_calls(world, odd_one, monkeypatch, differs, words):
    """Rank 0 errs. It and its right neighbour hear of it, long before any time-out; others would wait until these
    leave, so here they do not call."""
    monkeypatch.setenv("MPIZERO_TIMEOUT", "60")
    begin = time.monotonic()
    if world.rank == 0:
        found = told(odd_one, lambda: differs(odd_one))
    else:
        found = _until_checked(odd_one)
    assert time.monotonic() - begin < 30
    barrier(world)
    if world.rank in (0, 1):
        mine, other = ("rank 0", f"rank {world.size - 1}") if world.rank == 0 else ("rank 1", "rank 0")
        assert found.startswith("ranks call different collectives: ")
        assert f"{other} on " in found and f"{mine} on " in found
        assert all(word in found for word in (*words, "all_reduce of unit 'u'", "8 x float64", "call number"))
    else:
        assert found is None


def _until_checked(group):
    """Compare the call, but do not make it."""
    return told(group, lambda: check_call(Channel(group, "all_reduce", "u", "", "float64", 8)))


def test_who_calls_nothing_is_waited_for_and_named(world, odd_one, monkeypatch):
    monkeypatch.setattr(wait, "timeout", lambda: 0.5)
    if world.rank == 1:
        with pytest.raises(CommunicationError, match="has called nothing"):
            all_reduce(odd_one, np.zeros(3))
    monkeypatch.undo()
    barrier(world)


def test_the_same_calls_change_nothing(world):
    group = world.using(checked=True)
    for _ in range(3):
        flat = np.full(100, float(world.rank))
        all_reduce(group, flat)
        assert (flat == sum(range(world.size))).all()
