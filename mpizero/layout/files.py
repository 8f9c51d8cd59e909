"""Which states of a rank lie in its file, where, and what host memory they pass through. ZeRO-Infinity
(arXiv:2104.07857), sec. 5.1, 6.3. Pure.

[Note: Blocks] A block is what is read, checked, updated and written at a time: a whole number of the blocks in which an
optimizer updates. It has as many elements whatever their dtype, so the states of a unit come in step.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mpizero.dtypes import ITEMSIZE
from mpizero.layout.flat import UPDATE_BLOCK
from mpizero.layout.geometry import Geometry
from mpizero.layout.tiers import NVME

FILE_BLOCK = 8 * UPDATE_BLOCK  # elements: 1 MiB of float32
PAGE = 4096  # bytes: what the places and sizes of requests past the page cache are multiples of
BUFFERS = 3  # of a lane: one is read into while another is worked on and the third is written


@dataclass(frozen=True)
class Space:
    """Room for what a unit keeps as `name`. offset: in the file, of a page."""

    unit: int
    name: str
    offset: int
    numel: int
    dtype: str

    @property
    def nbytes(self) -> int:
        return self.numel * ITEMSIZE[self.dtype]


def spaces(geometry: Geometry) -> tuple[Space, ...]:
    """Of everything that rests in the file, one after the other; of gradients too, which are there from backward to the
    update alone."""
    found, offset = [], 0
    for unit, name, numel, dtype in _kept(geometry):
        found.append(Space(unit, name, offset, numel, dtype))
        offset += paged(found[-1].nbytes)
    return tuple(found)


def _kept(geometry: Geometry) -> Iterator[tuple[int, str, int, str]]:
    placement, tiers = geometry.placement, geometry.placement.tiers
    for unit, layout in enumerate(geometry.wrapping.units):
        if tiers.params is NVME:
            yield unit, "param", geometry.kept(unit, placement.params), geometry.dtype
        if tiers.optimizer is NVME and not layout.frozen:
            numel = geometry.kept(unit, placement.optim)
            yield unit, "grad", numel, geometry.sums
            for state in geometry.stored:
                yield unit, state.name, numel, state.dtype


def file_bytes(geometry: Geometry) -> int:
    """Of a rank's file."""
    return sum(paged(space.nbytes) for space in spaces(geometry))


def lanes(geometry: Geometry) -> dict[str, int]:
    """Bytes of one buffer of each lane: what a block of that name takes at most. A gradient that goes back to the
    device, where it is summed across replicas, has a lane of its own: others may come down meanwhile."""
    found: dict[str, int] = {}
    for space in spaces(geometry):
        size = paged(min(space.numel, FILE_BLOCK) * ITEMSIZE[space.dtype])
        found[space.name] = max(found.get(space.name, 0), size)
    return found | ({"upload": found["grad"]} if geometry.replicas > 1 and "grad" in found else {})


def buffer_bytes(geometry: Geometry) -> int:
    """Host memory that a rank keeps for its lanes, all the time."""
    return BUFFERS * sum(lanes(geometry).values())


def paged(nbytes: int) -> int:
    """Rounded up to whole pages."""
    return -(-nbytes // PAGE) * PAGE
