"""Threads of an update: who does what, with what settings, and what they raise."""

from __future__ import annotations

import threading
import warnings

import numpy as np
import pytest

from mpizero.layout.flat import UPDATE_BLOCK
from mpizero.optim import Adam, Workers
from tests.optim.slices import MEM, grads, states, weights


def test_each_lane_once_and_the_first_here():
    seen = {}
    Workers(3).run(lambda lane: seen.setdefault(lane, threading.get_ident()), 3)
    assert sorted(seen) == [0, 1, 2] and seen[0] == threading.get_ident() and seen[1] != seen[0] != seen[2]


@pytest.mark.parametrize("failing", [0, 1, 2])
def test_what_one_raises_is_raised_when_all_are_over(failing):
    meeting, over = threading.Barrier(3), []

    def work(lane):
        meeting.wait(20)
        if lane == failing:
            raise OverflowError(lane)
        over.append(lane)

    with pytest.raises(OverflowError, match=str(failing)):
        Workers(3).run(work, 3)
    assert sorted(over) == sorted({0, 1, 2} - {failing})


def test_several_threads_do_take_part():
    """The second waits for the first, which would not come if one did all."""
    n, meeting, met = 4 * UPDATE_BLOCK, threading.Barrier(2), set()

    class Met(Adam):
        def update_block(self, *arrays):
            if threading.get_ident() not in met:
                met.add(threading.get_ident())
                meeting.wait(20)
            super().update_block(*arrays)

    optimizer = Met()
    w, kept, (g,) = weights(n), states(optimizer, n), grads(n, 1)
    optimizer.update(w, kept, g, lr=1e-3, step=1, factor=1.0, mem=MEM, workers=Workers(2))
    assert len(met) == 2


def test_overflow_is_no_surprise_in_any_thread():
    """A gradient whose square overflows, and one that is not finite, where the caller expects them."""
    n, optimizer, workers, g = 64, Adam(), Workers(4), np.full(64, 1e30, np.float32)
    g[::2] = np.inf

    def update(**options):
        optimizer.update(weights(n), states(optimizer, n), g, lr=1e-3, step=1, factor=1.0, mem=MEM, workers=workers,
                         **options)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(20):  # until each thread has had some
            with np.errstate(over="ignore", invalid="ignore"):
                update(block=4)
        with pytest.raises(RuntimeWarning), np.errstate(over="ignore", invalid="warn"):
            update()


def test_threads_have_blocks_of_their_own():
    """Each writes its number into its part, and finds it when all have."""
    meeting, n, lanes = threading.Barrier(3), 30, 3

    class Numbered(Adam):
        def update_block(self, scalars, w, states, g, t):
            number = float(w[0])
            g.fill(number)
            t.fill(number)
            meeting.wait(20)
            w[...] = (g == number) & (t == number)

    optimizer, w = Numbered(), np.repeat(np.arange(1, 4, dtype=np.float32), n // lanes)
    optimizer.update(w, states(optimizer, n), np.zeros(n, np.float32), lr=1e-3, step=1, factor=1.0, mem=MEM,
                     workers=Workers(lanes))
    assert w.all()
