"""What a rank keeps in its file, where, and what host memory it passes through. ZeRO-Infinity
(arXiv:2104.07857), sec. 5.1, 6.3. Pure.

[Note: Blocks] A block is what is read, checked, updated and written at a time: a whole number of the blocks in which an
optimizer updates. It has as many elements whatever their dtype, so the states of a unit come in step.

[Note: Kept inputs] What recompute keeps of a segment has its room from the start too, one for all microbatches and
steps: the input of one is back before the next one is made.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from mpizero.dtypes import ITEMSIZE
from mpizero.layout.flat import UPDATE_BLOCK
from mpizero.layout.geometry import Geometry
from mpizero.layout.mesh import Axis
from mpizero.layout.spec import ActivationBytes
from mpizero.layout.tiers import NVME

FILE_BLOCK = 8 * UPDATE_BLOCK  # elements: 1 MiB of float32
PAGE = 4096  # bytes: what the places and sizes of requests past the page cache are multiples of
KEPT = "kept"  # the name of a kept input
BUFFERS = 3  # of a lane: one is read into while another is worked on and the third is written


@dataclass(frozen=True)
class Space:
    """Room for what a unit keeps as `name`; or of the segment with this number its input, `KEPT`. offset: in the file,
    of a page."""

    unit: int
    name: str
    offset: int
    numel: int
    dtype: str

    @property
    def nbytes(self) -> int:
        return self.numel * ITEMSIZE[self.dtype]


def spaces(geometry: Geometry, activations: ActivationBytes | None = None,
           segments: Mapping[int, bool] = {}) -> tuple[Space, ...]:
    """Of everything that is ever in the file, one after the other: of gradients too, which are there from backward to
    the update alone; and, where they come there, of the inputs of `segments`, of a microbatch of these `activations`:
    of all of it, or of a tensor parallel rank's part."""
    found, offset = list[Space](), 0
    for unit, name, numel, dtype in (*_states(geometry), *_inputs(geometry, activations, segments)):
        found.append(Space(unit, name, offset, numel, dtype))
        offset += paged(found[-1].nbytes)
    return tuple(found)


def _inputs(geometry: Geometry, activations: ActivationBytes | None,
            segments: Mapping[int, bool]) -> Iterator[tuple[int, str, int, str]]:
    for segment, part in segments.items() if geometry.placement.tiers.checkpoints is NVME else ():
        assert activations is not None, "room is reserved for inputs whose size is known"
        numel = activations.input(segment) // geometry.itemsize
        yield segment, KEPT, numel // activations.ranks if part else numel, geometry.dtype


def _states(geometry: Geometry) -> Iterator[tuple[int, str, int, str]]:
    placement, tiers = geometry.placement, geometry.placement.tiers
    for unit, layout in enumerate(geometry.wrapping.units):
        if tiers.params is NVME:
            yield unit, "param", geometry.kept(unit, placement.params), geometry.dtype
        if tiers.optimizer is NVME and not layout.frozen:
            numel = geometry.kept(unit, placement.optim)
            yield unit, "grad", numel, geometry.sums
            for state in geometry.stored:
                yield unit, state.name, numel, state.dtype


def file_bytes(found: Iterable[Space]) -> int:
    """Of a rank's file in which these are."""
    return sum(paged(space.nbytes) for space in found)


def lanes(geometry: Geometry, activations: ActivationBytes | None = None) -> dict[str, int]:
    """Bytes of one buffer of each lane: what a block of that name takes at most. A gradient that goes back to the
    device, where it is summed across replicas or tensor parallel ranks, has a lane of its own: others may come down
    meanwhile. Kept inputs have one: the first that comes back is the last that left. Without `activations` it is left
    out."""
    found: dict[str, int] = {}
    for space in spaces(geometry):
        size = paged(min(space.numel, FILE_BLOCK) * ITEMSIZE[space.dtype])
        found[space.name] = max(found.get(space.name, 0), size)
    if "grad" in found and any(geometry.unsummed(unit) - {Axis.SHARD} for unit in geometry.wrapping.trained):
        found["upload"] = found["grad"]
    if geometry.placement.tiers.checkpoints is NVME and activations is not None:
        found[KEPT] = paged(min(activations.largest_kept, FILE_BLOCK * geometry.itemsize))
    return found


def buffer_bytes(geometry: Geometry, activations: ActivationBytes | None = None) -> int:
    """Host memory that a rank keeps for its lanes, all the time."""
    return BUFFERS * sum(lanes(geometry, activations).values())


def paged(nbytes: int) -> int:
    """Rounded up to whole pages."""
    return -(-nbytes // PAGE) * PAGE
