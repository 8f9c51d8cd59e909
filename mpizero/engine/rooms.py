"""Where what a unit keeps lies: arrays on the ledgers of device and host, or ranges of the rank's file; and one way to
go through either."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from mpizero.errors import ConfigError
from mpizero.layout import NVME, Tier
from mpizero.layout.files import KEPT
from mpizero.memory.ledger import Ledger
from mpizero.memory.regions import Block, Region, Storage

Array = np.ndarray
Kept = Array | Region


@dataclass(frozen=True)
class Rooms:
    """What a rank has: the ledger of each tier, and its file, if something rests there."""

    ledgers: Mapping[Tier, Ledger]
    storage: Storage | None = None

    def empty(self, tier: Tier, unit: int, name: str, label: str, numel: int, dtype: np.dtype, kind: str) -> Kept:
        """Room (numel,) for what the unit (`label`) keeps as `name`, or a segment as `KEPT`."""
        if tier is not NVME:
            return self.ledgers[tier].empty(numel, dtype, kind)
        assert self.storage is not None, "nothing rests in files without one"
        region = self.storage.region(unit, name, kind, label)
        if name == KEPT and region.nbytes != numel * dtype.itemsize:
            raise ConfigError(f"the input of segment {label} weighs {numel * dtype.itemsize:,} bytes, but the model's "
                              f"`activations` say {region.nbytes:,}, for which a file has room: correct them, or leave "
                              "checkpoints on the device or the host")
        assert (region.size, region.dtype) == (numel, dtype), (label, name)
        return region


def blocks(kept: Kept, start: int, part: slice, *, reads: bool = True, writes: bool = False) -> Iterator[Block]:
    """The elements `part` of a flat parameter, of which `kept` holds those from `start` on: a view of all of them, or
    block by block what a file has. See `Region.blocks`."""
    inside = slice(part.start - start, part.stop - start)
    if isinstance(kept, Region):
        for span, values in kept.blocks(inside, reads=reads, writes=writes, ranks=True):
            yield slice(span.start + start, span.stop + start), values
    else:
        yield part, kept[inside]
