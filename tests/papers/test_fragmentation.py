"""The lecture's experiment on a first-fit allocator."""

from __future__ import annotations

import pytest

from mpizero.papers import fragmentation
from mpizero.papers.fragmentation import CAPACITY, CHECKPOINT, LAYERS, forward


def test_fragments_make_a_small_request_fail():
    """More than 30 % is free at the end of forward, and a request far smaller than that fails; with an arena it
    succeeds."""
    plain, arena = forward(arena=False), forward(arena=True)
    assert LAYERS == 9 and plain.free_share > 0.3 and plain.free == arena.free
    assert not plain.succeeds and plain.largest_hole < plain.request < 0.5 * plain.free
    assert arena.succeeds and arena.largest_hole == arena.free
    assert (plain.free_share, plain.largest_hole) == (0.4, 220)


def test_other_temporaries(monkeypatch):
    """Equal ones leave their holes to the next layer: nothing is split. What does not fit is told."""
    monkeypatch.setattr(fragmentation, "TEMPORARIES", ((100, 60),) * LAYERS)
    assert forward(False).succeeds and forward(True).succeeds
    assert forward(False).largest_hole == CAPACITY - LAYERS * CHECKPOINT - 160
    room = CAPACITY - LAYERS * CHECKPOINT - CHECKPOINT  # beside the arena and a checkpoint
    monkeypatch.setattr(fragmentation, "TEMPORARIES", ((room - 1, 1),))
    forward(True)
    monkeypatch.setattr(fragmentation, "TEMPORARIES", ((room, 1),))
    with pytest.raises(MemoryError, match="a layer does not fit"):
        forward(True)
