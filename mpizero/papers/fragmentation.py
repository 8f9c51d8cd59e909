"""Why a device runs out of memory with a third of it free: a first-fit allocator, with and without an arena.

ZeRO (arXiv:1910.02054), sec. 3.2 and 6.3 (M_D). The arena is for what lives long. Sizes are in units of no meaning; the
lecture's own did not survive, so these are ours. Real arrays get their addresses from the same allocator
(`memory.device`).
"""

from __future__ import annotations

from dataclasses import dataclass

from mpizero.memory.addresses import FirstFit

CAPACITY = 2400
LAYERS = 9
CHECKPOINT = 160  # what a layer leaves for backward
TEMPORARIES = tuple((100 + 10 * layer, 60 + 10 * layer) for layer in range(LAYERS))  # freed at the end of their layer
REQUEST = 400


@dataclass(frozen=True)
class Outcome:
    """After the last layer's forward, and whether a request for `request` then succeeds."""

    arena: bool
    capacity: int
    free: int
    largest_hole: int
    request: int
    succeeds: bool

    @property
    def free_share(self) -> float:
        return self.free / self.capacity


def forward(arena: bool) -> Outcome:
    """Every layer allocates temporaries, stores a checkpoint, frees the temporaries. arena: checkpoints are copied into
    one block that was set aside at the start. MemoryError if a layer itself does not fit."""
    memory = FirstFit(CAPACITY)
    if arena:
        _must(memory.allocate(LAYERS * CHECKPOINT))
    for sizes in TEMPORARIES:
        held = [_must(memory.allocate(size)) for size in sizes]
        checkpoint = _must(memory.allocate(CHECKPOINT))
        for offset in held:
            memory.free(offset)
        if arena:
            memory.free(checkpoint)
    free, hole = memory.free_size, memory.largest_hole
    return Outcome(arena, CAPACITY, free, hole, REQUEST, memory.allocate(REQUEST) is not None)


def _must(offset: int | None) -> int:
    if offset is None:
        raise MemoryError("a layer does not fit")
    return offset
