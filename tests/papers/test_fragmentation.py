"""The first-fit allocator, and the lecture's experiment on it."""

from __future__ import annotations

import random

from mpizero.papers.fragmentation import CAPACITY, CHECKPOINT, LAYERS, FirstFit, fits, forward


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


def test_blocks_never_overlap():
    draw, memory, live = random.Random(0), FirstFit(1000), {}
    for _ in range(2000):
        if live and draw.random() < 0.45:
            offset = draw.choice(list(live))
            memory.free(offset)
            del live[offset]
        else:
            size = draw.randint(1, 120)
            offset = memory.allocate(size)
            if offset is None:
                assert memory.largest_hole < size
            else:
                live[offset] = size
        cells = [cell for offset, size in live.items() for cell in range(offset, offset + size)]
        assert len(cells) == len(set(cells)) == 1000 - memory.free_size and (not cells or max(cells) < 1000)


def test_fragments_make_a_small_request_fail():
    """More than 30 % is free at the end of forward, and a request far smaller than that fails; with an arena it
    succeeds."""
    plain, arena = forward(arena=False), forward(arena=True)
    assert LAYERS == 9 and plain.free_share > 0.3 and plain.free == arena.free
    assert not plain.succeeds and plain.largest_hole < plain.request < 0.5 * plain.free
    assert arena.succeeds and arena.largest_hole == arena.free
    assert (plain.free_share, plain.largest_hole) == (0.4, 220)


def test_other_temporaries():
    """Equal ones leave their holes to the next layer: nothing is split. What does not fit is told."""
    equal = ((100, 60),) * LAYERS
    assert fits(equal) and forward(False, equal).succeeds and forward(True, equal).succeeds
    assert forward(False, equal).largest_hole == CAPACITY - LAYERS * CHECKPOINT - 160
    room = CAPACITY - LAYERS * CHECKPOINT - CHECKPOINT  # beside the arena and a checkpoint
    assert fits(((room - 1, 1),)) and not fits(((room, 1),))
